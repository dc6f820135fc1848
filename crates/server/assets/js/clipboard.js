// Things to copy.

import { h } from "./elements.js";
import { toast } from "./toasts.js";
import { session } from "./session.js";

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page that came over plain HTTP from another host has no clipboard; the old way still works there.
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

/** A shell command, ready to be copied. */
export const command = (text) => h("div.command", { "data-test": "command" }, h("code", {}, text), copyButton(text, "Copy the command"));

/** An id with its end visible and the whole of it to copy. */
export const copyableId = (id) => h("span.copyable", {}, h("code", {}, id), copyButton(id, "Copy the id"));

/** What to do where there is nothing yet. */
export function emptyState({ title, text, commands = [], test = "empty" }) {
  return h("div.empty", { "data-test": test }, h("h2", {}, title), text ? h("p", {}, text) : null, commands.map((one) => command(one)), commands.length > 0 && session && !session.open ? h("p", {}, "The program takes its token from the variable ", h("code", {}, "POSTRIDER_TOKEN"), ".") : null);
}

/** The `--url` that leads here. */
export const urlOption = () => `--url ${location.origin}`;
