import { api, isAbort, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { number, shortId, time } from "../format.js";
import { createTable } from "../table.js";
import { actionButton, refusedPage } from "../actions.js";
import { confirmDialog, field, openDialog } from "../dialogs.js";
import { emptyState, urlOption } from "../clipboard.js";
import { problemBox } from "../problem_box.js";
import { replaceQuery } from "../router.js";
import { toast } from "../toasts.js";

const MISSED = { one: "one: a single task for all of them", skip: "skip: no task", all: "all: a task for each of them" };
export const timing = (schedule) => (schedule.every ? `every ${schedule.every}` : `${schedule.cron}`);

export async function schedulesPage(view) {
  view.title("Schedules");
  const refused = refusedPage("read");
  const problem = h("div");
  const place = h("div");
  const filterInput = h("input.filter", { type: "search", placeholder: "Filter by name or type  /", "aria-label": "Filter schedules", value: view.query.get("name") ?? "", "data-filter": true, "data-test": "filter" });
  const shown = h("span.muted", { "aria-live": "polite" });
  const toolbar = h("div.toolbar", {}, filterInput, shown);
  replace(view.root, h("div.stack", { "data-test": "page-schedules" }, h("header.page-head", {}, h("div.head-line", {}, h("h1", { tabindex: "-1" }, "Schedules"), h("span.spacer"), actionButton({ label: "New schedule", test: "new-schedule", role: "operate", tone: "primary", run: () => edit(null) }))), refused ?? [toolbar, problem, place]));
  if (refused) return;
  let schedules = [];

  const table = createTable({
    label: "Schedules",
    test: "schedule-table",
    rowTest: "schedule-row",
    key: (row) => row.name,
    open: (row) => edit(row),
    columns: [
      { label: "Schedule", class: "main-cell", sort: (row) => row.name, render: (row) => [h("a", { href: path`/ui/schedules/${row.name}`, "data-test": "schedule-link" }, h("strong", {}, row.name)), row.paused ? h("span.pill.warn", {}, "paused") : null, h("div.sub", {}, "creates ", h("a.mono", { href: `/ui/tasks?schedule=${encodeURIComponent(row.name)}`, title: "Its tasks" }, row.type))] },
      { label: "When", render: (row) => [h("code", {}, timing(row)), row.cron ? h("div.sub", {}, row.time_zone ?? "UTC") : null] },
      { label: "Next run", class: "when", sort: (row) => row.next_run_at, render: (row) => (row.paused ? h("span.muted", {}, "–") : time(row.next_run_at)) },
      { label: "Last run", class: "when", render: (row) => (row.last_task ? h("a", { href: path`/ui/tasks/${row.last_task}`, "data-test": "last-task" }, time(row.last_run_at, "its task")) : time(row.last_run_at, "never")) },
      { label: "Missed", render: (row) => h("span", { title: MISSED[row.missed] }, row.missed ?? "one") },
      { label: "Actions", class: "actions-cell", render: (row) => h("div.actions", {},
        row.paused ? actionButton({ label: "Resume", test: "schedule-resume", role: "operate", small: true, run: () => setPaused(row, false) }) : actionButton({ label: "Pause", test: "schedule-pause", role: "operate", small: true, run: () => setPaused(row, true) }),
        actionButton({ label: "Trigger", test: "schedule-trigger", role: "operate", small: true, title: "Create a task now", run: () => trigger(row) }),
        actionButton({ label: "Edit", test: "schedule-edit", role: "operate", small: true, run: () => edit(row) }),
        actionButton({ label: "Delete", test: "schedule-delete", role: "operate", small: true, tone: "danger", run: () => remove(row) })) },
    ],
  });
  view.keys.table = table;

  async function setPaused(row, paused) {
    const after = await api.post(path`/v1/schedules/${row.name}/${paused ? "pause" : "resume"}`);
    toast(paused ? `${row.name} is paused` : `${row.name} is resumed`);
    schedules = schedules.map((one) => (one.name === after.name ? after : one));
    draw();
  }

  async function trigger(row) {
    const created = await api.post(path`/v1/schedules/${row.name}/trigger`);
    toast([`Task of type ${row.type} created: `, h("a.mono", { href: path`/ui/tasks/${created.id}`, "data-test": "triggered-task" }, shortId(created.id))]);
    await load();
  }

  function remove(row) {
    confirmDialog({
      title: `Delete the schedule ${row.name}?`,
      test: "dialog-delete-schedule",
      count: async () => {
        const now = await api.get(path`/v1/schedules/${row.name}`);
        const waiting = await api.get("/v1/tasks", { query: { schedule: row.name, state: ["PENDING", "ENQUEUED", "PROCESSING"], limit: 1000 } });
        return { text: `1 schedule is removed and creates no more tasks (${timing(now)}). Its tasks stay: ${number(waiting.tasks.length)}${waiting.next ? " or more" : ""} of them have not ended.`, label: "Delete 1 schedule" };
      },
      run: () => api.remove(path`/v1/schedules/${row.name}`),
      onDone: () => {
        toast(`${row.name} is deleted`);
        load();
      },
    });
  }

  function edit(old) {
    const text = (test, value, attributes = {}) => h("input", { spellcheck: "false", autocomplete: "off", value: value ?? "", "data-test": test, ...attributes });
    const name = text("schedule-name", old?.name, { readonly: old !== null });
    const type = text("schedule-type", old?.type);
    const cron = text("schedule-cron", old ? old.cron : "0 9 * * mon-fri");
    const zone = text("schedule-time-zone", old?.time_zone ?? "", { placeholder: "UTC" });
    const every = text("schedule-every", old?.every, { placeholder: "instead of cron, like 5m" });
    const payload = h("textarea.code", { rows: 5, spellcheck: "false", value: old?.payload ?? "{}", "data-test": "schedule-payload" });
    const missed = h("select", { "data-test": "schedule-missed" }, Object.entries(MISSED).map(([value, label]) => h("option", { value, selected: value === (old?.missed ?? "one") }, label)));
    const attempts = text("schedule-max-attempts", old?.max_attempts, { type: "number", min: "1" });
    const priority = text("schedule-priority", old?.priority, { type: "number", min: "0", max: "9" });
    const ordering = text("schedule-ordering-key", old?.ordering_key);
    const deadline = text("schedule-deadline-in", old?.deadline_in);
    const tags = text("schedule-tags", old?.tags?.join(", "));
    openDialog({
      title: old ? `Edit ${old.name}` : "New schedule",
      test: "dialog-schedule",
      wide: true,
      body: [
        h("div.fields", {}, field("Name", name), field("Task type", type)),
        h("div.fields", {}, field("Cron", cron, "Minute, hour, day, month, weekday; six fields begin with seconds"), field("Time zone", zone, "Like Europe/Berlin"), field("Every", every, "Instead of cron, like 30s or 1h30m")),
        field("Payload", payload),
        field("Missed ticks", missed),
        h("div.fields", {}, field("Attempts", attempts), field("Priority", priority, "0 to 9, default 4"), field("Ordering key", ordering, "One runs at a time"), field("Deadline", deadline, "After creation, like 1h"), field("Tags", tags, "Separated by commas")),
      ],
      actions: [{ label: old ? "Save" : "Create schedule", test: "schedule-save", tone: "primary", run: async () => {
        if (name.value.trim() === "") throw new Error("The name is missing.");
        if (every.value.trim() !== "" && cron.value.trim() !== "") throw new Error("Cron and interval exclude each other; clear one of them.");
        const wanted = { type: type.value.trim(), payload: payload.value, missed: missed.value };
        if (every.value.trim() !== "") wanted.every = every.value.trim();
        else {
          wanted.cron = cron.value.trim();
          if (zone.value.trim() !== "") wanted.time_zone = zone.value.trim();
        }
        if (attempts.value !== "") wanted.max_attempts = Number(attempts.value);
        if (priority.value !== "") wanted.priority = Number(priority.value);
        if (ordering.value.trim() !== "") wanted.ordering_key = ordering.value.trim();
        if (deadline.value.trim() !== "") wanted.deadline_in = deadline.value.trim();
        if (old?.retry_strategy) wanted.retry_strategy = old.retry_strategy;
        const list = tags.value.split(",").map((tag) => tag.trim()).filter((tag) => tag !== "");
        if (list.length > 0) wanted.tags = list;
        await api.put(path`/v1/schedules/${name.value.trim()}`, wanted);
        toast(old ? "Saved" : "The schedule is created");
        await load();
      } }],
    });
  }

  function draw() {
    if (schedules.length === 0) {
      toolbar.hidden = true;
      replace(place, emptyState({
        title: "No schedules yet",
        test: "empty-schedules",
        text: "A schedule creates tasks by a cron expression in a time zone, or at an interval:",
        commands: [`postrider schedule create reminders --type remind '{}' --cron '0 9 * * mon-fri' --time-zone Europe/Berlin ${urlOption()}`],
      }));
      return;
    }
    toolbar.hidden = false;
    if (!place.contains(table.element)) replace(place, table.element);
    const wanted = filterInput.value.trim().toLowerCase();
    const list = schedules.filter((schedule) => `${schedule.name}\n${schedule.type}`.toLowerCase().includes(wanted));
    table.update(list);
    shown.textContent = wanted === "" ? number(list.length) : `${number(list.length)} of ${number(schedules.length)}`;
  }

  async function load() {
    try {
      schedules = (await api.get("/v1/schedules", { signal: view.signal })).schedules;
      replace(problem);
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: load }));
    }
  }

  filterInput.addEventListener("input", () => {
    replaceQuery(new URLSearchParams(filterInput.value === "" ? {} : { name: filterInput.value }));
    draw();
  });
  const loadSoon = throttled(2000, () => !view.signal.aborted && load());
  view.onLive("schedules", loadSoon);
  view.onLive("resync", loadSoon);
  await load();
}
