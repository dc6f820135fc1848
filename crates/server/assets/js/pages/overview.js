import { api, path } from "../api.js";
import { h, reconcile, replace, throttled } from "../elements.js";
import { ageText, count, duration, number, statText, statTitle } from "../format.js";
import { DEPTHS, recentRate, total, watchHistory } from "../history.js";
import { lineChart, rateText, spark } from "../charts.js";
import { troubles, weight } from "../queue_health.js";
import { emptyState, urlOption } from "../clipboard.js";
import { navigate, pushQuery, replaceQuery } from "../router.js";
import { queues } from "../queues.js";
import { createTable } from "../table.js";
import { actionButton } from "../actions.js";
import { field, openDialog } from "../dialogs.js";
import { tile } from "../queue_head.js";
import { refusal } from "../session.js";

const MAX_CARDS = 9;
const PAGE = 200; // rows
const DEPTH_LINES = [["ready", "ready"], ["in_flight", "in flight"], ["delayed", "delayed"], ["dead", "dead"]];
const RATE_LINES = [["sent", "sent"], ["acked", "acked"], ["retried", "retried"], ["dead_lettered", "dead-lettered"]];

export const depthSeries = (values, stats) => DEPTH_LINES.map(([name, label]) => ({ name: label, tone: name, values: values(name), last: stats(name) }));
export const rateSeries = (values, interval) => RATE_LINES.map(([name, label]) => ({ name: label, tone: name, values: values(name), last: rateText(recentRate(values(name), interval)) }));

/** A sum over queues, marked if a part of it is approximate or unknown. */
function sum(all, name) {
  let value = 0;
  let exact = true;
  for (const stats of all) {
    if (stats[name] === null || stats[name] === undefined) exact = false;
    else value += stats[name];
    if (stats.approximate?.includes(name)) exact = false;
  }
  return { value, text: (exact ? "" : "~") + number(value), exact };
}

