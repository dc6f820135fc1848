import { api, path } from "../api.js";
import { h, reconcile, replace, throttled } from "../elements.js";
import { ageText, count, number, statText, statTitle, time } from "../format.js";
import { watchHistory } from "../history.js";
import { lineChart } from "../charts.js";
import { depthSeries, rateSeries } from "./overview.js";
import { troubles } from "../queue_health.js";
import { queueHead, tile } from "../queue_head.js";
import { actionButton } from "../actions.js";
import { confirmDialog } from "../dialogs.js";
import { emptyState, urlOption } from "../clipboard.js";
import { navigate } from "../router.js";
import { percentileLine } from "../percentiles.js";
import { openSend } from "../send.js";
import { queues } from "../queues.js";
import { toast } from "../toasts.js";

const NONE = { ready: 0, in_flight: 0, delayed: 0, dead: 0, oldest_age_seconds: null, paused: false, approximate: [], unknown: [] };

export async function queuePage(view) {
  const name = view.params.queue;
  view.title(name);
  const { element: head, actions } = queueHead(view, "queue");
  const tiles = h("div.tiles");
  const notes = h("div.notes", { "data-test": "queue-notes" });
  const depth = lineChart({ title: "Messages", test: "chart-depth" });
  const rates = lineChart({ title: "Throughput of this server", test: "chart-throughput", rate: true });
  const charts = h("div.charts", {}, depth.element, rates.element);
  const firstSteps = h("div");
  const durations = h("div", { "data-test": "queue-durations" });
  const workers = h("section", { "data-test": "queue-workers" });
  replace(view.root, h("div.stack", { "data-test": "page-queue" }, head, tiles, notes, firstSteps, durations, charts, workers));

  let stats = queues.all.get(name) ?? (await api.get(path`/v1/queues/${name}`, { signal: view.signal }));
  let past = null;

  const readStats = async () => {
    stats = await api.get(path`/v1/queues/${name}`);
    return stats;
  };

  function drawActions() {
    replace(
      actions,
      actionButton({ label: "Send a message", test: "send", role: "produce", queue: name, tone: "primary", run: () => openSend(name, () => readStats().then(draw)) }),
      stats.paused
        ? actionButton({ label: "Resume", test: "resume", role: "operate", queue: name, run: () => setPaused(false) })
        : actionButton({ label: "Pause", test: "pause", role: "operate", queue: name, title: "Stops receives; sends and settles continue", run: () => confirmPause() }),
      actionButton({ label: "Purge", test: "purge", role: "operate", queue: name, tone: "danger", run: confirmPurge }),
      actionButton({ label: "Delete", test: "delete", role: "operate", queue: name, tone: "danger", run: confirmDelete }),
    );
  }

  async function setPaused(paused) {
    const answer = await api.post(path`/v1/queues/${name}/${paused ? "pause" : "resume"}`);
    stats = { ...stats, paused: answer.paused };
    if (queues.all.has(name)) queues.all.set(name, { ...queues.all.get(name), paused: answer.paused });
    toast(paused ? `${name} is paused` : `${name} is resumed`);
    drawActions();
    draw();
  }

  function confirmPause() {
    confirmDialog({
      title: `Pause ${name}?`,
      test: "dialog-pause",
      count: async () => {
        const now = await readStats();
        return { text: `Workers receive no messages until it is resumed: ${statText(now, "ready")} ready and ${statText(now, "delayed")} delayed messages wait. ${statText(now, "in_flight")} in flight can still be settled, and sends continue.`, label: "Pause" };
      },
      tone: "primary",
      run: () => setPaused(true),
    });
  }

  function confirmPurge() {
    confirmDialog({
      title: `Purge ${name}?`,
      test: "dialog-purge",
      count: async () => {
        const now = await readStats();
        const known = now.ready !== null && now.delayed !== null;
        const exact = known && !["ready", "delayed"].some((field) => now.approximate?.includes(field));
        const touched = (now.ready ?? 0) + (now.delayed ?? 0);
        const n = known ? `${exact ? "" : "~"}${count(touched, "message")}` : "an unknown number of messages";
        const stays = `What is in flight (${statText(now, "in_flight")}) or dead (${statText(now, "dead")}) stays.`;
        return {
          text: known && exact && touched === 0
            ? `There is nothing to remove. ${stays}`
            : `This removes ${n} for good (${statText(now, "ready")} ready, ${statText(now, "delayed")} delayed). ${stays}`,
          label: known ? `Purge ${n}` : "Purge",
          nothing: known && exact && touched === 0,
        };
      },
      run: async () => {
        const { purged } = await api.post(path`/v1/queues/${name}/purge`);
        toast(`${count(purged, "message")} purged from ${name}`);
        await readStats();
        draw();
      },
    });
  }

  function confirmDelete() {
    confirmDialog({
      title: `Delete ${name}?`,
      test: "dialog-delete",
      typed: name,
      count: async () => {
        const now = await readStats();
        const parts = ["ready", "in_flight", "delayed", "dead"];
        const all = parts.reduce((total, field) => total + (now[field] ?? 0), 0);
        const exact = parts.every((field) => now[field] !== null && !now.approximate?.includes(field));
        return { text: `The queue is deleted with all its messages,  ${exact ? "" : "~"}${count(all, "message")}: ${statText(now, "ready")} ready, ${statText(now, "in_flight")} in flight (their leases end), ${statText(now, "delayed")} delayed and ${statText(now, "dead")} dead letters. This cannot be undone.`, label: `Delete the queue and ${exact ? "" : "~"}${count(all, "message")}` };
      },
      run: () => api.remove(path`/v1/queues/${name}`),
      onDone: () => {
        queues.all.delete(name);
        toast(`${name} is deleted`);
        navigate("/");
      },
    });
  }

  function draw() {
    if (view.signal.aborted) return;
    const base = path`/ui/queues/${name}`;
    const part = (label, field, options) => tile(label, statText(stats, field), { test: `stat-${field.replace("_", "-")}`, title: statTitle(stats, field), ...options });
    reconcile(tiles, [
      part("Ready", "ready", { href: `${base}/messages` }),
      part("In flight", "in_flight"),
      part("Delayed", "delayed"),
      part("Dead", "dead", { tone: stats.dead > 0 ? "bad" : null, href: `${base}/dead-letters` }),
      tile("Oldest waiting", ageText(stats), { test: "stat-oldest" }),
      tile("Receives", stats.paused ? "paused" : "on", { test: "stat-paused", tone: stats.paused ? "warn" : null }),
    ]);
    reconcile(notes, troubles({ ...stats, queue: name }, past?.series(name), past?.interval ?? 5).map((one) => h("a.notice", { href: one.href, "data-key": one.kind, "data-tone": one.tone, "data-test": `trouble-${one.kind}` }, one.text)));
    const nothing = !queues.all.has(name) && ["ready", "in_flight", "delayed", "dead"].every((field) => !stats[field]);
    charts.hidden = nothing;
    replace(firstSteps, nothing && queues.loaded
      ? emptyState({ title: "This queue does not exist yet", test: "empty-queue", text: "It is created by the first send:", commands: [`postrider send ${name} '{"item":"tea"}' ${urlOption()}`, `postrider work ${name} ${urlOption()} -- sh -c 'echo "got $(cat)"'`] })
      : null);
    if (past) {
      const one = past.series(name) ?? {};
      const values = (field) => one[field] ?? new Array(past.length).fill(null);
      depth.update({ interval: past.interval, series: depthSeries((field) => [...values(field), stats[field] ?? null], (field) => statText(stats, field)) });
      rates.update({ interval: past.interval, series: rateSeries(values, past.interval) });
    }
  }

  async function loadDurations() {
    let found;
    try {
      found = await api.get(path`/v1/queues/${name}/durations`, { signal: view.signal });
    } catch {
      return;
    }
    replace(durations, percentileLine("Waited, last hour", found.waited, "queue-waited"), percentileLine("Handling, last hour", found.took, "queue-took"));
  }

  async function loadWorkers() {
    let list;
    try {
      list = (await api.get("/v1/workers", { signal: view.signal })).workers.filter((worker) => worker.queues.includes(name));
    } catch {
      return;
    }
    replace(
      workers,
      h("div.section-head", {}, h("h2", {}, "Workers"), h("span.muted", {}, list.length > 0 ? number(list.length) : "")),
      list.length > 0
        ? h("ul.plain", {}, list.map((worker) => h("li", { "data-test": "queue-worker" }, h("code", {}, worker.name), h("span.muted", {}, worker.waiting ? " waits for messages" : ` has ${count(worker.in_flight, "message")}`, ", seen "), time(worker.last_seen_at))))
        : h("p.muted", {}, "No worker has received from it recently."),
    );
  }

  const drawSoon = throttled(500, () => {
    const wasPaused = stats.paused;
    stats = queues.all.get(name) ?? { ...NONE, queue: name };
    draw();
    if (stats.paused !== wasPaused) drawActions();
  });
  view.until(queues.on((names) => (names === null || names.includes(name)) && drawSoon()));
  drawActions();
  draw();
  watchHistory(view, name, (history) => {
    past = history ?? past;
    draw();
  });
  loadWorkers();
  view.every(5000, loadWorkers);
  loadDurations();
  view.every(5000, loadDurations);
}
