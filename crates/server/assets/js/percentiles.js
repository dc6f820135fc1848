// A line with the percentiles of durations.

import { h } from "./elements.js";
import { duration, number } from "./format.js";

/** `label` names the measured duration; null without data. */
export function percentileLine(label, one, test) {
  if (!one) return null;
  const part = (name, ms) => h("span", {}, `${name} `, h("b", {}, duration(ms / 1000)));
  return h("p.percentiles", { "data-test": test, title: `Of ${number(one.count)}` }, h("span", {}, label), part("p50", one.p50_ms), part("p95", one.p95_ms), part("p99", one.p99_ms));
}
