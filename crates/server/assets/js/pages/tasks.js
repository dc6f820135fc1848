import { api, isAbort, path } from "../api.js";
import { h, reconcile, replace, throttled } from "../elements.js";
import { count, number, shortId, time } from "../format.js";
import { createTable } from "../table.js";
import { actionButton, refusedPage } from "../actions.js";
import { emptyState, urlOption } from "../clipboard.js";
import { errorLine } from "../error_summary.js";
import { filterFields } from "../filter_fields.js";
import { navigate } from "../router.js";
import { percentileLine } from "../percentiles.js";
import { problemBox } from "../problem_box.js";
import { openBulk } from "../bulk.js";
import { field, openDialog } from "../dialogs.js";
import { STATES, confirmCancel, confirmReplay, isOver, progressBar, retryTask, statePill } from "../task_parts.js";
import { toast } from "../toasts.js";

const PAGE = 100; // rows
const SHORT_PAGES = 20; // requests per page: each reads a bounded number of tasks
const REASONS = ["max_attempts", "permanent", "lease_lost", "deadline", "retries_exhausted"];
const OPEN = ["PENDING", "ENQUEUED", "PROCESSING"];
const WAITING = ["PENDING", "ENQUEUED"];

const words = (text) => text.split(",").map((word) => word.trim()).filter((word) => word !== "");

