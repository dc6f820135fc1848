// The filter of a list: fields whose values are kept in the URL, for reloads, links and the back button.

import { h } from "./elements.js";
import { pushQuery, replaceQuery } from "./router.js";

const PAUSE = 300; // milliseconds from the last key to the request

/** Converts a time of the API to the value of a `datetime-local` input, and back. */
function toLocal(iso) {
  const time = Date.parse(iso);
  return Number.isNaN(time) ? "" : new Date(time - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
const fromLocal = (text) => (text === "" ? "" : new Date(text).toISOString());

/**
 * `fields` are `{name, label, placeholder, kind, options, test, isMain}` with `kind` text, time or choice. `changed` is called
 * on every change. `more()` returns further query parameters as pairs.
 */
export function filterFields(view, fields, changed, more = () => []) {
  const inputs = new Map();
  let timer = null;
  let typedIn = null;
  view.until(() => clearTimeout(timer));

  function query() {
    const address = new URLSearchParams();
    for (const { name } of fields) if (value(name) !== "") address.append(name, value(name));
    for (const [name, one] of more()) address.append(name, one);
    return address;
  }
  const value = (name) => {
    const input = inputs.get(name);
    return input.type === "datetime-local" ? fromLocal(input.value) : input.value.trim();
  };

  for (const field of fields) {
    const given = view.query.get(field.name) ?? "";
    const attributes = { "aria-label": field.label, "data-test": field.test ?? `filter-${field.name.replaceAll("_", "-")}`, "data-filter": field.isMain ? true : null, title: field.label };
    let input;
    if (field.kind === "choice") input = h("select", attributes, field.options.map(([option, label]) => h("option", { value: option, selected: option === given }, label)));
    else if (field.kind === "time") input = h("input", { ...attributes, type: "datetime-local", step: "1", value: toLocal(given) });
    else input = h("input", { ...attributes, type: "search", placeholder: field.placeholder, value: given, spellcheck: "false", autocomplete: "off" });
    if (field.isMain) input.classList.add("filter");
    const act = () => {
      clearTimeout(timer);
      timer = null;
      // A blur because the page is left is ignored.
      if (view.signal.aborted) return;
      // Input into one field is one history entry.
      if (typedIn === field.name) replaceQuery(query());
      else pushQuery(query());
      typedIn = field.name;
      changed();
    };
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(act, PAUSE);
    });
    input.addEventListener("blur", () => {
      if (timer !== null) act();
      typedIn = null;
    });
    inputs.set(field.name, input);
  }

  return {
    input: (name) => inputs.get(name),
    value,
    query,
    /** A time field with a visible label: the browser's own text does not name it. */
    labelled: (name) => h("label.time-field", {}, h("span", {}, inputs.get(name).title), inputs.get(name)),
    /** Writes the query into the URL, with or without a history entry. */
    keep: ({ push = false } = {}) => (push ? pushQuery(query()) : replaceQuery(query())),
  };
}
