// A diff of two texts by lines.

import { h } from "./elements.js";

const MAX_COMPARED = 1500; // lines for the quadratic comparison
const MAX_SHOWN = 400; // lines; each is an element
const MAX_LINE = 2000; // characters

/** `[{kind: "same"|"removed"|"added", text}]` */
export function diffLines(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const rows = (kind, lines) => lines.map((text) => ({ kind, text }));
  const middleA = a.slice(start, a.length - end);
  const middleB = b.slice(start, b.length - end);
  const middle = middleA.length > MAX_COMPARED || middleB.length > MAX_COMPARED ? [...rows("removed", middleA), ...rows("added", middleB)] : compared(middleA, middleB);
  return [...rows("same", a.slice(0, start)), ...middle, ...rows("same", a.slice(a.length - end))];
}

// The longest common subsequence, by dynamic programming.
function compared(a, b) {
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const rows = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      rows.push({ kind: "same", text: a[i++] });
      j++;
    } else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) rows.push({ kind: "removed", text: a[i++] });
    else rows.push({ kind: "added", text: b[j++] });
  }
  return rows;
}

const SIGN = { same: " ", removed: "−", added: "+" };
const AROUND = 3;

const cutLine = (text) => (text.length > MAX_LINE ? `${text.slice(0, MAX_LINE)}…` : text);

/** The differing parts of two long lines: a change in the middle of a line of a megabyte would otherwise be cut off. */
function aroundChange(before, after) {
  if (before.length <= MAX_LINE && after.length <= MAX_LINE) return [before, after];
  let same = 0;
  while (same < before.length && same < after.length && before[same] === after[same]) same++;
  const from = Math.max(0, same - 80);
  const part = (text) => (from > 0 ? "…" : "") + cutLine(text.slice(from));
  return [part(before), part(after)];
}

/** The diff without lines far from any change. */
export function diffView(label, before, after, test = "diff") {
  const oneLine = !before.includes("\n") && !after.includes("\n");
  const rows = oneLine ? diffLines(...aroundChange(before, after)) : diffLines(before, after);
  const near = new Set();
  rows.forEach((row, i) => {
    if (row.kind !== "same") for (let at = i - AROUND; at <= i + AROUND; at++) near.add(at);
  });
  const lines = [];
  let skipped = 0;
  const gap = () => {
    if (skipped > 0) lines.push(h("div.diff-gap", {}, `… ${skipped} unchanged`));
    skipped = 0;
  };
  let hidden = 0;
  rows.forEach((row, i) => {
    if (!near.has(i)) {
      skipped++;
      return;
    }
    gap();
    if (lines.length >= MAX_SHOWN) hidden++;
    else lines.push(h(`div.diff-${row.kind}`, {}, h("span.diff-sign", { "aria-label": row.kind === "same" ? null : row.kind }, SIGN[row.kind]), row.text === "" ? " " : cutLine(row.text)));
  });
  gap();
  if (hidden > 0) lines.push(h("div.diff-gap", { "data-test": `${test}-hidden` }, `… ${hidden} more lines`));
  return h("section.diff", { "data-test": test, "aria-label": `Change of ${label}` }, h("h3", {}, label), h("div.diff-lines", { tabindex: "0" }, lines));
}
