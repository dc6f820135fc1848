import { api, isAbort, path } from "../api.js";
import { h, replace } from "../elements.js";
import { number, shortId, time } from "../format.js";
import { carried } from "../bytes_text.js";
import { createTable } from "../table.js";
import { queueHead } from "../queue_head.js";
import { actionButton } from "../actions.js";
import { confirmDialog } from "../dialogs.js";
import { emptyState } from "../clipboard.js";
import { replaceQuery } from "../router.js";
import { problemBox } from "../problem_box.js";
import { detailPanel, messageFacts } from "../message_detail.js";
import { bodyPreview } from "./messages.js";
import { toast } from "../toasts.js";

const PAGE = 100;
const TONE = { COMPLETED: "good", FAILED: "bad" };
const AGES = [["", "any time"], ["1h", "last hour"], ["24h", "last 24 hours"], ["3d", "last 3 days"]];
const HOURS = { "1h": 1, "24h": 24, "3d": 72 };

export async function archivePage(view) {
  const name = view.params.queue;
  view.title(`Archive of ${name}`);
  const base = path`/v1/queues/${name}/archive`;
  const { element: head } = queueHead(view, "archive");
  const input = (test, label, placeholder, parameter) => h("input", { type: "search", spellcheck: "false", autocomplete: "off", placeholder, "aria-label": label, value: view.query.get(parameter) ?? "", "data-test": test });
  const id = input("archive-id", "Search by message id", "Message id", "message");
  const key = input("archive-key", "Search by ordering key", "Ordering key", "key");
  const header = input("archive-header", "Search by header, as name=value", "Header name=value", "header");
  const choice = (test, label, parameter, options) => h("select", { "aria-label": label, "data-test": test }, options.map(([value, text]) => h("option", { value, selected: value === (view.query.get(parameter) ?? "") }, text)));
  const since = choice("archive-since", "Time of the end", "since", AGES);
  const state = choice("archive-state", "Outcome", "state", [["", "any outcome"], ["COMPLETED", "acknowledged"], ["FAILED", "purged dead letters"]]);
  const search = h("button.btn.primary", { type: "submit", "data-test": "archive-search" }, "Search");
  const form = h("form.toolbar", { role: "search" }, id, key, header, since, state, search);
  const shown = h("p.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const problem = h("div");
  const place = h("div");
  const more = h("div.more");
  const detail = detailPanel({ onClose: () => select(null) });
  const table = createTable({
    label: `Archive of ${name}`,
    test: "archive-table",
    rowTest: "archive-row",
    key: (row) => `${row.id} ${row.archived_at}`,
    open: openMessage,
    columns: [
      { label: "State", render: (row) => h(`span.pill.${TONE[row.state] ?? "info"}`, {}, row.state) },
      { label: "Message", class: "main-cell", render: (row) => [h("div.clip.mono", {}, bodyPreview(row)), h("div.sub", {}, h("code", { title: row.id }, shortId(row.id)), row.ordering_key ? h("span", {}, ` key ${row.ordering_key}`) : null)] },
      { label: "Deliveries", class: "num", render: (row) => number(row.receive_count) },
      { label: "Sent", class: "when", render: (row) => time(row.enqueued_at) },
      { label: "Ended", class: "when", render: (row) => time(row.archived_at) },
    ],
  });
  replace(view.root, h("div.stack", { "data-test": "page-archive" }, head, form, shown, problem, h("div.split", {}, h("div.list-side", {}, place, more), detail.element)));
  view.keys.table = table;
  view.keys.escape = () => detail.close();

  let messages = [];
  let next = null;
  let wanted = null;

  const readForm = () => ({ message: id.value.trim(), key: key.value.trim(), header: header.value.trim(), since: since.value, state: state.value });
  const isFiltered = () => Object.values(wanted).some((value) => value !== "");

  function parameters(after) {
    const { message, since: age, ...rest } = wanted;
    const from = HOURS[age] ? new Date(Date.now() - HOURS[age] * 3600000).toISOString() : "";
    return { ...rest, id: message, since: from, limit: PAGE, after };
  }

  function select(one) {
    table.show(one);
  }

  function openMessage(message) {
    select(`${message.id} ${message.archived_at}`);
    detail.show(view, {
      title: "Archived message",
      message,
      actions: [actionButton({ label: "Send again", test: "send-again", role: "produce", queue: name, small: true, tone: "primary", run: () => sendAgain(message) })],
      facts: messageFacts([
        ["State", h(`span.pill.${TONE[message.state] ?? "info"}`, {}, message.state)],
        ["Last error", message.last_error ? h("pre.error-text", {}, message.last_error) : null],
        ["Ordering key", message.ordering_key],
        ["Priority", String(message.priority ?? "–")],
        ["Content type", message.content_type],
        ["Deliveries", `${number(message.receive_count)}, ${number(message.attempts_count)} ${message.state === "FAILED" ? "retried" : "failed"}`],
        ["Sent", time(message.enqueued_at)],
        ["First attempt", message.first_attempt_at ? time(message.first_attempt_at) : null],
        ["Last attempt", message.last_attempt_at ? time(message.last_attempt_at) : null],
        ["Ended", time(message.archived_at)],
      ]),
      bytes: carried(message, "body"),
    });
  }

  function sendAgain(message) {
    confirmDialog({
      title: "Send this message again?",
      test: "dialog-send-again",
      count: async () => ({ text: `A new message with the same body, headers and ordering key is sent to ${name}. Its header sent-again-from is ${message.id}.`, label: "Send again" }),
      tone: "primary",
      run: async () => {
        const sent = await api.post(`${base}/${encodeURIComponent(message.id)}/send-again`);
        toast(`Sent as ${shortId(sent.id)}`);
      },
    });
  }

  function draw() {
    shown.textContent = `${number(messages.length)}${next ? " so far" : ""}, newest end first`;
    if (messages.length === 0) {
      shown.textContent = "";
      replace(place, emptyState({
        title: next ? "Nothing found so far" : isFiltered() ? "Nothing found" : "The archive is empty",
        test: "empty-archive",
        text: next ? "The part of the archive that was searched has no such message. Older parts have not been searched." : "Acknowledged messages and purged dead letters are archived if the store's setting 'archive' allows it.",
        commands: [],
      }));
    } else {
      if (!place.contains(table.element)) replace(place, table.element);
      table.update(messages);
    }
    replace(more, next ? h("button.btn", { type: "button", "data-test": "load-more", on: { click: () => load(false) } }, messages.length === 0 ? "Search older messages" : "Load more") : null);
  }

  async function load(isNew) {
    if (isNew) {
      wanted = readForm();
      replaceQuery(new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== "")));
    }
    try {
      const page = await api.get(base, { query: parameters(isNew ? undefined : next), signal: view.signal });
      messages = isNew ? page.messages : [...messages, ...page.messages];
      next = page.next ?? null;
      replace(problem);
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: () => load(isNew) }));
      return;
    }
    draw();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    detail.close();
    load(true);
  });
  for (const one of [since, state]) one.addEventListener("change", () => form.requestSubmit());
  await load(true);
}
