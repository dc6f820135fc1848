import { api, isAbort, path } from "../api.js";
import { h, reconcile, replace, throttled } from "../elements.js";
import { absolute, count, firstLine, number, shortId, statText, time } from "../format.js";
import { carried } from "../bytes_text.js";
import { createTable } from "../table.js";
import { queueHead } from "../queue_head.js";
import { actionButton } from "../actions.js";
import { emptyState, urlOption } from "../clipboard.js";
import { confirmDialog, field, openDialog } from "../dialogs.js";
import { filterFields } from "../filter_fields.js";
import { openBulk } from "../bulk.js";
import { openSend } from "../send.js";
import { problemBox } from "../problem_box.js";
import { detailPanel, messageFacts } from "../message_detail.js";
import { queues } from "../queues.js";
import { toast } from "../toasts.js";

const TONE = { PENDING: "info", PROCESSING: "accent", RETRYABLE: "warn" };
const LIMITS = [50, 200, 1000];
const STATES = ["ready", "delayed", "in_flight"];
const STATE_NAMES = { ready: "ready", delayed: "delayed", in_flight: "in flight" };
const SHORT_PAGES = 20; // requests per list: each reads a bounded number of messages

/** The text that the filter searches. */
export function searchText(message) {
  const headers = Object.entries(message.headers ?? {}).map(([name, value]) => `${name}: ${value}`);
  return [message.id, message.ordering_key, message.dedup_key, message.state, message.reason, message.error, message.last_error, message.body, ...headers].filter(Boolean).join("\n").toLowerCase();
}

export const bodyPreview = (message) => (message.body !== undefined && message.body !== null ? firstLine(message.body.slice(0, 1000).replace(/\s+/g, " ").trim(), 120) || "(empty)" : "(binary)");

