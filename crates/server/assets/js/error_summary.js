// The summary of an error in a list: a badge with the exit status of a command, and one line.

import { h } from "./elements.js";

const ENDING = /^(?:(exit) code (\d+)|ended by (signal) (\d+)|stopped after \S+, its --timeout|stopped with the worker)(?: \(.*\))?$/;

/** `{badge, line}`: the last line of stderr for a command, the first line for other errors. */
export function errorSummary(text) {
  const lines = (text ?? "").split("\n").map((line) => line.trim()).filter((line) => line !== "");
  const [first = ""] = lines;
  const last = lines.length > 1 ? lines[lines.length - 1] : "";
  const ending = ENDING.exec(first);
  if (ending) {
    const badge = ending[1] ? `exit ${ending[2]}` : ending[3] ? `signal ${ending[4]}` : first.startsWith("stopped after") ? "timed out" : "stopped";
    return { badge, line: last };
  }
  // A Python traceback has the error in its last line.
  return { badge: null, line: first.startsWith("Traceback (most recent call last)") && last ? last : first };
}

export function errorLine(text, most = 240) {
  const { badge, line } = errorSummary(text);
  const cut = line.length > most ? `${line.slice(0, most)}…` : line;
  return [badge ? h("span.pill.exit", { "data-test": "exit-badge" }, badge) : null, badge && cut ? " " : null, cut];
}
