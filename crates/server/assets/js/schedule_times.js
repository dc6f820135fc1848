// The ticks of a schedule.

import { h } from "./elements.js";
import { time } from "./format.js";

/** “Monday, 23 November 2026 at 09:00:00”, in the time zone. */
export function inWords(iso, zone) {
  const options = { weekday: "long", day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  let format;
  try {
    format = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone });
  } catch {
    // A browser may support fewer time zones than the server.
    return inWords(iso, "UTC");
  }
  // Whole minutes are shown without seconds.
  return format.format(new Date(iso)).replace(/(\d\d:\d\d):00$/, "$1");
}

export function timesList({ times, time_zone: zone, paused }) {
  const own = zone ?? "UTC";
  return [
    paused ? h("p.muted", {}, "It is paused. If it were resumed now, it would run at:") : null,
    times.length === 0
      ? h("p.muted", {}, "It will never run again.")
      : h("ol.times", { "data-test": "next-times" }, times.map((one) => h("li", {}, h("span", { "data-test": "next-time" }, inWords(one, own), h("span.muted", {}, ` ${own}`)), " ", h("span.muted", {}, time(one))))),
  ];
}
