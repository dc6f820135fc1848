// The head of a queue's pages.

import { h, replace } from "./elements.js";
import { path } from "./api.js";
import { queues } from "./queues.js";
import { statText } from "./format.js";

export function queueHead(view, page) {
  const name = view.params.queue;
  const pills = h("span.pills", { "data-test": "queue-pills" });
  const base = path`/ui/queues/${name}`;
  const deadCount = h("span.badge", { "data-test": "tab-dead-count" });
  const tab = (id, label, href, extra) => h("a", { href, "aria-current": id === page ? "page" : null, "data-test": `tab-${id}` }, label, extra);
  const draw = () => {
    const stats = queues.all.get(name);
    replace(pills, stats?.paused ? h("span.pill.warn", { "data-test": "pill-paused" }, "paused") : null);
    deadCount.hidden = !(stats?.dead > 0);
    deadCount.textContent = stats ? statText(stats, "dead") : "";
  };
  draw();
  view.until(queues.on((names) => (names === null || names.includes(name)) && draw()));
  const actions = h("div.actions");
  const element = h(
    "header.page-head",
    {},
    h("p.crumbs", {}, h("a", { href: "/" }, "Queues"), " / "),
    h("div.head-line", {}, h("h1.mono", { tabindex: "-1", "data-test": "queue-name" }, name), pills, h("span.spacer"), actions),
    h("nav.tabs", { "aria-label": "Pages of this queue" }, tab("queue", "Queue", base), tab("messages", "Messages", `${base}/messages`), tab("dead-letters", "Dead letters", `${base}/dead-letters`, deadCount), tab("archive", "Archive", `${base}/archive`)),
  );
  return { element, actions };
}

export const tile = (label, value, { test, tone, note, title, href } = {}) =>
  h(href ? "a.tile" : "div.tile", { href, "data-key": label, "data-test": test, "data-tone": tone, title }, h("span.tile-label", {}, label), h("span.tile-value", {}, value), note ? h("span.tile-note", {}, note) : null);
