// Formatting of numbers, times and sizes.

import { h } from "./elements.js";

/** The server's clock, as an offset to the local one. */
export const clock = { offset: 0, now: () => Date.now() + clock.offset };

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (value === null || value === undefined ? "?" : whole.format(value));
export const compact = (value) => (Math.abs(value) < 10000 ? number(value) : short.format(value));

/** “1 message”, “7 messages”. */
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** A count of a queue: `?` if it is unknown, with `~` if it is approximate. */
export function statText(stats, field) {
  const value = stats?.[field];
  if (value === null || value === undefined || stats.unknown?.includes(field)) return "?";
  return (stats.approximate?.includes(field) ? "~" : "") + number(value);
}

export function statTitle(stats, field) {
  if (stats?.[field] === null || stats?.unknown?.includes(field)) return "The store does not provide this number";
  return stats?.approximate?.includes(field) ? "This number is approximate" : null;
}

export function ageText(stats) {
  if (stats?.unknown?.includes("oldest_age_seconds")) return "?";
  const age = stats?.oldest_age_seconds;
  if (age === null || age === undefined) return "–";
  return (stats.approximate?.includes("oldest_age_seconds") ? "~" : "") + duration(age);
}

/** A duration as in the API and the program: 8.5s, 2m 31s, 1h 9m. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  const s = Math.max(0, seconds);
  if (s === 0) return "0s";
  if (s < 1) return `${Math.round(s * 1000)}ms`;
  if (s < 10) return `${trim(s.toFixed(1))}s`;
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return two(s, 60, "m", "s", 600);
  if (s < 86400) return two(s, 3600, "h", "m", 36000);
  return two(s, 86400, "d", "h", 864000);
}

const trim = (text) => text.replace(/\.0$/, "");

// The smaller unit is omitted from `until` on.
function two(s, unit, large, small, until) {
  const n = Math.floor(s / unit);
  const rest = Math.floor((s - n * unit) / (unit === 86400 ? 3600 : unit === 3600 ? 60 : 1));
  return s < until && rest > 0 ? `${n}${large} ${rest}${small}` : `${n}${large}`;
}

export function relative(iso) {
  const seconds = (clock.now() - Date.parse(iso)) / 1000;
  if (Number.isNaN(seconds)) return String(iso);
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(coarse(seconds))} ago` : `in ${duration(coarse(-seconds))}`;
}

// Relative times are updated every few seconds, so fractions would be wrong.
const coarse = (seconds) => Math.floor(seconds);

const absoluteFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const absolute = (iso) => (Number.isNaN(Date.parse(iso)) ? String(iso) : absoluteFormat.format(new Date(iso)));

/** A time as an element: relative, absolute on hover, and kept up to date. */
export function time(iso, absent = "–") {
  if (!iso) return h("span.muted", {}, absent);
  return h("time", { datetime: iso, title: `${absolute(iso)} (${iso})`, "data-relative": true }, relative(iso));
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[data-relative]")) {
    const text = relative(element.dateTime);
    if (element.textContent !== text) element.textContent = text;
  }
}, 5000);

export function bytes(n) {
  if (n < 1024) return `${number(n)} B`;
  if (n < 1024 * 1024) return `${trim((n / 1024).toFixed(1))} KiB`;
  return `${trim((n / 1024 / 1024).toFixed(1))} MiB`;
}

/** The beginning of a UUIDv7 is the time; its end distinguishes ids of the same time. */
export const shortId = (id) => (id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id);

export function firstLine(text, most = 160) {
  if (!text) return "";
  const line = text.split("\n", 1)[0];
  return line.length > most || line.length < text.length ? `${line.slice(0, most)}…` : line;
}
