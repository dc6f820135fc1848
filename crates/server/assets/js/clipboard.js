// Copy buttons, commands to copy, and empty states.

import { h } from "./elements.js";
import { toast } from "./toasts.js";
import { session } from "./session.js";

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain HTTP from another host there is no clipboard API; execCommand still works.
    const area = h("textarea.sr-only", { readonly: true, value: text });
    const place = document.querySelector("dialog[open]") ?? document.body;
    place.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

export const copyButton = (text, label = "Copy") =>
  h("button.btn.small.copy", { type: "button", "data-test": "copy", "aria-label": label === "Copy" ? null : label, on: { click: (event) => {
    event.stopPropagation();
    copy(typeof text === "function" ? text() : text);
  } } }, "Copy");

/** A shell command with a copy button. */
export const command = (text) => h("div.command", { "data-test": "command" }, h("code", {}, text), copyButton(text, "Copy the command"));

/** An id with a copy button. */
export const copyableId = (id) => h("span.copyable", {}, h("code", {}, id), copyButton(id, "Copy the id"));

/** The text of an empty list, with commands that fill it. */
export function emptyState({ title, text, commands = [], test = "empty" }) {
  return h("div.empty", { "data-test": test }, h("h2", {}, title), text ? h("p", {}, text) : null, commands.map((one) => command(one)), commands.length > 0 && session && !session.open ? h("p", {}, "The program reads its token from the variable ", h("code", {}, "POSTRIDER_TOKEN"), ".") : null);
}

/** The `--url` option for this server. */
export const urlOption = () => `--url ${location.origin}`;
