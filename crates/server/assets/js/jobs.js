// Jobs of the server and their progress, on every page.

import { api, path } from "./api.js";
import { live } from "./live.js";
import { h, replace } from "./elements.js";
import { openDialog } from "./dialogs.js";
import { actionButton } from "./actions.js";
import { count, number, time } from "./format.js";
import { toast } from "./toasts.js";

const all = new Map();
const listeners = new Set();
const VERB = { redrive: "Redrive", replay: "Replay", cancel: "Cancel", retry: "Run now", deliver_now: "Deliver now", dead_letter: "Dead-letter", delete: "Delete" };

const ended = (job) => job.state !== "running";

function put(job) {
  const known = all.get(job.id);
  // An answer may be older than an event that arrived before it.
  if (known && (ended(known) || known.done + known.skipped > job.done + job.skipped)) return;
  all.set(job.id, job);
  if (known && ended(job)) showEnd(job);
  for (const act of listeners) act(job);
  showButton();
}

function showEnd(job) {
  const what = `${VERB[job.kind] ?? job.kind}${job.queue ? ` of ${job.queue}` : ""}`;
  if (job.state === "done") toast(`${what}: ${number(job.done)} done${job.skipped > 0 ? `, ${number(job.skipped)} skipped` : ""}`);
  else if (job.state === "canceled") toast(`${what} was canceled after ${number(job.done)}`, "info");
  else toast(`${what} failed: ${job.error ?? "no error text"}`, "bad");
}

function showButton() {
  const running = [...all.values()].filter((job) => !ended(job));
  const button = document.getElementById("jobs-button");
  button.hidden = running.length === 0;
  button.textContent = `${count(running.length, "job")} running`;
}

export async function loadJobs() {
  for (const job of (await api.get("/v1/jobs")).jobs) put(job);
}

live.on("job", put);
live.on("resync", () => loadJobs().catch(() => {}));

function jobCard(job) {
  const bar = h("progress", { "data-test": "job-progress", "aria-label": "Progress" });
  const text = h("p", { "data-test": "job-text", "aria-live": "polite" });
  const foot = h("div.row");
  const card = h("div.job", { "data-test": "job", "data-job": job.id });
  let cancel = null;
  function draw(next) {
    bar.max = Math.max(1, next.total ?? 1);
    bar.value = next.state === "done" ? bar.max : next.done + next.skipped;
    card.dataset.state = next.state;
    const skipped = next.skipped > 0 ? `, ${number(next.skipped)} skipped` : "";
    const states = { running: "Running", done: "Done", failed: "Failed", canceled: "Canceled" };
    replace(text, h("strong", {}, `${states[next.state] ?? next.state}: `), `${number(next.done)} of ${number(next.total)}${skipped}`, next.error ? h("span.bad-text", {}, ` ${next.error}`) : null);
    if (ended(next)) {
      cancel = null;
      replace(foot, h("span.muted", {}, "Ended ", time(next.ended_at)));
    } else if (cancel === null) {
      cancel = actionButton({ label: "Cancel the job", test: "job-cancel", role: "operate", small: true, tone: "danger", run: async () => {
        const answer = await api.remove(path`/v1/jobs/${next.id}`);
        if (answer?.id) put(answer);
      } });
      replace(foot, cancel, h("span.muted", {}, "Started ", time(next.started_at)));
    }
  }
  draw(job);
  replace(card, h("h3", {}, VERB[job.kind] ?? job.kind, job.queue ? h("span.muted", {}, ` ${job.queue}`) : null), bar, text, foot);
  return { card, draw };
}

/** Opens the list of jobs; `focus` is the one that was just started. */
export function openJobs(focus = null, { onEnd } = {}) {
  if (focus) put(focus);
  const cards = new Map();
  const list = h("div.jobs");
  function draw(job) {
    const known = all.get(job.id) ?? job;
    if (!cards.has(job.id)) {
      const card = jobCard(known);
      cards.set(job.id, card);
      list.prepend(card.card);
    } else cards.get(job.id).draw(known);
    if (focus?.id === job.id && ended(known)) {
      onEnd?.(known);
      onEnd = undefined;
    }
  }
  if (focus) draw(focus);
  else [...all.values()].sort((a, b) => (a.started_at < b.started_at ? -1 : 1)).slice(-20).forEach(draw);
  const listener = (job) => {
    if (!focus || job.id === focus.id) draw(job);
  };
  listeners.add(listener);
  // Progress arrives by events; without a connection it is polled.
  const timer = setInterval(async () => {
    if (live.state === "live") return;
    for (const id of cards.keys()) if (!ended(all.get(id))) put(await api.get(path`/v1/jobs/${id}`).catch(() => all.get(id)));
  }, 2000);
  openDialog({
    title: focus ? `${VERB[focus.kind] ?? focus.kind} running` : "Jobs",
    test: "dialog-job",
    body: [list, focus ? h("p.muted", {}, "The job continues if you close this; “jobs running” at the top opens it again.") : null],
    closeLabel: "Close",
    onClose() {
      listeners.delete(listener);
      clearInterval(timer);
    },
  });
}
