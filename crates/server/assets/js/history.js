// The history of queues in the last hour. It is not part of the events, so it is polled; less often if it is large.

import { api } from "./api.js";

// The overview has one small chart and many sparklines; hundreds of queues in full resolution would be megabytes.
const POINTS_OF_ALL = 120;
const POINTS_OF_ONE = 360;

const loading = new Map();

export const DEPTHS = ["ready", "in_flight", "delayed", "dead"];

/** Returns `{interval, length, series(queue), all, pause}`; `pause` is the time to the next request in milliseconds. */
async function fetchHistory(queue) {
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

/** Loads the history of one queue, or of all with null. Concurrent calls share a request. */
async function loadHistory(queue, signal) {
  if (!loading.has(queue)) loading.set(queue, fetchHistory(queue).finally(() => loading.delete(queue)));
  const history = await loading.get(queue);
  if (signal?.aborted) throw new DOMException("the page was left", "AbortError");
  return history;
}

/** Calls `act` with the history periodically while the view is open, and with null if it could not be loaded. */
export function watchHistory(view, queue, act) {
  let timer = null;
  async function poll() {
    let history = null;
    try {
      history = await loadHistory(queue, view.signal);
    } catch {
      // The current numbers are shown without a history.
    }
    if (view.signal.aborted) return;
    act(history);
    timer = setTimeout(next, history?.pause ?? 10_000);
  }
  function next() {
    if (document.hidden) timer = setTimeout(next, 5000);
    else poll();
  }
  view.until(() => clearTimeout(timer));
  poll();
}

/** The sum over all queues; null where no queue has a value. */
export function total(history, field) {
  const sum = new Array(history.length).fill(null);
  for (const one of history.all) {
    const values = one[field];
    const shift = history.length - values.length;
    for (let i = 0; i < values.length; i++) if (values[i] !== null) sum[i + shift] = (sum[i + shift] ?? 0) + values[i];
  }
  return sum;
}

/** The rate per second over the last `seconds`; null without values. */
export function recentRate(values, interval, seconds = 60) {
  const last = (values ?? []).slice(-Math.ceil(seconds / interval)).filter((value) => value !== null);
  return last.length === 0 ? null : last.reduce((a, b) => a + b, 0) / (last.length * interval);
}
