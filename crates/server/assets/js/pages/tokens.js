import { api, isAbort, onUnauthorized, path } from "../api.js";
import { h, replace } from "../elements.js";
import { time } from "../format.js";
import { createTable } from "../table.js";
import { actionButton, refusedPage } from "../actions.js";
import { confirmDialog, field, openDialog } from "../dialogs.js";
import { command, emptyState } from "../clipboard.js";
import { problemBox } from "../problem_box.js";
import { toast } from "../toasts.js";
import { session } from "../session.js";

const ROLES = {
  read: "view everything",
  produce: "create queues, send messages, create tasks",
  consume: "receive and settle, run tasks",
  operate: "pause, purge, redrive, replay, edit, schedules; includes read",
  admin: "everything, including tokens",
};

export async function tokensPage(view) {
  view.title("Tokens");
  const refused = refusedPage("admin");
  const problem = h("div");
  const place = h("div");
  replace(view.root, h("div.stack", { "data-test": "page-tokens" }, h("header.page-head", {}, h("div.head-line", {}, h("h1", { tabindex: "-1" }, "Tokens"), h("span.spacer"), actionButton({ label: "New token", test: "new-token", role: "admin", tone: "primary", run: create })), h("p.muted", {}, "Tokens identify people and programs. A token is shown only once, when it is created.")), refused ?? [problem, place]));
  if (refused) return;
  let tokens = [];
  const table = createTable({
    label: "Tokens",
    test: "token-table",
    rowTest: "token-row",
    key: (row) => row.id,
    columns: [
      { label: "Name", class: "main-cell", sort: (row) => row.name, render: (row) => row.name },
      { label: "Roles", render: (row) => row.roles.map((role) => h("span.pill.plain", {}, role)) },
      { label: "Queues", class: "wide-cell", render: (row) => (row.queues ? h("code", {}, row.queues.join(", ")) : "all") },
      { label: "Created", class: "when", render: (row) => time(row.created_at) },
      { label: "Expires", class: "when", render: (row) => time(row.expires_at, "never") },
      { label: "Last used", class: "when", render: (row) => time(row.last_used_at, "never") },
      { label: "Actions", class: "actions-cell", render: (row) => actionButton({ label: "Revoke", test: "token-revoke", role: "admin", small: true, tone: "danger", run: () => revoke(row) }) },
    ],
  });
  view.keys.table = table;

  function revoke(row) {
    confirmDialog({
      title: `Revoke ${row.name}?`,
      test: "dialog-revoke",
      count: async () => {
        const all = (await api.get("/v1/tokens")).tokens;
        const now = all.find((token) => token.id === row.id);
        if (!now) return { text: "It is already revoked.", label: "Revoke 1 token", nothing: true };
        const isLastAdmin = all.every((token) => (token.id === row.id) === token.roles.includes("admin"));
        const warning = isLastAdmin ? h("strong", { "data-test": "last-admin" }, "No other token has the role admin: you can then no longer administer the server here. ", h("code", {}, "postrider token create NAME --role admin"), " on the server’s own store creates another.") : null;
        return { text: ["1 token is refused from now on, and its sessions end. It was last used ", time(now.last_used_at, "never"), ".", warning], label: "Revoke 1 token" };
      },
      run: () => api.remove(path`/v1/tokens/${row.id}`),
      onDone: () => {
        toast(`${row.name} is revoked`);
        load();
      },
    });
  }

  function create() {
    // The first token closes an open server, so this browser logs in with it.
    const isFirst = session.open && tokens.length === 0;
    const name = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "token-name" });
    const roles = Object.entries(ROLES).map(([role, text]) => {
      const box = h("input", { type: "checkbox", value: role, "data-test": `token-role-${role}` });
      if (role === (isFirst ? "admin" : "read")) box.checked = true;
      return { box, element: h("label.check", {}, box, h("strong", {}, ` ${role}`), h("span.muted", {}, ` ${text}`)) };
    });
    const queueNames = h("input", { spellcheck: "false", autocomplete: "off", placeholder: "all", "data-test": "token-queues" });
    const ends = h("input", { spellcheck: "false", autocomplete: "off", placeholder: "never", "data-test": "token-expires-in" });
    let closed = false;
    openDialog({
      title: "New token",
      test: "dialog-new-token",
      onClose: () => closed && location.reload(),
      body: [isFirst ? h("p.notice", { "data-tone": "warn", "data-test": "first-token" }, "This is the first token: from now on the server needs one for every request. It must have the role admin, so that it can create others.") : null, field("Name", name, "The person or program that uses it"), h("fieldset", {}, h("legend", {}, "Roles"), roles.map((one) => one.element)), field("Only these queues", queueNames, "Separated by commas; mail.* covers all queues that begin with mail."), field("Expires in", ends, "Like 30d, or empty for never")],
      actions: [{ label: "Create token", test: "token-save", tone: "primary", run: async (dialog) => {
        const wanted = { name: name.value.trim(), roles: roles.filter((one) => one.box.checked).map((one) => one.box.value) };
        if (wanted.name === "") throw new Error("The name is missing.");
        if (wanted.roles.length === 0) throw new Error("Select at least one role.");
        const list = queueNames.value.split(",").map((queue) => queue.trim()).filter((queue) => queue !== "");
        if (list.length > 0) wanted.queues = list;
        if (ends.value.trim() !== "") wanted.expires_in = ends.value.trim();
        if (isFirst) {
          // Concurrent requests are refused from now on; they must not leave the only page that shows the token.
          onUnauthorized(() => {});
          closed = true;
        }
        const created = await api.post("/v1/tokens", wanted);
        dialog.setBody(h("p", {}, h("strong", {}, "Copy it now: it is not shown again.")), h("div", { "data-test": "token-secret" }, command(created.token)), h("p.muted", {}, "For the program: ", h("code", {}, "export POSTRIDER_TOKEN=…")));
        dialog.setActions([], "Done");
        if (isFirst) await api.post("/v1/session", { token: created.token });
        else load();
        return false;
      } }],
    });
  }

  function draw() {
    if (tokens.length === 0) {
      replace(place, emptyState({ title: "No tokens yet", test: "empty-tokens", text: "Without tokens the server is open to every client on this machine, and listens on loopback only. The first token must have the role admin.", commands: [`curl -X POST ${location.origin}/v1/tokens -H 'content-type: application/json' -d '{"name":"me","roles":["admin"]}'`] }));
      return;
    }
    if (!place.contains(table.element)) replace(place, table.element);
    table.update(tokens);
  }

  async function load() {
    try {
      tokens = (await api.get("/v1/tokens", { signal: view.signal })).tokens;
      replace(problem);
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: load }));
    }
  }
  await load();
}