export async function tasksPage(view) {
  view.title("Tasks");
  const refused = refusedPage("read");
  const actions = h("div.actions");
  const tabs = h("nav.state-tabs", { "aria-label": "States", "data-test": "state-tabs" });
  const durations = h("div", { "data-test": "task-durations" });
  const selectionBar = h("div.selection", { hidden: true, "data-test": "selection" });
  const problem = h("div");
  const place = h("div");
  const more = h("div.more");
  const shown = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const state = STATES.includes(view.query.get("state")) ? view.query.get("state") : null;
  let after = view.query.get("after");
  let before = [];
  const filters = filterFields(
    view,
    [
      { name: "type", label: "Type", placeholder: "Type, like invoice.send", isMain: true },
      { name: "tag", label: "Tag", placeholder: "Tag, like monthly" },
      { name: "schedule", label: "Schedule", placeholder: "Schedule, like daily" },
      { name: "error", label: "Error contains", placeholder: "Error contains" },
      { name: "reason", label: "Reason of death", kind: "choice", options: [["", "any reason"], ...REASONS.map((one) => [one, one])] },
      { name: "since", label: "Created since", kind: "time" },
      { name: "before", label: "Created before", kind: "time" },
    ],
    () => {
      rewind();
      drawTabs();
      load();
      loadCounts();
    },
    () => Object.entries({ state, after }).filter(([, value]) => value),
  );
  const fields = h("div.filter-fields", {}, ["type", "tag", "schedule", "error", "reason"].map((name) => filters.input(name)), h("div.time-range", {}, filters.labelled("since"), filters.labelled("before")));
  const toolbar = h("div.toolbar", {}, tabs, shown, fields);
  replace(view.root, h("div.stack", { "data-test": "page-tasks" }, h("header.page-head", {}, h("div.head-line", {}, h("h1", { tabindex: "-1" }, "Tasks"), h("span.spacer"), actions)), refused ?? [toolbar, durations, selectionBar, problem, place, more]));
  if (refused) return;

  let tasks = [];
  let next = null;
  let loaded = false;
  let counts = null;

  const table = createTable({
    label: "Tasks",
    test: "task-table",
    rowTest: "task-row",
    key: (row) => row.id,
    open: (row) => navigate(path`/ui/tasks/${row.id}`),
    selectable: true,
    onSelect: drawSelection,
    columns: [
      { label: "State", render: (row) => [statePill(row.state), row.blocked ? h("span.pill.warn", { title: "Waits for an earlier task of its ordering key" }, "blocked") : null] },
      { label: "Task", class: "main-cell", render: (row) => [h("a.mono", { href: path`/ui/tasks/${row.id}` }, row.type), h("div.sub", {}, h("code", { title: row.id }, shortId(row.id)), (row.tags ?? []).map((tag) => h("span.tag", {}, tag)), row.schedule ? ` by ${row.schedule}` : null)] },
      { label: "Attempts", class: "num", render: (row) => `${row.attempt_count}/${row.max_attempts}` },
      { label: "Progress or error", class: "wide-cell", render: (row) => (row.state === "PROCESSING" && row.progress ? [progressBar(row), h("div.clip.sub", {}, row.progress.text ?? "")] : row.last_error && row.state !== "SUCCEEDED" ? h("div.clip", { title: row.last_error, "data-test": "error-line" }, row.dead_reason ? [h("span.pill.bad", {}, row.dead_reason), " "] : null, errorLine(row.last_error)) : row.dead_reason ? h("span.pill.bad", {}, row.dead_reason) : "") },
      { label: "Created", class: "when", render: (row) => time(row.created_at) },
      { label: "Due or ended", class: "when", render: (row) => (row.finished_at ? time(row.finished_at) : time(row.scheduled_for)) },
      { label: "Actions", class: "actions-cell", render: (row) => h("div.actions", {}, rowActions(row)) },
    ],
  });
  view.keys.table = table;

  function rowActions(task) {
    const reload = () => Promise.all([load(), loadCounts()]);
    return [
      WAITING.includes(task.state) ? actionButton({ label: "Run now", test: "row-retry", role: "operate", small: true, title: "Make it due at once", run: () => retryTask(task, reload) }) : null,
      task.state === "DEAD" ? actionButton({ label: "Replay", test: "row-replay", role: "operate", small: true, run: () => confirmReplay(task, reload) }) : null,
      isOver(task) ? null : actionButton({ label: "Cancel", test: "row-cancel", role: "operate", small: true, tone: "danger", run: () => confirmCancel(task, reload) }),
    ];
  }

  /** The filter for the API, without the state. */
  function filter() {
    const values = { type: words(filters.value("type")), tag: words(filters.value("tag")) };
    for (const name of ["schedule", "error", "reason", "since", "before"]) values[name] = filters.value(name);
    return Object.fromEntries(Object.entries(values).filter(([, value]) => value.length > 0));
  }

  function rewind() {
    after = null;
    before = [];
    loaded = false;
    table.clearSelection();
    filters.keep();
  }

  function openPage(to, back) {
    before = back;
    after = to;
    table.clearSelection();
    filters.keep({ push: true });
    load().then(() => scrollTo(0, 0));
  }

  function drawTabs() {
    const tab = (name, label) => {
      const address = filters.query();
      address.delete("state");
      address.delete("after");
      if (name !== null) address.set("state", name);
      const text = address.toString();
      const many = counts === null ? null : name === null ? Object.values(counts.counts).reduce((a, b) => a + b, 0) : counts.counts[name];
      const countText = many === null ? "" : `${number(many)}${counts.complete ? "" : "+"}`;
      return h("a", { href: `/ui/tasks${text === "" ? "" : `?${text}`}`, "data-key": label, "data-test": `state-${label}`, "aria-current": state === name ? "page" : null, title: counts && !counts.complete ? `There may be more: ${number(counts.looked_at)} tasks were counted` : null }, label, h("span.tab-count", { "data-test": `count-${label}` }, countText));
    };
    reconcile(tabs, [tab(null, "all"), ...STATES.map((name) => tab(name, name))]);
  }

  function drawDurations() {
    replace(durations, percentileLine("Waited for an attempt", counts?.waited, "tasks-waited"), percentileLine("Attempt took", counts?.took, "tasks-took"));
  }

  function replay(filter, what) {
    openBulk({
      title: "Replay dead tasks",
      test: "dialog-replay",
      what,
      verb: "Replay",
      noun: "task",
      preview: async () => {
        const answer = await api.post("/v1/tasks/replay", { ...filter, dry_run: true });
        return { ids: answer.replayed, skipped: answer.skipped.map((id) => ({ id, why: "not dead" })) };
      },
      start: (options) => api.post("/v1/tasks/replay-job", { ...filter, ...options }),
      onEnd: reload,
    });
  }

  /** Starts a bulk action on `choice`: a filter with states, or ids. */
  function change(kind, choice, what) {
    const verb = kind === "cancel" ? "Cancel" : "Run now:";
    openBulk({
      title: kind === "cancel" ? "Cancel tasks" : "Run tasks now",
      test: `dialog-${kind}-tasks`,
      what,
      verb,
      noun: "task",
      tone: kind === "cancel" ? "danger" : "primary",
      preview: async () => {
        const answer = await api.post(`/v1/tasks/${kind}-job`, { ...choice, dry_run: true });
        const note = kind === "cancel" && answer.processing > 0 ? `${number(answer.processing)} of them are running; their workers are notified.` : null;
        return { ids: answer.tasks, skipped: answer.skipped.map((id) => ({ id, why: kind === "cancel" ? "it has ended" : "it is not waiting" })), note };
      },
      start: (options) => api.post(`/v1/tasks/${kind}-job`, { ...choice, ...options }),
      onEnd: reload,
    });
  }

  function describe() {
    const parts = Object.entries(filter()).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(", ") : `“${value}”`}`);
    return parts.length === 0 ? "" : ` with ${parts.join("; ")}`;
  }

  /** The shown states that an action applies to. */
  const applicable = (possible) => (state === null ? possible : possible.filter((one) => one === state));

  function drawActions() {
    const cancelable = applicable(OPEN);
    const waiting = applicable(WAITING);
    replace(
      actions,
      actionButton({ label: "New task", test: "new-task", role: "produce", run: newTask }),
      waiting.length > 0 ? actionButton({ label: "Run all now", test: "retry-all", role: "operate", title: "Waiting tasks that match the filter below", run: () => change("retry", { ...filter(), state: waiting }, `All waiting tasks${describe()} become due.`) }) : null,
      cancelable.length > 0 ? actionButton({ label: "Cancel all", test: "cancel-all", role: "operate", tone: "danger", title: "Tasks that match the filter below and have not ended", run: () => change("cancel", { ...filter(), state: cancelable }, `All tasks in ${cancelable.join(", ")}${describe()} are canceled.`) }) : null,
      state === null || state === "DEAD" ? actionButton({ label: "Replay dead tasks", test: "replay-all", role: "operate", title: "Dead tasks that match the filter below", run: () => replay(filter(), `All dead tasks${describe()} are replayed, with fresh attempts.`) }) : null,
    );
  }

  function drawSelection(rows) {
    selectionBar.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const ids = rows.map((row) => row.id);
    replace(
      selectionBar,
      h("strong", {}, `${number(ids.length)} selected`),
      actionButton({ label: "Replay", test: "selection-replay", role: "operate", small: true, tone: "primary", run: () => replay({ ids }, `Of ${count(ids.length, "selected task")}, the dead ones are replayed.`) }),
      actionButton({ label: "Run now", test: "selection-retry", role: "operate", small: true, run: () => change("retry", { ids }, `Of ${count(ids.length, "selected task")}, the waiting ones become due.`) }),
      actionButton({ label: "Cancel", test: "selection-cancel", role: "operate", small: true, tone: "danger", run: () => change("cancel", { ids }, `Of ${count(ids.length, "selected task")}, those that have not ended are canceled.`) }),
      h("button.btn.small.ghost", { type: "button", "data-test": "selection-clear", on: { click: () => table.clearSelection() } }, "Clear"),
    );
  }

  function newTask() {
    const type = h("input", { spellcheck: "false", autocomplete: "off", value: words(filters.value("type"))[0] ?? "", "data-test": "task-type" });
    const payload = h("textarea.code", { rows: 6, spellcheck: "false", value: "{}", "data-test": "task-payload" });
    const when = h("input", { spellcheck: "false", autocomplete: "off", placeholder: "at once", "data-test": "task-in" });
    const attempts = h("input", { type: "number", min: "1", placeholder: "24", "data-test": "task-max-attempts" });
    const key = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "task-idempotency-key" });
    const ordering = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "task-ordering-key" });
    const tags = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "task-tags" });
    openDialog({
      title: "New task",
      test: "dialog-new-task",
      wide: true,
      body: [field("Type", type, "Selects the handler"), field("Payload", payload), h("div.fields", {}, field("Due in", when, "Like 5m, or empty for at once"), field("Attempts", attempts), field("Idempotency key", key, "A second task with it is not created"), field("Ordering key", ordering), field("Tags", tags, "Separated by commas"))],
      actions: [{ label: "Create task", test: "new-task-save", tone: "primary", run: async () => {
        const task = { type: type.value.trim(), payload: payload.value };
        if (when.value.trim() !== "") task.in = when.value.trim();
        if (attempts.value !== "") task.max_attempts = Number(attempts.value);
        if (key.value.trim() !== "") task.idempotency_key = key.value.trim();
        if (ordering.value.trim() !== "") task.ordering_key = ordering.value.trim();
        if (words(tags.value).length > 0) task.tags = words(tags.value);
        const created = await api.post("/v1/tasks", task);
        toast(created.is_new ? "The task is created" : "A task with this key exists already");
        await reload();
      } }],
    });
  }

  function draw() {
    shown.textContent = !loaded ? "Searching…" : `${number(tasks.length)}${next || after ? " on this page" : ""}`;
    const filtered = new URLSearchParams(location.search).size > 0;
    if (loaded && tasks.length === 0 && !next) {
      replace(place, filtered
        ? h("div.empty", { "data-test": "empty-filter" }, h("h2", {}, "No task matches"), h("p", {}, h("a", { href: "/ui/tasks", "data-test": "clear-filters" }, "Show all tasks")))
        : emptyState({
          title: "No tasks yet",
          test: "empty-tasks",
          text: "A task is a durable piece of work in the database. Create one, then run a worker for its type:",
          commands: [`postrider task create invoice.send '{"order": 7}' ${urlOption()}`, `postrider task worker --type invoice.send ${urlOption()} -- cat`],
        }));
    } else {
      if (!place.contains(table.element)) replace(place, table.element);
      table.update(tasks);
    }
    replace(
      more,
      after !== null ? h("button.btn", { type: "button", "data-test": "previous-page", on: { click: () => openPage(before[before.length - 1] ?? null, before.slice(0, -1)) } }, before.length > 0 ? "Previous page" : "First page") : null,
      next ? h("button.btn", { type: "button", "data-test": "next-page", on: { click: () => openPage(next, [...before, after]) } }, "Next page") : null,
    );
  }

  // A page of the API can be short and not the last.
  async function read() {
    const found = [];
    let cursor = after;
    for (let pages = 0; pages < SHORT_PAGES; pages++) {
      const page = await api.get("/v1/tasks", { query: { ...filter(), state, limit: PAGE - found.length, after: cursor }, signal: view.signal });
      found.push(...page.tasks);
      cursor = page.next ?? null;
      if (cursor === null || found.length >= PAGE) break;
    }
    return [found, cursor];
  }

  let lastRequest = 0;
  async function load() {
    const request = ++lastRequest;
    try {
      const [found, cursor] = await read();
      if (request !== lastRequest) return;
      tasks = found;
      next = cursor;
      loaded = true;
      replace(problem);
      draw();
    } catch (error) {
      if (!isAbort(error) && request === lastRequest) replace(problem, problemBox(error, { retry: load }));
    }
  }

  async function loadCounts() {
    try {
      counts = await api.get("/v1/tasks/counts", { query: filter(), signal: view.signal });
      drawTabs();
      drawDurations();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: loadCounts }));
    }
  }

  const reload = () => Promise.all([load(), loadCounts()]);

  drawActions();
  drawTabs();
  const loadSoon = throttled(2000, () => !view.signal.aborted && load());
  // Counting reads all tasks, so it is done less often.
  const countSoon = throttled(5000, () => !view.signal.aborted && loadCounts());
  for (const event of ["tasks", "resync"]) {
    view.onLive(event, loadSoon);
    view.onLive(event, countSoon);
  }
  await load();
  if (loaded) await loadCounts();
}
