// The last hour of every queue. The server's events do not carry it, so it is asked for, less often the more it weighs.

import { api } from "./api.js";

// The overview has a chart of a few hundred pixels and many small lines; hundreds of queues would weigh megabytes in full.
const POINTS_OF_ALL = 120;
const POINTS_OF_ONE = 360;

const loading = new Map();

export const DEPTHS = ["ready", "in_flight", "delayed", "dead"];

/** `{interval, length, series(queue), all, pause}`; `pause` is how many milliseconds to wait before asking again. */
async function ask(queue) {
  const begun = performance.now();
  const answer = await api.get("/v1/history", { query: { queue, points: queue === null ? POINTS_OF_ALL : POINTS_OF_ONE } });
  const took = performance.now() - begun;
  const byQueue = new Map(answer.queues.map((one) => [one.queue, one]));
  return {
    interval: answer.interval_seconds,
    length: Math.max(0, ...answer.queues.map((one) => one.ready.length)),
    series: (name) => byQueue.get(name) ?? null,
    all: answer.queues,
    pause: Math.min(120_000, Math.max(2000, 1000 * answer.interval_seconds, 40 * took, 100 * answer.queues.length)),
  };
}

/** Of one queue, or of all with null. Who asks while it is under way gets the same answer. */
async function loadHistory(queue, signal) {
  if (!loading.has(queue)) loading.set(queue, ask(queue).finally(() => loading.delete(queue)));
  const history = await loading.get(queue);
  if (signal?.aborted) throw new DOMException("the page is gone", "AbortError");
  return history;
}

/** Tells `act` of the history, now and again for as long as the view is looked at; of null when it could not be had. */
export function watchHistory(view, queue, act) {
  let timer = null;
  async function look() {
    let history = null;
    try {
      history = await loadHistory(queue, view.signal);
    } catch {
      // The numbers are worth showing without their past.
    }
    if (view.signal.aborted) return;
    act(history);
    timer = setTimeout(next, history?.pause ?? 10_000);
  }
  function next() {
    if (document.hidden) timer = setTimeout(next, 5000);
    else look();
  }
  view.until(() => clearTimeout(timer));
  look();
}

/** The sum over all queues; null where no queue was seen. */
export function total(history, field) {
  const sum = new Array(history.length).fill(null);
  for (const one of history.all) {
    const values = one[field];
    const shift = history.length - values.length;
    for (let i = 0; i < values.length; i++) if (values[i] !== null) sum[i + shift] = (sum[i + shift] ?? 0) + values[i];
  }
  return sum;
}

/** Per second over the last `seconds`; null when nothing was seen. */
export function recentRate(values, interval, seconds = 60) {
  const last = (values ?? []).slice(-Math.ceil(seconds / interval)).filter((value) => value !== null);
  return last.length === 0 ? null : last.reduce((a, b) => a + b, 0) / (last.length * interval);
}
