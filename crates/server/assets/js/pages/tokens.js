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
  read: "look at everything",
  produce: "make queues, send messages, make tasks",
  consume: "receive and settle, work on tasks",
  operate: "pause, purge, redrive, replay, edit, schedules; has read too",
  admin: "everything, tokens too",
};

export async function tokensPage(view) {
  view.title("Tokens");
  const refused = refusedPage("admin");
  const problem = h("div");
  const place = h("div");
  replace(view.root, h("div.stack", { "data-test": "page-tokens" }, h("header.page-head", {}, h("div.head-line", {}, h("h1", { tabindex: "-1" }, "Tokens"), h("span.spacer"), actionButton({ label: "New token", test: "new-token", role: "admin", tone: "primary", run: create })), h("p.muted", {}, "What people and programs show to the server. A token is shown once, when it is made.")), refused ?? [problem, place]));
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
      { label: "Made", class: "when", render: (row) => time(row.created_at) },
      { label: "Ends", class: "when", render: (row) => time(row.expires_at, "never") },
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
        if (!now) return { text: "It is gone already.", label: "Revoke 1 token", nothing: true };
        const isLastAdmin = all.every((token) => (token.id === row.id) === token.roles.includes("admin"));
        const warning = isLastAdmin ? h("strong", { "data-test": "last-admin" }, " No other token has the role admin: afterwards nobody can administer the server here. ", h("code", {}, "postrider token create NAME --role admin"), " on the server’s own store makes another.") : null;
        return { text: ["1 token is refused from now on, and whoever uses it is logged out. It was last used ", time(now.last_used_at, "never"), ".", warning], label: "Revoke 1 token" };
      },
      run: () => api.remove(path`/v1/tokens/${row.id}`),
      onDone: () => {
        toast(`${row.name} is revoked`);
        load();
      },
    });
  }

  function create() {
    // The first token closes an open server: whoever makes it should go on with it.
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
      body: [isFirst ? h("p.notice", { "data-tone": "warn", "data-test": "first-token" }, "This is the first token: from then on the server asks everybody for one. It has the role admin, or nobody could make more of them here.") : null, field("Name", name, "Who or what it is for"), h("fieldset", {}, h("legend", {}, "Roles"), roles.map((one) => one.element)), field("Only these queues", queueNames, "Names with commas between them; mail.* means all that begin with mail."), field("Ends in", ends, "Like 30d, or empty for never")],
      actions: [{ label: "Make the token", test: "token-save", tone: "primary", run: async (dialog) => {
        const wanted = { name: name.value.trim(), roles: roles.filter((one) => one.box.checked).map((one) => one.box.value) };
        if (wanted.name === "") throw new Error("A token has a name.");
        if (wanted.roles.length === 0) throw new Error("A token has at least one role.");
        const list = queueNames.value.split(",").map((queue) => queue.trim()).filter((queue) => queue !== "");
        if (list.length > 0) wanted.queues = list;
        if (ends.value.trim() !== "") wanted.expires_in = ends.value.trim();
        if (isFirst) {
          // What is under way meanwhile is refused, and must not lead away from the only sight of the token.
          onUnauthorized(() => {});
          closed = true;
        }
        const made = await api.post("/v1/tokens", wanted);
        dialog.setBody(h("p", {}, h("strong", {}, "Copy it now: it is not shown again.")), h("div", { "data-test": "token-secret" }, command(made.token)), h("p.muted", {}, "For the program: ", h("code", {}, "export POSTRIDER_TOKEN=…")));
        dialog.setActions([], "Done");
        if (isFirst) await api.post("/v1/session", { token: made.token });
        else load();
        return false;
      } }],
    });
  }

  function draw() {
    if (tokens.length === 0) {
      replace(place, emptyState({ title: "No tokens yet", test: "empty-tokens", text: "Without tokens the server is open to everybody who reaches it, and listens on loopback only. The first token has the role admin.", commands: [`curl -X POST ${location.origin}/v1/tokens -H 'content-type: application/json' -d '{"name":"me","roles":["admin"]}'`] }));
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
