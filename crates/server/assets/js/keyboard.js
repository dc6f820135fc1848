// Keyboard shortcuts, and the dialog that lists them.

import { currentView, navigate } from "./router.js";
import { openDialog } from "./dialogs.js";
import { h } from "./elements.js";
import { path } from "./api.js";

const PAGES = { o: ["/", "Overview"], t: ["/ui/tasks", "Tasks"], s: ["/ui/schedules", "Schedules"], w: ["/ui/workers", "Workers"], p: ["/ui/provider", "Provider"], a: ["/ui/audit", "Audit"], k: ["/ui/tokens", "Tokens"] };
const IN_QUEUE = { q: ["", "The queue"], m: ["/messages", "Its messages"], d: ["/dead-letters", "Its dead letters"] };

let afterG = -Infinity;

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
}

export function openHelp() {
  const row = (keys, text) => h("tr", {}, h("td", {}, keys.map((key, i) => [i > 0 ? " " : null, h("kbd", {}, key)])), h("td", {}, text));
  openDialog({
    title: "Keyboard",
    test: "dialog-help",
    closeLabel: "Close",
    body: h(
      "div.help",
      {},
      h("table", {}, h("caption", {}, "Go to"), h("tbody", {}, Object.entries(PAGES).map(([key, [, name]]) => row(["g", key], name)), Object.entries(IN_QUEUE).map(([key, [, name]]) => row(["g", key], `${name} (on a queue's pages)`)))),
      h("table", {}, h("caption", {}, "On this page"), h("tbody", {}, row(["/"], "Filter"), row(["j"], "Next row, also ↓"), row(["k"], "Previous row, also ↑"), row(["Enter"], "Open the row"), row(["x"], "Select the row"), row(["r"], "Reload the page"), row(["Esc"], "Close, or leave the field"), row(["?"], "This help"))),
    ),
  });
}

export function startKeyboard() {
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
    const view = currentView();
    const table = view?.keys.table;
    if (event.key === "Escape") {
      if (isTyping(event.target)) event.target.blur();
      else view?.keys.escape?.();
      return;
    }
    if (isTyping(event.target)) return;
    if (performance.now() - afterG < 1500) {
      afterG = -Infinity;
      const queue = view?.params.queue;
      if (PAGES[event.key]) navigate(PAGES[event.key][0]);
      else if (IN_QUEUE[event.key] && queue) navigate(path`/ui/queues/${queue}` + IN_QUEUE[event.key][0]);
      else return;
      event.preventDefault();
      return;
    }
    const inRow = table?.hasFocus();
    const onRow = inRow && event.target.tagName === "TR";
    const act = {
      g: () => {
        afterG = performance.now();
      },
      "/": () => document.querySelector("#main [data-filter]")?.focus(),
      "?": openHelp,
      r: () => navigate(location.pathname + location.search, { replace: true }),
      j: () => table?.move(1),
      k: () => table?.move(-1),
      ArrowDown: inRow ? () => table.move(1) : null,
      ArrowUp: inRow ? () => table.move(-1) : null,
      Home: inRow ? () => table.move(-Infinity) : null,
      End: inRow ? () => table.move(Infinity) : null,
      Enter: onRow ? () => table.openActive() : null,
      x: inRow ? () => table.toggleActive() : null,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
