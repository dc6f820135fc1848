import { api, isAbort } from "../api.js";
import { h, replace } from "../elements.js";
import { number, time } from "../format.js";
import { createTable } from "../table.js";
import { refusedPage } from "../actions.js";
import { emptyState } from "../clipboard.js";
import { problemBox } from "../problem_box.js";

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const pairs = (detail) => Object.entries(detail).filter(([, value]) => value !== null).map(([name, value]) => `${name}: ${asText(value)}`);

/** The details of an action and its outcome. */
function detailText({ outcome, ...details } = {}) {
  const result = outcome === null || typeof outcome !== "object" ? (outcome === undefined ? [] : [asText(outcome)]) : pairs(outcome);
  return [pairs(details).join(", "), result.join(", ")].filter((part) => part !== "").join(" → ");
}

export async function auditPage(view) {
  view.title("Audit");
  const refused = refusedPage("operate");
  const problem = h("div");
  const place = h("div");
  const more = h("div.more");
  const filterInput = h("input.filter", { type: "search", placeholder: "Filter by who, action, target  /", "aria-label": "Filter entries", "data-filter": true, "data-test": "filter" });
  const shown = h("span.muted", { "aria-live": "polite" });
  replace(view.root, h("div.stack", { "data-test": "page-audit" }, h("header.page-head", {}, h("h1", { tabindex: "-1" }, "Audit"), h("p.muted", {}, "Actions that changed or removed something, newest first.")), refused ?? [h("div.toolbar", {}, filterInput, shown), problem, place, more]));
  if (refused) return;
  let entries = [];
  let next = null;
  const table = createTable({
    label: "Audit entries",
    test: "audit-table",
    rowTest: "audit-row",
    key: (row) => row.id,
    columns: [
      { label: "When", class: "when", render: (row) => time(row.at) },
      { label: "Who", render: (row) => row.who ?? "–" },
      { label: "Action", render: (row) => h("span.pill.plain", {}, row.action) },
      { label: "Target", class: "main-cell", render: (row) => h("span.mono", {}, row.target ?? "") },
      { label: "Detail", class: "wide-cell", render: (row) => h("div.clip", { title: detailText(row.detail) }, detailText(row.detail)) },
    ],
  });
  view.keys.table = table;

  function draw() {
    if (entries.length === 0) {
      replace(place, emptyState({ title: "No entries yet", test: "empty-audit", text: "Pausing, purging, deleting, redriving, editing, replaying and creating tokens are recorded here." }));
      return;
    }
    if (!place.contains(table.element)) replace(place, table.element);
    const wanted = filterInput.value.trim().toLowerCase();
    const list = entries.filter((entry) => `${entry.who}\n${entry.action}\n${entry.target}\n${detailText(entry.detail)}`.toLowerCase().includes(wanted));
    table.update(list);
    shown.textContent = wanted === "" ? `${number(list.length)}${next ? " loaded" : ""}` : `${number(list.length)} of ${number(entries.length)}`;
    replace(more, next ? h("button.btn", { type: "button", "data-test": "load-more", on: { click: () => load(next) } }, "Load more") : null);
  }

  async function load(after) {
    try {
      const page = await api.get("/v1/audit", { query: { limit: 100, after }, signal: view.signal });
      if (after) entries = [...entries, ...page.entries];
      else {
        // New entries are put in front; loaded older pages are kept.
        const known = new Set(page.entries.map((entry) => entry.id));
        const older = entries.filter((entry) => !known.has(entry.id));
        if (older.length === 0) next = page.next;
        entries = [...page.entries, ...older];
      }
      if (after) next = page.next;
      replace(problem);
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: () => load() }));
    }
  }
  filterInput.addEventListener("input", draw);
  view.every(10_000, () => load());
  await load();
}
