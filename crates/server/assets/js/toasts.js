// Notifications of results and errors.

import { h } from "./elements.js";

const STAY = { good: 5000, info: 7000, bad: 15000 };

export function toast(text, tone = "good", code = null) {
  const place = document.getElementById("toasts");
  const box = h(
    `div.toast.${tone}`,
    { role: tone === "bad" ? "alert" : "status", "data-test": "toast", "data-tone": tone },
    h("span", {}, text, code ? [" ", h("code", {}, code)] : null),
    h("button.btn.ghost.icon", { type: "button", "aria-label": "Dismiss", on: { click: () => box.remove() } }, "×"),
  );
  // A modal dialog makes the rest of the page inert, so toasts are shown inside it.
  (document.querySelector("dialog[open] .dialog-toasts") ?? place).append(box);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => box.remove(), STAY[tone]);
}

export const toastProblem = (error) => toast(error.detail ?? error.message, "bad", error.code);
