import { api, isAbort, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { absolute, duration, number, shortId, time } from "../format.js";
import { errorLine } from "../error_summary.js";
import { createTable } from "../table.js";
import { timesList } from "../schedule_times.js";
import { messageFacts } from "../message_detail.js";
import { payloadViewer } from "../payload.js";
import { statePill } from "../task_parts.js";
import { actionButton } from "../actions.js";
import { navigate } from "../router.js";
import { problemBox } from "../problem_box.js";
import { timing } from "./schedules.js";
import { toast } from "../toasts.js";

const RUNS = 50; // rows
const SHORT_PAGES = 20; // requests for them: each reads a bounded number of tasks

/** A schedule: its next ticks and its runs. */
export async function schedulePage(view) {
  const { name } = view.params;
  view.title(`Schedule ${name}`);
  const pills = h("span.pills");
  const facts = h("section.card", {});
  const next = h("section.card", { "data-test": "schedule-next" }, h("h2", {}, "Next runs"));
  const nextPlace = h("div");
  next.append(nextPlace);
  const problem = h("div");
  const runsPlace = h("div");
  const actions = h("div.actions", {}, actionButton({ label: "Trigger", test: "schedule-trigger", role: "operate", title: "Create a task now", run: trigger }));
  replace(
    view.root,
    h(
      "div.stack",
      { "data-test": "page-schedule" },
      h("header.page-head", {}, h("p.crumbs", {}, h("a", { href: "/ui/schedules" }, "Schedules"), " / "), h("div.head-line", {}, h("h1.mono", { tabindex: "-1" }, name), pills, h("span.spacer"), actions)),
      problem,
      h("div.columns", {}, next, facts),
      h("section", { "data-test": "schedule-runs" }, h("div.section-head", {}, h("h2", {}, "Runs"), h("a", { href: `/ui/tasks?schedule=${encodeURIComponent(name)}` }, "All its tasks")), runsPlace),
    ),
  );

  const table = createTable({
    label: "Runs",
    test: "run-table",
    rowTest: "run-row",
    key: (row) => row.id,
    open: (row) => navigate(path`/ui/tasks/${row.id}`),
    columns: [
      { label: "Created", class: "when", render: (row) => time(row.created_at) },
      { label: "State", render: (row) => statePill(row.state) },
      { label: "Task", class: "main-cell", render: (row) => [h("a.mono", { href: path`/ui/tasks/${row.id}`, title: row.id }, shortId(row.id)), row.last_error && row.state !== "SUCCEEDED" ? h("div.clip.sub", { title: row.last_error }, errorLine(row.last_error)) : null] },
      { label: "Attempts", class: "num", render: (row) => `${row.attempt_count}/${row.max_attempts}` },
      { label: "Took", class: "num", title: "The last attempt", render: (row) => (row.started_at && row.finished_at ? h("span", { title: `${absolute(row.started_at)} to ${absolute(row.finished_at)}` }, duration((Date.parse(row.finished_at) - Date.parse(row.started_at)) / 1000)) : "") },
      { label: "Ended", class: "when", render: (row) => time(row.finished_at) },
    ],
  });
  view.keys.table = table;

  async function trigger() {
    const created = await api.post(path`/v1/schedules/${name}/trigger`);
    toast(["Task created: ", h("a.mono", { href: path`/ui/tasks/${created.id}`, "data-test": "triggered-task" }, shortId(created.id))]);
    await load();
  }

  async function runs() {
    const found = [];
    let after;
    for (let pages = 0; pages < SHORT_PAGES; pages++) {
      const page = await api.get("/v1/tasks", { query: { schedule: name, limit: RUNS - found.length, after }, signal: view.signal });
      found.push(...page.tasks);
      after = page.next;
      if (!after || found.length >= RUNS) break;
    }
    return found;
  }

  async function load() {
    try {
      const [schedule, times, made] = await Promise.all([
        api.get(path`/v1/schedules/${name}`, { signal: view.signal }),
        api.get(path`/v1/schedules/${name}/times`, { query: { limit: 5 }, signal: view.signal }),
        runs(),
      ]);
      replace(problem);
      replace(pills, schedule.paused ? h("span.pill.warn", {}, "paused") : null);
      replace(nextPlace, timesList(times));
      replace(
        facts,
        h("h2", {}, "Facts"),
        messageFacts([
          ["When", h("code", {}, timing(schedule))],
          ["Time zone", schedule.cron ? (schedule.time_zone ?? "UTC") : null],
          ["Task type", h("a.mono", { href: `/ui/tasks?type=${encodeURIComponent(schedule.type)}` }, schedule.type)],
          ["Missed ticks", schedule.missed],
          ["Last run", schedule.last_run_at ? time(schedule.last_run_at) : "never"],
          ["Attempts", schedule.max_attempts ? number(schedule.max_attempts) : null],
          ["Ordering key", schedule.ordering_key],
          ["Deadline", schedule.deadline_in],
          ["Tags", schedule.tags?.length > 0 ? schedule.tags.join(", ") : null],
        ]),
        h("h3", {}, "Payload"),
        payloadViewer({ text: schedule.payload, base64: null }, { label: "Payload" }),
      );
      if (made.length === 0) replace(runsPlace, h("p.muted", { "data-test": "no-runs" }, "It has no tasks, or they have been removed after their retention."));
      else {
        if (!runsPlace.contains(table.element)) replace(runsPlace, table.element);
        table.update(made);
      }
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: load }));
    }
  }

  const loadSoon = throttled(2000, () => !view.signal.aborted && load());
  for (const event of ["schedules", "tasks", "resync"]) view.onLive(event, loadSoon);
  await load();
}
