import { api, isAbort, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { count, firstLine, number, shortId, time } from "../format.js";
import { createTable } from "../table.js";
import { actionButton, refusedPage } from "../actions.js";
import { emptyState, urlOption } from "../clipboard.js";
import { navigate, replaceQuery } from "../router.js";
import { problemBox } from "../problem_box.js";
import { openBulk } from "../bulk.js";
import { confirmDialog, field, openDialog } from "../dialogs.js";
import { STATES, isOver, progressBar, statePill } from "../task_parts.js";
import { toast } from "../toasts.js";

const PAGE = 100;
const TEXTS = [["type", "Type", "invoice.send"], ["tag", "Tag", "monthly"], ["schedule", "Schedule", "daily"], ["error", "Error has", "timeout"], ["reason", "Died by", "max_attempts"]];
const REASONS = ["max_attempts", "permanent", "lease_lost", "deadline", "retries_exhausted"];

const words = (text) => text.split(",").map((word) => word.trim()).filter((word) => word !== "");

export async function tasksPage(view) {
  view.title("Tasks");
  const refused = refusedPage("read");
  const actions = h("div.actions");
  const filters = h("div.toolbar");
  const selectionBar = h("div.selection", { hidden: true, "data-test": "selection" });
  const problem = h("div");
  const place = h("div");
  const more = h("div.more");
  const shown = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  replace(view.root, h("div.stack", { "data-test": "page-tasks" }, h("header.page-head", {}, h("div.head-line", {}, h("h1", { tabindex: "-1" }, "Tasks"), h("span.spacer"), actions)), refused ?? [filters, selectionBar, problem, place, more]));
  if (refused) return;

  const states = new Set(view.query.getAll("state").filter((state) => STATES.includes(state)));
  const inputs = {};
  let tasks = [];
  let next = null;

  const table = createTable({
    label: "Tasks",
    test: "task-table",
    rowTest: "task-row",
    key: (row) => row.id,
    open: (row) => navigate(path`/ui/tasks/${row.id}`),
    selectable: true,
    onSelect: drawSelection,
    columns: [
      { label: "State", render: (row) => [statePill(row.state), row.blocked ? h("span.pill.warn", { title: "It waits behind another task of its ordering key" }, "blocked") : null] },
      { label: "Task", class: "main-cell", render: (row) => [h("a.mono", { href: path`/ui/tasks/${row.id}` }, row.type), h("div.sub", {}, h("code", { title: row.id }, shortId(row.id)), (row.tags ?? []).map((tag) => h("span.tag", {}, tag)), row.schedule ? ` by ${row.schedule}` : null)] },
      { label: "Attempts", class: "num", render: (row) => `${row.attempt_count}/${row.max_attempts}` },
      { label: "Progress or error", class: "wide-cell", render: (row) => (row.state === "PROCESSING" && row.progress ? [progressBar(row), h("div.clip.sub", {}, row.progress.text ?? "")] : row.last_error && row.state !== "SUCCEEDED" ? h("div.clip", { title: row.last_error }, row.dead_reason ? h("span.pill.bad", {}, row.dead_reason) : null, ` ${firstLine(row.last_error)}`) : row.dead_reason ? h("span.pill.bad", {}, row.dead_reason) : "") },
      { label: "Made", class: "when", render: (row) => time(row.created_at) },
      { label: "Due or ended", class: "when", render: (row) => (row.finished_at ? time(row.finished_at) : time(row.scheduled_for)) },
    ],
  });
  view.keys.table = table;

  function query() {
    return {
      state: [...states],
      type: words(inputs.type.value),
      tag: words(inputs.tag.value),
      schedule: inputs.schedule.value.trim(),
      error: inputs.error.value.trim(),
      reason: inputs.reason.value.trim(),
    };
  }

  /** The same filter in the words of a bulk replay, which is about dead tasks only. */
  function replayFilter() {
    const { type, tag, schedule, error, reason } = query();
    const filter = {};
    if (type.length > 0) filter.type = type;
    if (tag.length > 0) filter.tag = tag;
    if (schedule !== "") filter.schedule = schedule;
    if (error !== "") filter.error = error;
    if (reason !== "") filter.reason = reason;
    return filter;
  }

  function keepAddress() {
    const address = new URLSearchParams();
    for (const [name, value] of Object.entries(query())) for (const one of Array.isArray(value) ? value : [value]) if (one !== "") address.append(name, one);
    replaceQuery(address);
  }

  function changed() {
    keepAddress();
    tasks = [];
    load();
  }

  function drawFilters() {
    const stateButtons = STATES.map((state) => {
      const button = h("button.choice", { type: "button", "aria-pressed": String(states.has(state)), "data-test": `state-${state}` }, state);
      button.addEventListener("click", () => {
        if (!states.delete(state)) states.add(state);
        button.setAttribute("aria-pressed", String(states.has(state)));
        changed();
      });
      return button;
    });
    let timer = null;
    const fields = TEXTS.map(([name, label, example]) => {
      const initial = view.query.getAll(name).join(", ");
      inputs[name] = name === "reason"
        ? h("select", { "data-test": "filter-reason", "aria-label": label }, h("option", { value: "" }, "any reason"), REASONS.map((reason) => h("option", { value: reason, selected: reason === initial }, reason)))
        : h("input", { type: "search", "aria-label": label, placeholder: `${label}, like ${example}`, value: initial, spellcheck: "false", "data-test": `filter-${name}`, "data-filter": name === "type" ? true : null });
      inputs[name].addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(changed, 300);
      });
      return inputs[name];
    });
    view.until(() => clearTimeout(timer));
    replace(filters, h("div.choices", { role: "group", "aria-label": "States" }, stateButtons), shown, h("div.filter-fields", {}, fields));
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
      onEnd: load,
    });
  }

  function describe(filter) {
    const parts = Object.entries(filter).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(", ") : `“${value}”`}`);
    return parts.length === 0 ? "Every dead task is brought back, with all its attempts before it." : `Every dead task with ${parts.join("; ")} is brought back, with all its attempts before it.`;
  }

  function drawSelection(rows) {
    selectionBar.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const ids = rows.map((row) => row.id);
    replace(
      selectionBar,
      h("strong", {}, `${number(ids.length)} selected`),
      actionButton({ label: "Replay", test: "selection-replay", role: "operate", small: true, tone: "primary", run: () => replay({ ids }, `Of the ${count(ids.length, "selected task")}, those that are dead are brought back.`) }),
      actionButton({ label: "Cancel", test: "selection-cancel", role: "operate", small: true, tone: "danger", run: () => cancelMany(ids) }),
      h("button.btn.small.ghost", { type: "button", "data-test": "selection-clear", on: { click: () => table.clearSelection() } }, "Clear"),
    );
  }

  // The API cancels one at a time; who selected a handful does not want to do that by hand.
  function cancelMany(ids) {
    let open = [];
    confirmDialog({
      title: "Cancel the selected tasks?",
      test: "dialog-cancel-tasks",
      count: async () => {
        const now = await Promise.all(ids.map((id) => api.get(path`/v1/tasks/${id}`)));
        open = now.filter((task) => !isOver(task));
        const running = open.filter((task) => task.state === "PROCESSING").length;
        return { text: `${count(open.length, "task")} will never be done${running > 0 ? `; ${number(running)} of them are being worked on and told to stop` : ""}. ${number(ids.length - open.length)} have ended and stay as they are.`, label: `Cancel ${count(open.length, "task")}`, nothing: open.length === 0 };
      },
      run: async () => {
        let done = 0;
        let failure = null;
        for (const task of open) {
          try {
            await api.post(path`/v1/tasks/${task.id}/cancel`);
            done++;
          } catch (error) {
            failure = error;
          }
        }
        toast(`${count(done, "task")} canceled`);
        table.clearSelection();
        await load();
        if (failure) throw failure;
      },
    });
  }

  function newTask() {
    const type = h("input", { spellcheck: "false", autocomplete: "off", value: words(inputs.type.value)[0] ?? "", "data-test": "task-type" });
    const payload = h("textarea.code", { rows: 6, spellcheck: "false", value: "{}", "data-test": "task-payload" });
    const when = h("input", { spellcheck: "false", autocomplete: "off", placeholder: "at once", "data-test": "task-in" });
    const attempts = h("input", { type: "number", min: "1", placeholder: "3", "data-test": "task-max-attempts" });
    const key = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "task-idempotency-key" });
    const ordering = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "task-ordering-key" });
    const tags = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "task-tags" });
    openDialog({
      title: "New task",
      test: "dialog-new-task",
      wide: true,
      body: [field("Type", type, "The handler that it is for"), field("Payload", payload), h("div.fields", {}, field("Due in", when, "Like 5m, or empty for at once"), field("Attempts", attempts), field("Idempotency key", key, "The same key makes it once"), field("Ordering key", ordering), field("Tags", tags, "With commas between them"))],
      actions: [{ label: "Make the task", test: "new-task-save", tone: "primary", run: async () => {
        const task = { type: type.value.trim(), payload: payload.value };
        if (when.value.trim() !== "") task.in = when.value.trim();
        if (attempts.value !== "") task.max_attempts = Number(attempts.value);
        if (key.value.trim() !== "") task.idempotency_key = key.value.trim();
        if (ordering.value.trim() !== "") task.ordering_key = ordering.value.trim();
        if (words(tags.value).length > 0) task.tags = words(tags.value);
        const made = await api.post("/v1/tasks", task);
        toast(made.is_new ? "The task is made" : "A task with this key was there already");
        await load();
      } }],
    });
  }

  function draw() {
    shown.textContent = `${number(tasks.length)}${next ? " loaded" : ""}`;
    const filtered = new URLSearchParams(location.search).size > 0;
    if (tasks.length === 0 && !next) {
      replace(place, filtered
        ? h("div.empty", { "data-test": "empty-filter" }, h("h2", {}, "No task matches"), h("p", {}, h("a", { href: "/ui/tasks", "data-test": "clear-filters" }, "Show all tasks")))
        : emptyState({
          title: "No tasks yet",
          test: "empty-tasks",
          text: "A task is work that the database knows of from its creation to its end. Make one, then run a worker for its type:",
          commands: [`postrider task create invoice.send '{"order": 7}' ${urlOption()}`, `postrider task worker --type invoice.send ${urlOption()} -- cat`],
        }));
    } else {
      if (!place.contains(table.element)) replace(place, table.element);
      table.update(tasks);
    }
    replace(more, next ? h("button.btn", { type: "button", "data-test": "load-more", on: { click: loadMore } }, "Load more") : null);
  }

  // A page may hold less than was asked for and still not be the last.
  async function read(after, enough) {
    const found = [];
    let cursor = after;
    let pages = 0;
    do {
      const page = await api.get("/v1/tasks", { query: { ...query(), limit: Math.min(1000, enough), after: cursor }, signal: view.signal });
      found.push(...page.tasks);
      cursor = page.next ?? null;
    } while (cursor && found.length < enough && ++pages < 20);
    return [found, cursor];
  }

  let asked = 0;
  async function load() {
    const mine = ++asked;
    try {
      const [found, cursor] = await read(undefined, Math.min(1000, Math.max(PAGE, tasks.length)));
      if (mine !== asked) return;
      tasks = found;
      next = cursor;
      replace(problem);
      draw();
    } catch (error) {
      if (!isAbort(error) && mine === asked) replace(problem, problemBox(error, { retry: load }));
    }
  }

  async function loadMore() {
    const mine = ++asked;
    try {
      const [found, cursor] = await read(next, PAGE);
      if (mine !== asked) return;
      tasks = [...tasks, ...found];
      next = cursor;
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error));
    }
  }

  replace(
    actions,
    actionButton({ label: "New task", test: "new-task", role: "produce", run: newTask }),
    actionButton({ label: "Replay dead tasks", test: "replay-all", role: "operate", title: "Those that the filter below leaves", run: () => replay(replayFilter(), describe(replayFilter())) }),
  );
  drawFilters();
  const loadSoon = throttled(2000, () => !view.signal.aborted && load());
  view.onLive("tasks", loadSoon);
  view.onLive("resync", loadSoon);
  await load();
}
