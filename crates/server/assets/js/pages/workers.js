import { api, isAbort, path } from "../api.js";
import { h, replace } from "../elements.js";
import { duration, number, time } from "../format.js";
import { createTable } from "../table.js";
import { refusedPage } from "../actions.js";
import { emptyState, urlOption } from "../clipboard.js";
import { problemBox } from "../problem_box.js";

const QUIET = 60; // seconds

export async function workersPage(view) {
  view.title("Workers");
  const refused = refusedPage("read");
  const problem = h("div");
  const place = h("div");
  const filterInput = h("input.filter", { type: "search", placeholder: "Filter by name, queue or address  /", "aria-label": "Filter workers", "data-filter": true, "data-test": "filter" });
  const shown = h("span.muted", { "aria-live": "polite" });
  const toolbar = h("div.toolbar", {}, filterInput, shown);
  replace(view.root, h("div.stack", { "data-test": "page-workers" }, h("header.page-head", {}, h("h1", { tabindex: "-1" }, "Workers"), h("p.muted", {}, "Workers that receive from this server, and task workers. Others that use the store directly are not listed.")), refused ?? [toolbar, problem, place]));
  if (refused) return;
  let workers = [];
  const status = (row) => (row.in_flight > 0 ? ["good", "working"] : row.waiting ? ["info", "waiting"] : row.idle_seconds > QUIET ? ["plain", "quiet"] : ["info", "idle"]);
  const table = createTable({
    label: "Workers",
    test: "worker-table",
    rowTest: "worker-row",
    key: (row) => `${row.kind} ${row.name} ${row.address ?? ""}`,
    columns: [
      { label: "Worker", class: "main-cell", sort: (row) => row.name, render: (row) => [h("span.mono", {}, row.name), h("div.sub", {}, row.kind === "task" ? "tasks" : "messages", row.address ? ` from ${row.address}` : null)] },
      { label: "State", render: (row) => h(`span.pill.${status(row)[0]}`, {}, status(row)[1]) },
      { label: "In flight", class: "num", sort: (row) => row.in_flight, render: (row) => number(row.in_flight) },
      { label: "Queues", class: "wide-cell", render: (row) => (row.queues ?? []).map((queue, i) => [i > 0 ? ", " : null, h("a.mono", { href: path`/ui/queues/${queue}` }, queue)]) },
      { label: "Idle", class: "num", sort: (row) => row.idle_seconds, render: (row) => duration(Math.floor(row.idle_seconds)) },
      { label: "Last seen", class: "when", sort: (row) => row.last_seen_at, render: (row) => time(row.last_seen_at) },
      { label: "Since", class: "when", sort: (row) => row.first_seen_at, render: (row) => time(row.first_seen_at) },
    ],
  });
  view.keys.table = table;

  function draw() {
    toolbar.hidden = workers.length === 0;
    if (workers.length === 0) {
      replace(place, emptyState({
        title: "No workers yet",
        test: "empty-workers",
        text: "A worker receives messages of a queue, or tasks of a type, and runs a command for each:",
        commands: [`postrider work orders ${urlOption()} -- sh -c 'echo "got $(cat)"'`, `postrider task worker --type invoice.send ${urlOption()} -- cat`],
      }));
      return;
    }
    if (!place.contains(table.element)) replace(place, table.element);
    const wanted = filterInput.value.trim().toLowerCase();
    const list = workers.filter((worker) => [worker.name, worker.address, ...(worker.queues ?? [])].join("\n").toLowerCase().includes(wanted));
    table.update(list);
    shown.textContent = wanted === "" ? number(list.length) : `${number(list.length)} of ${number(workers.length)}`;
  }

  async function load() {
    try {
      workers = (await api.get("/v1/workers", { signal: view.signal })).workers;
      replace(problem);
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: load }));
    }
  }
  filterInput.addEventListener("input", draw);
  // There are no events for workers.
  view.every(5000, load);
  await load();
}
