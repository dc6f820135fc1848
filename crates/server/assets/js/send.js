// The dialog that sends a message.

import { api, path } from "./api.js";
import { field, openDialog } from "./dialogs.js";
import { h } from "./elements.js";
import { isJson } from "./json_text.js";
import { parseHeaders } from "./editor.js";
import { toast } from "./toasts.js";
import { shortId } from "./format.js";

export function openSend(queue, onSent) {
  const body = h("textarea.code", { rows: 8, spellcheck: "false", "data-test": "send-body", "data-autofocus": true });
  const type = h("input", { spellcheck: "false", placeholder: "application/json for JSON, else text/plain", "data-test": "send-content-type" });
  const headers = h("textarea.code", { rows: 3, spellcheck: "false", "data-test": "send-headers" });
  const key = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "send-key" });
  const dedup = h("input", { spellcheck: "false", autocomplete: "off", "data-test": "send-dedup-key" });
  const delay = h("input", { spellcheck: "false", autocomplete: "off", placeholder: "none", "data-test": "send-delay" });
  const priority = h("select", { "data-test": "send-priority" }, [...Array(10).keys()].reverse().map((n) => h("option", { value: n, selected: n === 4 }, n === 9 ? "9, first" : n === 4 ? "4, default" : n === 0 ? "0, last" : String(n))));
  const base64 = h("input", { type: "checkbox", "data-test": "send-base64" });
  const keep = h("input", { type: "checkbox", "data-test": "send-keep-open" });

  openDialog({
    title: `Send to ${queue}`,
    test: "dialog-send",
    wide: true,
    body: [
      field("Body", body),
      h("label.check", {}, base64, " The body is base64"),
      h("div.fields", {}, field("Ordering key", key, "Messages of a key are handled one at a time, in order"), field("Dedup key", dedup, "Not sent again while a message with it lives"), field("Delay", delay, "Like 500ms, 5s, 2m, 1h30m or 3d"), field("Priority", priority)),
      field("Headers", headers, "One per line, as name: value"),
      field("Content type", type),
      h("label.check", {}, keep, " Keep open to send another"),
    ],
    actions: [{ label: "Send", test: "send-button", tone: "primary", run: async () => {
      const message = { [base64.checked ? "body_base64" : "body"]: base64.checked ? body.value.trim() : body.value, priority: Number(priority.value) };
      const parsed = parseHeaders(headers.value);
      if (Object.keys(parsed).length > 0) message.headers = parsed;
      if (key.value.trim() !== "") message.ordering_key = key.value.trim();
      if (dedup.value.trim() !== "") message.dedup_key = dedup.value.trim();
      if (delay.value.trim() !== "") message.delay = delay.value.trim();
      if (type.value.trim() !== "") message.content_type = type.value.trim();
      else if (!base64.checked) message.content_type = isJson(body.value) ? "application/json" : "text/plain";
      const sent = await api.post(path`/v1/queues/${queue}/messages`, message);
      toast(`Sent as ${shortId(sent.id)}`);
      onSent?.(sent);
      if (!keep.checked) return true;
      body.focus();
      body.select();
      return false;
    } }],
  });
}
