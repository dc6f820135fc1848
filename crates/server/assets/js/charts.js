// SVG charts: line charts of the last hour with a crosshair, and sparklines for tables.

import { h, replace, svg } from "./elements.js";
import { clock, compact, duration } from "./format.js";

const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

/** Reduces values to at most `most` points: the maximum of each group, or the mean for rates. */
function condensed(values, most, mean) {
  if (values.length <= most) return values;
  const size = Math.ceil(values.length / most);
  const points = [];
  // Grouped from the newest value.
  for (let end = values.length; end > 0; end -= size) {
    const some = values.slice(Math.max(0, end - size), end).filter((value) => value !== null);
    points.unshift(some.length === 0 ? null : mean ? some.reduce((a, b) => a + b, 0) / some.length : Math.max(...some));
  }
  return points;
}

function linePath(values, x, y) {
  let text = "";
  let down = false;
  values.forEach((value, i) => {
    if (value === null) {
      down = false;
      return;
    }
    text += `${down ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    down = true;
  });
  return text;
}

function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10]) if (value <= step * power) return step * power;
  return 10 * power;
}

/** A rate per second, or per minute if it is small. */
export function rateText(perSecond) {
  if (perSecond === null || perSecond === undefined) return "?";
  if (perSecond === 0) return "0/s";
  if (perSecond >= 10) return `${compact(Math.round(perSecond))}/s`;
  if (perSecond >= 0.1) return `${perSecond.toFixed(1)}/s`;
  return `${(perSecond * 60).toFixed(1)}/min`;
}

/** A line chart; `update({interval, series: [{name, tone, values}]})` draws it. With `rate`, values are counts per interval. */
export function lineChart({ title, test, rate = false }) {
  const plot = h("div.plot");
  const legend = h("div.legend");
  const tip = h("div.tip", { hidden: true });
  const element = h("figure.chart", { "data-test": test }, h("figcaption", {}, h("h3", {}, title), legend), plot);
  let data = null;
  const format = rate ? rateText : compact;

  function draw() {
    if (data === null) return;
    const width = Math.max(240, plot.clientWidth || 600);
    const height = 170;
    const most = Math.min(240, Math.floor((width - LEFT - RIGHT) / 3));
    const series = data.series.map((one) => ({ ...one, points: condensed(rate ? one.values.map((value) => (value === null ? null : value / data.interval)) : one.values, most, rate) }));
    const length = Math.max(2, ...series.map((one) => one.points.length));
    const span = Math.max(...series.map((one) => one.values.length), 2) * data.interval;
    let top = niceTop(Math.max(...series.flatMap((one) => one.points.filter((value) => value !== null)), rate ? 0 : 4));
    if (!Number.isFinite(top)) top = 1;
    const x = (i) => LEFT + ((width - LEFT - RIGHT) * i) / (length - 1);
    const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${title} over the last ${duration(span)}. ${series.map((one) => `${one.name}: ${one.last ?? "unknown"}`).join(", ")}.` });
    for (const part of [0, 0.5, 1]) {
      picture.append(svg("line.grid", { x1: LEFT, x2: width - RIGHT, y1: y(top * part), y2: y(top * part) }));
      picture.append(svg("text.axis", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, part === 0 ? "0" : format(top * part)));
    }
    for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      const text = part === 1 ? "now" : `−${duration(span * (1 - part))}`;
      picture.append(svg("text.axis", { x: LEFT + (width - LEFT - RIGHT) * part, y: height - 5, "text-anchor": anchor }, text));
    }
    for (const one of [...series].reverse()) {
      const shifted = one.points.length === length ? one.points : [...new Array(length - one.points.length).fill(null), ...one.points];
      one.shifted = shifted;
      picture.append(svg(`path.line.${one.tone}`, { d: linePath(shifted, x, y) }));
    }
    const cross = svg("line.cross", { y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    picture.append(cross);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const at = Math.round((((event.clientX - box.left) * width) / box.width - LEFT) / ((width - LEFT - RIGHT) / (length - 1)));
      if (at < 0 || at >= length) return leave();
      cross.setAttribute("x1", x(at));
      cross.setAttribute("x2", x(at));
      cross.setAttribute("visibility", "visible");
      const ago = (span * (length - 1 - at)) / (length - 1);
      const when = new Date(clock.now() - ago * 1000).toLocaleTimeString();
      replace(tip, h("div.muted", {}, ago < 1 ? "now" : `${when}, ${duration(Math.round(ago))} ago`), series.map((one) => h("div", {}, h(`span.key.${one.tone}`), `${one.name} `, h("b", {}, one.shifted[at] === null ? "?" : format(one.shifted[at])))));
      tip.hidden = false;
      const left = (x(at) / width) * box.width;
      tip.style.left = `${left > box.width / 2 ? left - tip.offsetWidth - 12 : left + 12}px`;
    });
    const leave = () => {
      cross.setAttribute("visibility", "hidden");
      tip.hidden = true;
    };
    picture.addEventListener("pointerleave", leave);
    replace(plot, picture, tip);
    tip.hidden = true;
    replace(legend, series.map((one) => h("span", {}, h(`span.key.${one.tone}`, { "aria-hidden": "true" }), `${one.name} `, h("b", {}, one.last ?? "?"))));
  }

  let lastWidth = 0;
  new ResizeObserver(() => {
    if (Math.abs(plot.clientWidth - lastWidth) < 2) return;
    lastWidth = plot.clientWidth;
    draw();
  }).observe(plot);

  return {
    element,
    /** `last` of a series is the text of its current value. */
    update(next) {
      data = next;
      draw();
    },
  };
}

const sparkDrawers = new WeakMap();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    sparkDrawers.get(entry.target)?.();
  }
}, { rootMargin: "200px" });

/** A sparkline, drawn once it is visible. */
export function spark(series, { width = 110, height = 24, label }) {
  const box = h("span.spark", { role: "img", "aria-label": label });
  sparkDrawers.set(box, () => {
    watcher.unobserve(box);
    const points = series.map((one) => ({ ...one, values: condensed(one.values, 54, one.mean) }));
    const top = Math.max(1, ...points.flatMap((one) => one.values.filter((value) => value !== null)));
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    for (const one of [...points].reverse()) {
      const x = (i) => 1 + ((width - 2) * i) / Math.max(1, one.values.length - 1);
      const y = (value) => height - 2 - (height - 4) * (value / top);
      picture.append(svg(`path.line.${one.tone}`, { d: linePath(one.values, x, y) }));
    }
    replace(box, picture);
  });
  watcher.observe(box);
  return box;
}
