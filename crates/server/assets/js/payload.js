// The viewer of bodies, payloads and results: laid out, raw, or base64.

import { h, replace } from "./elements.js";
import { layOut } from "./json_text.js";
import { hexDump, size, toBase64 } from "./bytes_text.js";
import { bytes as bytesText } from "./format.js";
import { copyButton } from "./clipboard.js";

const COLOURED = 60_000; // characters; beyond that every token as an element would be slow

export function payloadViewer(bytes, { label = "Body", test = "payload" } = {}) {
  if (bytes === null) return h("p.muted", { "data-test": test }, "None.");
  const laidOut = bytes.text !== null ? layOut(bytes.text) : null;
  const views = {
    Pretty: laidOut && (() => (bytes.text.length > COLOURED ? laidOut.map((part) => part.text).join("") : laidOut.map((part) => (part.kind === "plain" ? part.text : h(`span.json-${part.kind}`, {}, part.text))))),
    Raw: () => (bytes.text !== null ? bytes.text : hexDump(bytes.base64)),
    Base64: () => bytes.base64 ?? toBase64(bytes.text),
  };
  const block = h("pre.code", { tabindex: "0", "aria-label": label, "data-test": `${test}-text` });
  const choices = Object.keys(views).map((name) => {
    const absent = !views[name];
    return h("button.choice", { type: "button", disabled: absent, title: absent ? "Not JSON" : null, "data-test": `${test}-${name.toLowerCase()}`, on: { click: () => choose(name) } }, name);
  });
  let shown = null;
  function choose(name) {
    shown = name;
    const content = views[name]();
    replace(block, content === "" ? h("span.muted", {}, "(empty)") : content);
    choices.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
  }
  choose(laidOut ? "Pretty" : "Raw");
  const kind = bytes.text === null ? "binary" : laidOut ? "JSON" : "text";
  return h(
    "div.payload",
    { "data-test": test },
    h("div.payload-head", {}, h("div.choices", { role: "group", "aria-label": `How ${label.toLowerCase()} is shown` }, choices), h("span.muted", {}, `${kind}, ${bytesText(size(bytes))}`), h("span.spacer"), copyButton(() => (shown === "Raw" && bytes.text === null ? hexDump(bytes.base64) : block.textContent === "(empty)" ? "" : block.textContent), "Copy what is shown")),
    block,
  );
}

export function headersTable(headers) {
  const names = Object.keys(headers ?? {});
  if (names.length === 0) return h("p.muted", {}, "No headers.");
  return h("dl.kv.mono", { "data-test": "headers" }, names.sort().flatMap((name) => [h("dt", {}, name), h("dd", {}, headers[name])]));
}