export async function overviewPage(view) {
  view.title("Overview");
  const refused = refusal("read");
  const tiles = h("div.tiles");
  const attention = h("section.attention", { "aria-label": "Needs attention", "data-test": "attention" });
  const depth = lineChart({ title: "Messages", test: "chart-depth" });
  const rates = lineChart({ title: "Throughput of this server", test: "chart-throughput", rate: true });
  const charts = h("div.charts", {}, depth.element, rates.element);
  const listPlace = h("section", { "data-test": "queue-section" });
  const body = h("div.stack", {}, tiles, attention, charts, listPlace);
  replace(
    view.root,
    h("div.stack", { "data-test": "page-overview" }, h("header.page-head", {}, h("div.head-line", {}, h("h1", { tabindex: "-1" }, "Overview"), h("span.spacer"), actionButton({ label: "New queue", test: "new-queue", role: "produce", run: newQueue }))), body),
  );
  if (refused) {
    replace(body, h("div.empty", { "data-test": "refused" }, h("h2", {}, "Not allowed for this token"), h("p", {}, refused)));
    return;
  }

  let past = null;
  let deadTasks = null;
  let showAll = false;
  let page = 0;
  let filter = view.query.get("q") ?? "";

  const filterInput = h("input.filter", { type: "search", placeholder: "Filter queues  /", "aria-label": "Filter queues by name", value: filter, "data-filter": true, "data-test": "filter" });
  const shownCount = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const more = h("div.more");
  const table = createTable({
    label: "Queues",
    test: "queue-table",
    rowTest: "queue-row",
    key: (row) => row.queue,
    open: (row) => navigate(path`/ui/queues/${row.queue}`),
    onSort: (next) => {
      order = next;
      page = 0;
      drawList();
    },
    columns: [
      { label: "Queue", class: "main-cell", sort: (row) => row.queue, render: (row) => [h("a.mono", { href: path`/ui/queues/${row.queue}` }, row.queue), row.paused ? h("span.pill.warn", {}, "paused") : null] },
      numberColumn("Ready", "ready"),
      numberColumn("In flight", "in_flight"),
      numberColumn("Delayed", "delayed"),
      { ...numberColumn("Dead", "dead"), render: (row) => (row.dead > 0 ? h("a.bad-text", { href: path`/ui/queues/${row.queue}/dead-letters`, title: statTitle(row, "dead") }, statText(row, "dead")) : h("span", { title: statTitle(row, "dead"), class: row.dead === 0 ? "zero" : null }, statText(row, "dead"))) },
      { label: "Oldest", class: "num", title: "Age of the oldest ready message", sort: (row) => row.oldest_age_seconds, render: (row) => ageText(row) },
      { label: "Messages, 1h", class: "spark-cell", render: (row) => sparkOf(row, "depth") },
      { label: "Throughput, 1h", class: "spark-cell", render: (row) => sparkOf(row, "rate") },
    ],
  });
  view.keys.table = table;

  function numberColumn(label, name) {
    return { label, class: "num", sort: (row) => row[name], render: (row) => h("span", { title: statTitle(row, name), class: row[name] === 0 ? "zero" : null }, statText(row, name)) };
  }

  function sparkOf(row, kind) {
    const one = past?.series(row.queue);
    if (!one) return "";
    // Without dead letters there is no red line.
    const dead = one.dead.some((value) => value > 0) ? [{ tone: "dead", values: one.dead }] : [];
    if (kind === "depth") return spark([{ tone: "ready", values: one.ready }, ...dead], { label: `${row.queue}: ready and dead messages over the last hour` });
    return spark([{ tone: "acked", values: one.acked, mean: true }, { tone: "sent", values: one.sent, mean: true }], { label: `${row.queue}: messages sent and acked over the last hour` });
  }

  // Sparklines change only with the history; `drawn` then makes all rows differ.
  let drawn = 0;
  const rowOf = (stats) => ({ ...stats, drawn });

  // Sorts all queues, not only those of the page.
  let order = null;
  function sorted(list) {
    if (order === null) return list;
    const value = order.column.sort;
    const sign = order.falling ? -1 : 1;
    return [...list].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === y) return a.queue < b.queue ? -1 : 1;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * sign;
    });
  }

  function drawList() {
    if (!queues.loaded) return;
    if (queues.all.size === 0) {
      replace(listPlace, emptyState({
        title: "No queues yet",
        test: "empty-queues",
        text: "A queue is created by the first send. Send a message, then handle it:",
        commands: [`postrider send orders '{"item":"tea"}' ${urlOption()}`, `postrider work orders ${urlOption()} -- sh -c 'echo "got $(cat)"'`],
      }));
      return;
    }
    if (!listPlace.contains(table.element)) replace(listPlace, h("div.section-head", {}, h("h2", {}, "Queues"), filterInput, shownCount), table.element, more);
    const wanted = filter.trim().toLowerCase();
    const interval = past?.interval ?? 5;
    const list = [...queues.all.values()]
      .filter((stats) => stats.queue.toLowerCase().includes(wanted))
      .map((stats) => [stats, weight(troubles(stats, past?.series(stats.queue), interval))])
      .sort(([a, x], [b, y]) => y - x || (a.queue < b.queue ? -1 : 1))
      .map(([stats]) => rowOf(stats));
    const rows = sorted(list).slice(page * PAGE, (page + 1) * PAGE);
    table.update(rows);
    shownCount.textContent = [wanted === "" ? number(list.length) : `${number(list.length)} of ${number(queues.all.size)}`, rows.length < list.length ? `${number(page * PAGE + 1)} to ${number(page * PAGE + rows.length)} shown` : null].filter(Boolean).join(", ");
    const openPage = (by) => {
      page += by;
      drawList();
      listPlace.scrollIntoView({ block: "start" });
    };
    replace(
      more,
      page > 0 ? h("button.btn", { type: "button", "data-test": "previous-page", on: { click: () => openPage(-1) } }, "Previous page") : null,
      (page + 1) * PAGE < list.length ? h("button.btn", { type: "button", "data-test": "next-page", on: { click: () => openPage(1) } }, "Next page") : null,
    );
  }

  function drawTiles() {
    const all = [...queues.all.values()];
    const [ready, inFlight, delayed, dead] = DEPTHS.map((name) => sum(all, name));
    const oldest = all.reduce((max, stats) => (stats.oldest_age_seconds > (max?.oldest_age_seconds ?? -1) ? stats : max), null);
    const paused = all.filter((stats) => stats.paused).length;
    const inexact = (one) => (one.exact ? null : "Approximate or unknown for some queues");
    const acked = past ? recentRate(total(past, "acked"), past.interval) : null;
    reconcile(tiles, [
      tile("Ready", ready.text, { test: "total-ready", title: inexact(ready) }),
      tile("In flight", inFlight.text, { test: "total-in-flight", title: inexact(inFlight) }),
      tile("Delayed", delayed.text, { test: "total-delayed", title: inexact(delayed) }),
      tile("Dead", dead.text, { test: "total-dead", tone: dead.value > 0 ? "bad" : null, title: inexact(dead) }),
      tile("Oldest waiting", oldest?.oldest_age_seconds != null ? duration(oldest.oldest_age_seconds) : "–", { test: "total-oldest", note: oldest?.oldest_age_seconds != null ? oldest.queue : null, href: oldest?.oldest_age_seconds != null ? path`/ui/queues/${oldest.queue}` : null }),
      tile("Acked", acked === null ? "–" : rateText(acked), { test: "total-acked", note: "last minute" }),
      tile("Queues", number(all.length), { test: "total-queues", note: paused > 0 ? `${number(paused)} paused` : null }),
    ]);
  }

  function drawAttention() {
    const interval = past?.interval ?? 5;
    const found = [...queues.all.values()].map((stats) => ({ stats, list: troubles(stats, past?.series(stats.queue), interval) })).filter(({ list }) => list.length > 0);
    found.sort((a, b) => weight(b.list) - weight(a.list) || (a.stats.queue < b.stats.queue ? -1 : 1));
    const cards = found.slice(0, showAll ? PAGE : MAX_CARDS).map(({ stats, list }) =>
      h("article.trouble", { "data-test": "problem-queue", "data-queue": stats.queue, "data-tone": list.some((one) => one.tone === "bad") ? "bad" : "warn" }, h("h3.mono", {}, h("a", { href: path`/ui/queues/${stats.queue}` }, stats.queue)), h("ul", {}, list.map((one) => h("li", {}, h("a", { href: one.href, "data-test": `trouble-${one.kind}` }, one.text))))),
    );
    if (deadTasks > 0) cards.unshift(h("article.trouble", { "data-test": "problem-tasks", "data-tone": "bad" }, h("h3", {}, "Tasks"), h("ul", {}, h("li", {}, h("a", { href: "/ui/tasks?state=DEAD" }, `${deadTasks === 100 ? "100 or more" : number(deadTasks)} dead ${deadTasks === 1 ? "task" : "tasks"}`)))));
    if (!queues.loaded || queues.all.size === 0) return replace(attention, cards.length > 0 ? h("div.troubles", {}, cards) : null);
    replace(
      attention,
      h("div.section-head", {}, h("h2", {}, "Needs attention"), h("span.muted", { "data-test": "attention-count" }, [found.length > 0 ? count(found.length, "queue") : null, deadTasks > 0 ? "tasks" : null].filter(Boolean).join(" and "))),
      cards.length === 0
        ? h("p.calm", { "data-test": "all-well" }, h("span.dot.good", { "aria-hidden": "true" }), "No problems: no dead letters, no paused queues, no old messages.")
        : h("div.troubles", {}, cards),
      found.length > MAX_CARDS && !showAll
        ? h("button.btn.small", { type: "button", "data-test": "show-all-problems", on: { click: () => {
          showAll = true;
          drawAttention();
        } } }, `Show all ${number(found.length)}`)
        : null,
    );
  }

  function drawCharts() {
    if (past === null) return;
    charts.hidden = queues.loaded && queues.all.size === 0;
    const all = [...queues.all.values()];
    const live = (name, values) => [...values, queues.loaded ? sum(all, name).value : null];
    depth.update({ interval: past.interval, series: depthSeries((name) => live(name, total(past, name)), (name) => sum(all, name).text) });
    rates.update({ interval: past.interval, series: rateSeries((name) => total(past, name), past.interval) });
  }

  async function loadDeadTasks() {
    try {
      deadTasks = (await api.get("/v1/tasks", { query: { state: "DEAD", limit: 100 }, signal: view.signal })).tasks.length;
    } catch {
      deadTasks = null; // not shown
    }
    if (!view.signal.aborted) drawAttention();
  }

  function drawAll() {
    drawTiles();
    drawAttention();
    drawCharts();
    drawList();
  }

  const drawSoon = throttled(1000, () => {
    if (view.signal.aborted) return;
    drawTiles();
    drawCharts();
  });
  // Less often, so that links do not move under the pointer.
  const drawAttentionSoon = throttled(5000, () => !view.signal.aborted && !attention.contains(document.activeElement) && drawAttention());
  view.until(queues.on((names) => {
    if (names === null) drawAll();
    else {
      table.patch(names.map((name) => queues.all.get(name)).filter(Boolean).map(rowOf));
      drawSoon();
      drawAttentionSoon();
    }
  }));
  view.onLive("tasks", throttled(10_000, () => !view.signal.aborted && loadDeadTasks()));
  let isTyping = false;
  filterInput.addEventListener("input", () => {
    filter = filterInput.value;
    page = 0;
    const query = new URLSearchParams(filter === "" ? {} : { q: filter });
    // Continuous typing is one history entry.
    if (isTyping) replaceQuery(query);
    else pushQuery(query);
    isTyping = true;
    drawList();
  });
  filterInput.addEventListener("blur", () => {
    isTyping = false;
  });

  if (!queues.loaded) await queues.load();
  if (view.signal.aborted) return;
  drawAll();
  watchHistory(view, null, (history) => {
    past = history ?? past;
    drawn++;
    drawAll();
  });
  loadDeadTasks();
}

function newQueue() {
  const name = h("input", { spellcheck: "false", autocomplete: "off", maxlength: "80", "data-test": "queue-name-input" });
  openDialog({
    title: "New queue",
    test: "dialog-new-queue",
    body: [h("p.muted", {}, "A send creates its queue as well; this creates it beforehand."), field("Name", name, "Letters, digits, “_”, “.” and “-”, at most 80")],
    actions: [{ label: "Create queue", test: "new-queue-save", tone: "primary", run: async (dialog) => {
      const wanted = name.value.trim();
      if (wanted === "") throw new Error("The name is missing.");
      await api.put(path`/v1/queues/${wanted}`);
      dialog.close();
      navigate(path`/ui/queues/${wanted}`);
    } }],
  });
}
