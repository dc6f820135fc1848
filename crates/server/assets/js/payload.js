// The viewer of bodies, payloads and results: pretty, raw or base64.

import { h, replace } from "./elements.js";
import { layOut, pretty } from "./json_text.js";
import { hexDump, size, toBase64 } from "./bytes_text.js";
import { bytes as bytesText, number } from "./format.js";
import { copyButton } from "./clipboard.js";

const SHOWN_AT_FIRST = 50_000; // characters
const SHOWN_MORE = 200_000; // characters
const COLOURED = 4_000; // tokens; each is an element

/** At most `most` characters of a text, without splitting a surrogate pair. */
function beginning(text, most) {
  if (text.length <= most) return text;
  const last = text.charCodeAt(most - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? most - 1 : most);
}

/** The formatted text with colours, cut to `most` characters; without colours if there are many tokens. */
function coloured(text, most) {
  const parts = [];
  let left = most;
  for (const part of layOut(text, { most })) {
    if (left <= 0) break;
    parts.push({ kind: part.kind, text: beginning(part.text, left) });
    left -= part.text.length;
  }
  if (parts.length > COLOURED) return [parts.map((part) => part.text).join("")];
  return parts.map((part) => (part.kind === "plain" ? part.text : h(`span.json-${part.kind}`, {}, part.text)));
}

export function payloadViewer(bytes, { label = "Body", test = "payload" } = {}) {
  if (bytes === null) return h("p.muted", { "data-test": test }, "None.");
  const isJson = bytes.text !== null && layOut(bytes.text, { most: 0 }) !== null;
  // `whole` is for the clipboard and the length, `begin` for the page.
  const plain = (whole) => ({ whole, begin: (most) => [beginning(whole(), most)] });
  const views = {
    Pretty: isJson ? { whole: () => pretty(bytes.text), begin: (most) => coloured(bytes.text, most) } : null,
    Raw: plain(() => (bytes.text !== null ? bytes.text : hexDump(bytes.base64))),
    Base64: plain(() => bytes.base64 ?? toBase64(bytes.text)),
  };
  const block = h("pre.code", { tabindex: "0", "aria-label": label, "data-test": `${test}-text` });
  const foot = h("div.payload-foot", { hidden: true, "data-test": `${test}-rest` });
  const choices = Object.keys(views).map((name) => {
    const absent = !views[name];
    return h("button.choice", { type: "button", disabled: absent, title: absent ? "Not JSON" : null, "data-test": `${test}-${name.toLowerCase()}`, on: { click: () => choose(name) } }, name);
  });
  let chosen = null;
  function choose(name) {
    chosen = name;
    choices.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
    draw(SHOWN_AT_FIRST);
  }
  // Browsers render a line of a megabyte slowly, so more is shown on request only.
  function draw(most) {
    const total = views[chosen].whole().length;
    replace(block, total === 0 ? h("span.muted", {}, "(empty)") : views[chosen].begin(most));
    foot.hidden = total <= most;
    if (foot.hidden) return replace(foot);
    replace(
      foot,
      h("span.muted", {}, `The first ${number(most)} of ${number(total)} characters.`),
      h("button.btn.small", { type: "button", "data-test": `${test}-more`, on: { click: () => draw(most + SHOWN_MORE) } }, "Show more"),
    );
  }
  choose(isJson ? "Pretty" : "Raw");
  const kind = bytes.text === null ? "binary" : isJson ? "JSON" : "text";
  return h(
    "div.payload",
    { "data-test": test },
    h("div.payload-head", {}, h("div.choices", { role: "group", "aria-label": `How ${label.toLowerCase()} is shown` }, choices), h("span.muted", {}, `${kind}, ${bytesText(size(bytes))}`), h("span.spacer"), copyButton(() => views[chosen].whole(), "Copy this view")),
    block,
    foot,
  );
}

export function headersTable(headers) {
  const names = Object.keys(headers ?? {});
  if (names.length === 0) return h("p.muted", {}, "No headers.");
  return h("dl.kv.mono", { "data-test": "headers" }, names.sort().flatMap((name) => [h("dt", {}, name), h("dd", {}, headers[name])]));
}
