// An error with the server's text.

import { h } from "./elements.js";

export function problemBox(error, { retry } = {}) {
  const code = error.code ?? "error";
  return h(
    "div.problem",
    { role: "alert", "data-test": "problem", "data-code": code },
    h("strong", {}, error.title ?? "Something went wrong"),
    h("p", { "data-test": "problem-detail" }, error.detail ?? error.message),
    h("p.problem-foot", {}, h("code", {}, code), error.requestId ? h("span.muted", {}, ` request ${error.requestId}`) : null),
    retry ? h("button.btn.small", { type: "button", "data-test": "problem-retry", on: { click: retry } }, "Try again") : null,
  );
}
