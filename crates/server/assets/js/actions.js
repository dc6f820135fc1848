// Buttons that know who may press them.

import { h } from "./elements.js";
import { refusal } from "./session.js";
import { toast, toastProblem } from "./toasts.js";
import { isAbort } from "./api.js";

/** A button for those who have `role` (on `queue`); for others it stays visible and says why it does nothing. */
export function actionButton({ label, test, role, queue, tone, small, title, run }) {
  const why = role ? refusal(role, queue) : null;
  const button = h(
    `button.btn${tone ? `.${tone}` : ""}${small ? ".small" : ""}`,
    { type: "button", "data-test": test, "aria-disabled": why ? "true" : null, title: why ?? title },
    label,
  );
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    if (why) {
      toast(why, "info");
      return;
    }
    if (button.getAttribute("aria-busy")) return;
    button.setAttribute("aria-busy", "true");
    try {
      await run(button);
    } catch (error) {
      if (!isAbort(error)) toastProblem(error);
    } finally {
      button.removeAttribute("aria-busy");
    }
  });
  return button;
}

/** Says at the top of a page that what it shows can not be seen by this token. */
export function refusedPage(role) {
  const why = refusal(role);
  return why === null ? null : h("div.empty", { "data-test": "refused" }, h("h2", {}, "Not for this token"), h("p", {}, why));
}
