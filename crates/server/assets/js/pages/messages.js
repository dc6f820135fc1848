import { api, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { count, firstLine, number, shortId, time } from "../format.js";
import { carried } from "../bytes_text.js";
import { createTable } from "../table.js";
import { queueHead } from "../queue_head.js";
import { actionButton } from "../actions.js";
import { emptyState, urlOption } from "../clipboard.js";
import { openSend } from "../send.js";
import { replaceQuery } from "../router.js";
import { problemBox } from "../problem_box.js";
import { isAbort } from "../api.js";
import { detailPanel, messageFacts } from "../message_detail.js";
import { queues } from "../queues.js";

const TONE = { PENDING: "info", PROCESSING: "accent", RETRYABLE: "warn" };
const LIMITS = [50, 200, 1000];

/** Everything that the filter looks at. */
export function searchText(message) {
  const headers = Object.entries(message.headers ?? {}).map(([name, value]) => `${name}: ${value}`);
  return [message.id, message.ordering_key, message.dedup_key, message.state, message.reason, message.error, message.last_error, message.body, ...headers].filter(Boolean).join("\n").toLowerCase();
}

export const bodyPreview = (message) => (message.body !== undefined && message.body !== null ? firstLine(message.body.replace(/\s+/g, " ").trim(), 120) || "(empty)" : "(binary)");

export async function messagesPage(view) {
  const name = view.params.queue;
  view.title(`Messages of ${name}`);
  const { element: head, actions } = queueHead(view, "messages");
  replace(actions, actionButton({ label: "Send a message", test: "send", role: "produce", queue: name, tone: "primary", run: () => openSend(name, load) }));
  const filterInput = h("input.filter", { type: "search", placeholder: "Filter by body, header, id, key, state  /", "aria-label": "Filter messages", value: view.query.get("q") ?? "", "data-filter": true, "data-test": "filter" });
  const limit = h("select", { "aria-label": "How many are shown", "data-test": "limit" }, LIMITS.map((n) => h("option", { value: n, selected: String(n) === view.query.get("limit") }, `up to ${number(n)}`)));
  const shown = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const problem = h("div");
  const place = h("div.list-side");
  const table = createTable({
    label: `Messages of ${name}`,
    test: "message-table",
    rowTest: "message-row",
    key: (row) => row.id,
    open: openMessage,
    columns: [
      { label: "State", render: (row) => h(`span.pill.${TONE[row.state] ?? "info"}`, {}, row.state) },
      { label: "Message", class: "main-cell", render: (row) => [h("div.clip.mono", {}, bodyPreview(row)), h("div.sub", {}, h("code", { title: row.id }, shortId(row.id)), row.ordering_key ? h("span", {}, ` key ${row.ordering_key}`) : null)] },
      { label: "Deliveries", class: "num", title: "How often it was received", render: (row) => number(row.receive_count) },
      { label: "Sent", class: "when", render: (row) => time(row.enqueued_at) },
      { label: "Next", class: "when", title: "When it is due, or its lease ends", render: (row) => time(row.next_attempt_at) },
    ],
  });
  const detail = detailPanel({ onClose: () => select(null) });
  const split = h("div.split", {}, place, detail.element);
  replace(view.root, h("div.stack", { "data-test": "page-messages" }, head, h("div.toolbar", {}, filterInput, limit, shown), problem, split));
  view.keys.table = table;
  view.keys.escape = () => detail.close();

  let messages = [];
  let opened = view.query.get("id");

  function keepAddress() {
    const query = new URLSearchParams();
    if (filterInput.value !== "") query.set("q", filterInput.value);
    if (limit.value !== "50") query.set("limit", limit.value);
    if (opened) query.set("id", opened);
    replaceQuery(query);
  }

  function select(id) {
    opened = id;
    table.show(id);
    keepAddress();
  }

  const factsOf = (message) =>
    messageFacts([
      ["State", h(`span.pill.${TONE[message.state] ?? "info"}`, {}, message.state)],
      ["Ordering key", message.ordering_key],
      ["Priority", String(message.priority ?? "–")],
      ["Content type", message.content_type],
      ["Deliveries", `${number(message.receive_count)}, of which ${number(message.attempts_count)} failed`],
      ["Sent", time(message.enqueued_at)],
      [message.state === "PROCESSING" ? "Lease ends" : "Due", time(message.next_attempt_at)],
      ["Last error", message.last_error ? h("pre.error-text", {}, message.last_error) : null],
    ]);

  function openMessage(message) {
    select(message.id);
    detail.show(view, {
      title: "Message",
      message,
      facts: factsOf(message),
      bytes: carried(message, "body"),
      attemptsUrl: path`/v1/queues/${name}/messages/${message.id}/attempts`,
    });
  }

  function draw() {
    const wanted = filterInput.value.trim().toLowerCase();
    const list = wanted === "" ? messages : messages.filter((message) => searchText(message).includes(wanted));
    shown.textContent = wanted === "" ? count(messages.length, "message") : `${number(list.length)} of ${number(messages.length)}`;
    if (messages.length === 0) {
      const dead = queues.all.get(name)?.dead;
      replace(place, emptyState({
        title: "No living messages",
        test: "empty-messages",
        text: dead > 0 ? "Its dead letters are on the next tab. To send one:" : "Everything that was sent has been handled, or nothing was sent yet. To send one:",
        commands: [`postrider send ${name} '{"item":"tea"}' ${urlOption()}`],
      }));
      return;
    }
    if (!place.contains(table.element)) replace(place, table.element);
    table.update(list);
    if (list.length === 0) shown.textContent += ", none match";
  }

  async function load() {
    try {
      messages = (await api.get(path`/v1/queues/${name}/messages`, { query: { limit: limit.value }, signal: view.signal })).messages;
      replace(problem);
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: load }));
      return;
    }
    draw();
    if (opened === null) return;
    const current = messages.find((message) => message.id === opened);
    detail.refresh(current ? factsOf(current) : h("p.notice", { "data-tone": "warn", "data-test": "message-left" }, "It is not among the messages any more: handled, put aside as a dead letter, or removed."));
  }

  filterInput.addEventListener("input", () => {
    keepAddress();
    draw();
  });
  limit.addEventListener("change", () => {
    keepAddress();
    load();
  });
  const loadSoon = throttled(2000, () => !view.signal.aborted && load());
  view.until(queues.on((names) => (names === null || names.includes(name)) && loadSoon()));
  await load();
  const linked = messages.find((message) => message.id === opened);
  if (linked) openMessage(linked);
  else if (opened) {
    replace(problem, h("p.notice", { "data-tone": "warn", "data-test": "not-in-list" }, `The message ${opened} is not among the ${count(messages.length, "message")} shown; it may have been handled meanwhile.`));
    select(null);
  }
}
