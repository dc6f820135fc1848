// Problems of a queue, worst first.

import { count, duration, number, statText } from "./format.js";
import { path } from "./api.js";

const OLD = 300; // seconds
const GROWTH_WINDOW = 600; // seconds
const GROWTH_LEAST = 50; // messages more than before
const GROWTH_FACTOR = 1.5;
const TREND_WINDOW = 120; // seconds

/** `[{kind, tone, text, href, weight}]`; `series` is the queue's history and may be null. */
export function troubles(stats, series, interval) {
  const found = [];
  const home = path`/ui/queues/${stats.queue}`;
  if (stats.dead > 0) {
    const text = `${statText(stats, "dead")} dead ${stats.dead === 1 ? "letter" : "letters"}`;
    found.push({ kind: "dead", tone: "bad", text, href: `${home}/dead-letters`, weight: 1000 + Math.log10(stats.dead + 1) });
  }
  if (stats.paused) {
    const waiting = stats.ready > 0 ? `, ${count(stats.ready, "message")} waiting` : "";
    found.push({ kind: "paused", tone: "warn", text: `paused${waiting}`, href: home, weight: 300 + (stats.ready > 0 ? 100 : 0) });
  }
  if (stats.oldest_age_seconds > OLD) {
    const text = `oldest has waited ${duration(stats.oldest_age_seconds)}`;
    found.push({ kind: "old", tone: "warn", text, href: `${home}/messages`, weight: 500 + Math.log10(stats.oldest_age_seconds) });
  }
  const past = earlier(series?.ready, interval);
  const recent = earlier(series?.ready, interval, TREND_WINDOW);
  // A queue that filled up and is being drained now does not grow.
  const isRising = recent !== null && stats.ready > recent.ready;
  if (past !== null && isRising && stats.ready - past.ready >= GROWTH_LEAST && stats.ready >= past.ready * GROWTH_FACTOR) {
    const text = `growing: ${number(past.ready)} → ${number(stats.ready)} in ${duration(past.seconds)}`;
    found.push({ kind: "growing", tone: "warn", text, href: home, weight: 400 });
  }
  return found.sort((a, b) => b.weight - a.weight);
}

/** The oldest value in the window and its age; a server that was just started has a shorter history. */
function earlier(values, interval, seconds = GROWTH_WINDOW) {
  const window = (values ?? []).slice(-Math.max(1, Math.round(seconds / interval)));
  const at = window.findIndex((value) => value !== null);
  return at < 0 ? null : { ready: window[at], seconds: (window.length - at) * interval };
}

export const weight = (found) => found.reduce((sum, trouble) => sum + trouble.weight, 0);