export async function messagesPage(view) {
  const name = view.params.queue;
  view.title(`Messages of ${name}`);
  const base = path`/v1/queues/${name}/messages`;
  const { element: head, actions } = queueHead(view, "messages");
  // Without an answer, actions on waiting messages are offered, and the server refuses them if the store cannot.
  const features = await api.get("/v1/capabilities", { signal: view.signal }).then((found) => found.features, () => []);
  const waiting = features.find((one) => one.feature === "waiting_messages");
  const refused = waiting?.support === "refused" ? waiting.note ?? "The store has no actions on waiting messages." : null;
  const state = STATES.includes(view.query.get("state")) ? view.query.get("state") : null;
  const filterInput = h("input.filter", { type: "search", placeholder: "Filter by body, header, id, key, state  /", "aria-label": "Filter messages", value: view.query.get("q") ?? "", "data-filter": true, "data-test": "filter" });
  const limit = h("select", { "aria-label": "Rows shown", "data-test": "limit" }, LIMITS.map((n) => h("option", { value: n, selected: String(n) === view.query.get("limit") }, `up to ${number(n)}`)));
  const shown = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const problem = h("div");
  const place = h("div.list-side");
  const table = createTable({
    label: `Messages of ${name}`,
    test: "message-table",
    rowTest: "message-row",
    key: (row) => row.id,
    open: openMessage,
    selectable: refused === null,
    onSelect: drawSelection,
    columns: [
      { label: "State", render: (row) => h(`span.pill.${TONE[row.state] ?? "info"}`, {}, row.state) },
      { label: "Message", class: "main-cell", render: (row) => [h("div.clip.mono", {}, bodyPreview(row)), h("div.sub", {}, h("code", { title: row.id }, shortId(row.id)), row.ordering_key ? h("span", {}, ` key ${row.ordering_key}`) : null)] },
      { label: "Deliveries", class: "num", title: "Number of deliveries", render: (row) => number(row.receive_count) },
      { label: "Sent", class: "when", render: (row) => time(row.enqueued_at) },
      { label: "Next", class: "when", title: "Due time, or end of the lease", render: (row) => time(row.next_attempt_at) },
      ...(refused === null ? [{ label: "Actions", class: "actions-cell", render: (row) => h("div.actions", {}, rowActions(row)) }] : []),
    ],
  });
  const detail = detailPanel({ onClose: () => select(null) });
  const split = h("div.split", {}, place, detail.element);
  const tabs = h("nav.state-tabs", { "aria-label": "States", "data-test": "state-tabs" });
  const selectionBar = h("div.selection", { hidden: true, "data-test": "selection" });
  const filters = filterFields(
    view,
    [
      { name: "key", label: "Ordering key", placeholder: "Ordering key" },
      { name: "header", label: "Header", placeholder: "Header name=value" },
      { name: "since", label: "Sent since", kind: "time" },
      { name: "before", label: "Sent before", kind: "time" },
    ],
    () => {
      table.clearSelection();
      drawTabs();
      load();
    },
    () => Object.entries({ state, q: filterInput.value, limit: limit.value === "50" ? "" : limit.value, id: opened }).filter(([, value]) => value),
  );
  const search = refused === null ? [tabs, filterInput, limit, shown, h("div.filter-fields", {}, filters.input("key"), filters.input("header"), h("div.time-range", {}, filters.labelled("since"), filters.labelled("before")))] : [filterInput, limit, shown];
  const why = refused === null ? null : h("p.muted", { "data-test": "actions-refused" }, `Messages can only be viewed here: ${refused}`);
  replace(view.root, h("div.stack", { "data-test": "page-messages" }, head, h("div.toolbar", {}, search), why, selectionBar, problem, split));
  view.keys.table = table;
  view.keys.escape = () => detail.close();

  let messages = [];
  let next = null;
  let opened = view.query.get("id");
  // Followed with the first list that arrives.
  let isLinkFollowed = false;

  function select(id) {
    opened = id;
    table.show(id);
    filters.keep();
  }

  /** The filter for the API. */
  function filter() {
    const values = Object.fromEntries(["key", "header", "since", "before"].map((one) => [one, filters.value(one)]));
    return Object.fromEntries(Object.entries({ ...values, state }).filter(([, value]) => value));
  }

  /** The filter in words. */
  function inWords() {
    const { key, header, since, before } = filter();
    return [
      key ? `the key “${key}”` : null,
      header ? `the header ${header}` : null,
      since ? `a send since ${absolute(since)}` : null,
      before ? `a send before ${absolute(before)}` : null,
    ].filter(Boolean).join(" and ");
  }

  function drawTabs() {
    if (refused !== null) return;
    const stats = queues.all.get(name);
    const tab = (one) => {
      const address = filters.query();
      address.delete("state");
      address.delete("id");
      if (one !== null) address.set("state", one);
      const text = address.toString();
      const label = one === null ? "all" : STATE_NAMES[one];
      return h("a", { href: `${path`/ui/queues/${name}/messages`}${text === "" ? "" : `?${text}`}`, "data-key": label, "data-test": `state-${(one ?? "all").replace("_", "-")}`, "aria-current": state === one ? "page" : null }, label, one === null || !stats ? null : h("span.tab-count", { "data-test": `count-${one.replace("_", "-")}` }, statText(stats, one)));
    };
    reconcile(tabs, [null, ...STATES].map(tab));
  }

  const isLeased = (row) => row.state === "PROCESSING";
  const isDelayed = (row) => !isLeased(row) && Date.parse(row.next_attempt_at) > Date.now();
  const one = (row) => `${base}/${encodeURIComponent(row.id)}`;

  async function acted(text) {
    toast(text);
    detail.close();
    table.clearSelection();
    await load();
  }

  function deliverNow(row) {
    return api.post(`${one(row)}/deliver-now`).then(() => acted("The message is due"));
  }

  const reasonFields = () => {
    const reason = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "death-reason" });
    const error = h("input", { autocomplete: "off", "data-test": "death-error" });
    return {
      fields: [field("Reason", reason, "One word, like rejected"), field("Error", error, "Details, optional")],
      read: () => {
        if (reason.value.trim() === "") throw new Error("The reason is missing; use one word.");
        return error.value.trim() === "" ? { reason: reason.value.trim() } : { reason: reason.value.trim(), error: error.value.trim() };
      },
    };
  };

  function deadLetter(row) {
    const death = reasonFields();
    openDialog({
      title: "Dead-letter this message",
      test: "dialog-dead-letter",
      body: [h("p", {}, "It becomes a dead letter. A redrive sends it again."), h("div.fields", {}, death.fields)],
      actions: [{ label: "Dead-letter", test: "dead-letter-start", tone: "danger", run: async () => {
        await api.post(`${one(row)}/dead-letter`, death.read());
        await acted("The message is a dead letter");
      } }],
    });
  }

  function remove(row) {
    confirmDialog({
      title: "Delete this message?",
      test: "dialog-delete-message",
      count: async () => ({ text: `The message ${shortId(row.id)} is removed for good and not delivered.`, label: "Delete" }),
      run: async () => {
        await api.remove(one(row));
        await acted("The message is deleted");
      },
    });
  }

  function rowActions(row) {
    return [
      isDelayed(row) ? actionButton({ label: "Deliver now", test: "row-deliver-now", role: "operate", queue: name, small: true, title: "Make it due at once", run: () => deliverNow(row) }) : null,
      isLeased(row) ? null : actionButton({ label: "Delete", test: "row-delete", role: "operate", queue: name, small: true, tone: "danger", run: () => remove(row) }),
    ];
  }

  const JOBS = {
    "deliver-now": { title: "Deliver messages now", verb: "Deliver now:", tone: "primary" },
    "dead-letter": { title: "Dead-letter messages", verb: "Dead-letter", tone: "danger" },
    delete: { title: "Delete messages", verb: "Delete", tone: "danger" },
  };

  /** Starts a bulk action on `choice`: a filter, or ids. */
  function change(kind, choice, what) {
    const death = kind === "dead-letter" ? reasonFields() : { fields: [], read: () => ({}) };
    openBulk({
      ...JOBS[kind],
      test: `dialog-${kind}-messages`,
      what,
      noun: "message",
      fields: death.fields,
      preview: async () => {
        // The API requires a reason for a dry run, too.
        const answer = await api.post(`${base}/${kind}-job`, { ...choice, ...(kind === "dead-letter" ? { reason: "dry run" } : {}), dry_run: true });
        return { count: answer.messages, skippedCount: answer.skipped, note: answer.complete ? null : "There are more; the oldest are taken first." };
      },
      start: (options) => api.post(`${base}/${kind}-job`, { ...choice, ...death.read(), ...options }),
      onEnd: () => {
        detail.close();
        table.clearSelection();
        return load();
      },
    });
  }

  let drawn = null;
  function drawActions() {
    const words = inWords();
    // The text filter applies to the shown messages only; an action on all matches would include others.
    const isSearched = filterInput.value.trim() !== "";
    const drawing = `${isSearched} ${words}`;
    // Redrawing would remove the focus.
    if (drawing === drawn) return;
    drawn = drawing;
    const which = `Every ${state === null ? "waiting" : STATE_NAMES[state]} message of ${name}${words === "" ? "" : ` with ${words}`}`;
    const all = state === null && words === "" ? "all" : "all that match";
    const mayAct = refused === null && state !== "in_flight" && !isSearched;
    replace(
      actions,
      actionButton({ label: "Send a message", test: "send", role: "produce", queue: name, tone: "primary", run: () => openSend(name, load) }),
      mayAct && state !== "ready" ? actionButton({ label: `Deliver ${all} now`, test: "deliver-now-all", role: "operate", queue: name, run: () => change("deliver-now", { ...filter(), state: "delayed" }, `${which} that is delayed becomes due.`) }) : null,
      mayAct ? actionButton({ label: `Dead-letter ${all}`, test: "dead-letter-all", role: "operate", queue: name, run: () => change("dead-letter", filter(), `${which} becomes a dead letter.`) }) : null,
      mayAct ? actionButton({ label: `Delete ${all}`, test: "delete-all", role: "operate", queue: name, tone: "danger", run: () => change("delete", filter(), `${which} is removed for good.`) }) : null,
    );
  }

  function drawSelection(rows) {
    selectionBar.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const ids = rows.map((row) => row.id);
    const which = `Of ${count(ids.length, "selected message")}, those that are not leased`;
    replace(
      selectionBar,
      h("strong", {}, `${number(ids.length)} selected`),
      actionButton({ label: "Deliver now", test: "selection-deliver-now", role: "operate", queue: name, small: true, tone: "primary", run: () => change("deliver-now", { ids }, `${which} become due.`) }),
      actionButton({ label: "Dead-letter", test: "selection-dead-letter", role: "operate", queue: name, small: true, run: () => change("dead-letter", { ids }, `${which} become dead letters.`) }),
      actionButton({ label: "Delete", test: "selection-delete", role: "operate", queue: name, small: true, tone: "danger", run: () => change("delete", { ids }, `${which} are removed for good.`) }),
      h("button.btn.small.ghost", { type: "button", "data-test": "selection-clear", on: { click: () => table.clearSelection() } }, "Clear"),
    );
  }

  const factsOf = (message) =>
    messageFacts([
      ["State", h(`span.pill.${TONE[message.state] ?? "info"}`, {}, message.state)],
      ["Ordering key", message.ordering_key],
      ["Priority", String(message.priority ?? "–")],
      ["Content type", message.content_type],
      ["Deliveries", `${number(message.receive_count)}, ${number(message.attempts_count)} failed`],
      ["Sent", time(message.enqueued_at)],
      [message.state === "PROCESSING" ? "Lease ends" : "Due", time(message.next_attempt_at)],
      ["Last error", message.last_error ? h("pre.error-text", {}, message.last_error) : null],
    ]);

  function openMessage(message) {
    select(message.id);
    detail.show(view, {
      title: "Message",
      message,
      actions: refused !== null || isLeased(message) ? null : [
        isDelayed(message) ? actionButton({ label: "Deliver now", test: "deliver-now-one", role: "operate", queue: name, small: true, tone: "primary", run: () => deliverNow(message) }) : null,
        actionButton({ label: "Dead-letter", test: "dead-letter-one", role: "operate", queue: name, small: true, run: () => deadLetter(message) }),
        actionButton({ label: "Delete", test: "delete-one", role: "operate", queue: name, small: true, tone: "danger", run: () => remove(message) }),
      ],
      facts: factsOf(message),
      bytes: carried(message, "body"),
      attemptsUrl: path`/v1/queues/${name}/messages/${message.id}/attempts`,
    });
  }

  function draw() {
    const wanted = filterInput.value.trim().toLowerCase();
    const list = wanted === "" ? messages : messages.filter((message) => searchText(message).includes(wanted));
    shown.textContent = wanted === "" ? count(messages.length, "message") : `${number(list.length)} of ${number(messages.length)}`;
    if (next && wanted === "") shown.textContent += ", and more";
    if (messages.length === 0 && Object.keys(filter()).length > 0) {
      replace(place, h("div.empty", { "data-test": "empty-filter" }, h("h2", {}, next ? "Nothing found so far" : "No message matches"), h("p", {}, next ? "The part of the queue that was searched has no such message. " : null, h("a", { href: path`/ui/queues/${name}/messages`, "data-test": "clear-filters" }, "Show all messages"))));
      return;
    }
    if (messages.length === 0) {
      const dead = queues.all.get(name)?.dead;
      replace(place, emptyState({
        title: "No messages",
        test: "empty-messages",
        text: dead > 0 ? "Dead letters are on the next tab. To send a message:" : "All sent messages have been handled, or none was sent yet. To send one:",
        commands: [`postrider send ${name} '{"item":"tea"}' ${urlOption()}`],
      }));
      return;
    }
    if (!place.contains(table.element)) replace(place, table.element);
    table.update(list);
    if (list.length === 0) shown.textContent += ", none match";
  }

  // A page of the API can be short and not the last.
  async function read() {
    const found = [];
    let after = null;
    for (let pages = 0; pages < SHORT_PAGES; pages++) {
      const page = await api.get(base, { query: { ...filter(), limit: Number(limit.value) - found.length, after }, signal: view.signal });
      found.push(...page.messages);
      after = page.next ?? null;
      if (after === null || found.length >= Number(limit.value)) break;
    }
    return [found, after];
  }

  let lastRequest = 0;
  async function load() {
    const request = ++lastRequest;
    try {
      const [found, after] = await read();
      if (request !== lastRequest) return;
      messages = found;
      next = after;
      replace(problem);
    } catch (error) {
      if (!isAbort(error) && request === lastRequest) replace(problem, problemBox(error, { retry: load }));
      return;
    }
    drawActions();
    draw();
    if (!isLinkFollowed) {
      isLinkFollowed = true;
      return followLink();
    }
    if (opened === null) return;
    const current = messages.find((message) => message.id === opened);
    detail.refresh(current ? factsOf(current) : h("p.notice", { "data-tone": "warn", "data-test": "message-left" }, "It is no longer in the queue: handled, dead-lettered or removed."));
  }

  /** Opens the message in the URL, once the first list is loaded. */
  function followLink() {
    const linked = messages.find((message) => message.id === opened);
    if (linked) openMessage(linked);
    else if (opened) {
      replace(problem, h("p.notice", { "data-tone": "warn", "data-test": "not-in-list" }, `The message ${opened} is not among the ${count(messages.length, "message")} shown; it may have been handled.`));
      select(null);
    }
  }

  filterInput.addEventListener("input", () => {
    filters.keep();
    drawActions();
    draw();
  });
  limit.addEventListener("change", () => {
    filters.keep();
    load();
  });
  const loadSoon = throttled(2000, () => !view.signal.aborted && load());
  drawActions();
  drawTabs();
  view.until(queues.on((names) => {
    if (names !== null && !names.includes(name)) return;
    drawTabs();
    loadSoon();
  }));
  await load();
}
