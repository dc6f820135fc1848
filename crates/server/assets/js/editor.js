// The editor of bodies and headers: edit, review the diff, save.

import { field, openDialog } from "./dialogs.js";
import { h } from "./elements.js";
import { isJson, jsonFault, pretty } from "./json_text.js";
import { diffView } from "./diff.js";
import { fromBase64 } from "./bytes_text.js";

const shown = (text) => pretty(text) ?? text;
// Such headers cannot be written one per line; they are edited as JSON.
const needsJson = (headers) => Object.entries(headers).some(([name, value]) => name.includes(":") || value !== value.trim() || value.includes("\n"));

function headerLines(headers, asJson) {
  const names = Object.keys(headers).sort();
  if (!asJson) return names.map((name) => `${name}: ${headers[name]}`).join("\n");
  return JSON.stringify(Object.fromEntries(names.map((name) => [name, headers[name]])), null, 2);
}

function parseJsonHeaders(text) {
  let headers;
  try {
    headers = JSON.parse(text);
  } catch (error) {
    throw new Error(`The headers are not valid JSON: ${error.message}`);
  }
  if (headers === null || typeof headers !== "object" || Array.isArray(headers) || Object.values(headers).some((value) => typeof value !== "string")) throw new Error("The headers must be an object whose values are strings.");
  return headers;
}

/** Parses headers, one per line as `name: value`. */
export function parseHeaders(text) {
  const headers = {};
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`“${line}” is not a header; write it as name: value`);
    headers[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return headers;
}

function checkBase64(text) {
  try {
    fromBase64(text.trim());
  } catch {
    throw new Error("This is not valid base64. The bytes are not UTF-8 text, so they are edited as base64.");
  }
}

/**
 * `original` is `{bytes, contentType?, headers?}`; `actions` are `{label, test, tone, save(changes)}`, where `changes` has the
 * changed fields under their API names (`name`, `name_base64`, `content_type`, `headers`). An action with `evenUnchanged` is
 * enabled without changes.
 */
export function openEditor({ title, test, name, original, actions, note }) {
  const label = name === "payload" ? "Payload" : "Body";
  const binary = original.bytes.text === null;
  const asJson = needsJson(original.headers ?? {});
  const before = binary ? original.bytes.base64 : original.bytes.text;
  const area = h("textarea.code", { rows: 12, spellcheck: "false", autocomplete: "off", value: before, "data-test": "editor-body", "data-autofocus": true });
  const headers = original.headers ? h("textarea.code", { rows: 4, spellcheck: "false", value: headerLines(original.headers, asJson), "data-test": "editor-headers" }) : null;
  const type = original.contentType !== undefined ? h("input", { value: original.contentType ?? "", spellcheck: "false", "data-test": "editor-content-type" }) : null;
  const hint = h("p.note", { "aria-live": "polite", "data-test": "editor-hint" });
  const wasJson = !binary && isJson(before);
  const layOutButton = wasJson ? h("button.btn.small", { type: "button", "data-test": "editor-format", on: { click: () => {
    area.value = shown(area.value);
  } } }, "Format JSON") : null;
  const isJsonType = () => type !== null && type.value.split(";")[0].trim().toLowerCase() === "application/json";
  /** Where a body that must be JSON is invalid; null if it is valid. */
  const invalidJson = () => (wasJson || isJsonType() ? jsonFault(area.value) : null);
  const position = (fault) => `line ${fault.line}, column ${fault.column}: expected ${fault.wanted}`;
  const checkJson = () => {
    const fault = binary || area.value === before ? null : invalidJson();
    hint.textContent = fault ? `Invalid JSON at ${position(fault)}.` : "";
    hint.className = fault ? "note warn" : "note";
  };
  area.addEventListener("input", checkJson);
  type?.addEventListener("input", checkJson);

  /** Throws if the body is invalid JSON under a JSON content type, and selects the position. */
  function checkBody(found) {
    if (binary || !isJsonType() || !(name in found || "content_type" in found)) return;
    const fault = invalidJson();
    if (fault === null) return;
    area.focus();
    area.setSelectionRange(fault.at, fault.at + 1);
    const lines = area.value.split("\n").length;
    area.scrollTop = (area.scrollHeight / lines) * Math.max(0, fault.line - 3);
    const why = `The ${label.toLowerCase()} is invalid JSON at ${position(fault)}. Correct it, or change the content type.`;
    throw Object.assign(new Error(why), { title: `Invalid JSON: line ${fault.line}, column ${fault.column}`, code: "not_json" });
  }

  const form = [
    note ? h("p.muted", {}, note) : null,
    field(binary ? `${label} (base64)` : label, area),
    h("div.row", {}, layOutButton, hint),
    type ? field("Content type", type) : null,
    headers ? field("Headers", headers, asJson ? "As JSON, because a value has line breaks or outer spaces" : "One per line, as name: value") : null,
  ];

  function changes() {
    const found = {};
    if (area.value !== before) {
      if (binary) checkBase64(area.value);
      found[binary ? `${name}_base64` : name] = binary ? area.value.trim() : area.value;
    }
    if (type && type.value.trim() !== (original.contentType ?? "")) found.content_type = type.value.trim();
    if (headers) {
      const parsed = asJson ? parseJsonHeaders(headers.value) : parseHeaders(headers.value);
      if (headerLines(parsed, asJson) !== headerLines(original.headers, asJson)) found.headers = parsed;
    }
    return found;
  }

  const review = {
    label: "Review changes",
    test: "editor-review",
    tone: "primary",
    run(dialog) {
      const found = changes();
      checkBody(found);
      const unchanged = Object.keys(found).length === 0;
      const parts = [];
      if (name in found || `${name}_base64` in found) parts.push(diffView(label, binary ? before : shown(before), binary ? area.value.trim() : shown(area.value), "diff-body"));
      if ("content_type" in found) parts.push(diffView("Content type", original.contentType ?? "", found.content_type, "diff-content-type"));
      if ("headers" in found) parts.push(diffView("Headers", headerLines(original.headers, asJson), headerLines(found.headers, asJson), "diff-headers"));
      if ((name in found) && parts.length > 0 && shown(before) === shown(area.value)) parts.push(h("p.muted", {}, "Only the formatting of the JSON differs."));
      dialog.setBody(unchanged ? h("p", { "data-test": "editor-unchanged" }, "There are no changes.") : h("p", {}, "Changes to save:"), parts);
      dialog.setActions([
        ...actions.map((action) => ({ label: action.label, test: action.test, tone: action.tone, disabled: unchanged && !action.evenUnchanged, run: () => action.save(found) })),
        { label: "Back to editing", test: "editor-back", run: (same) => {
          same.setBody(form);
          same.setActions([review]);
          area.focus();
          return false;
        } },
      ]);
      dialog.element.querySelector("[data-test=dialog-cancel]").focus();
      return false;
    },
  };
  return openDialog({ title, test, wide: true, body: form, actions: [review] });
}
