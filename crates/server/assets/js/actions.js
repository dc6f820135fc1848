// Buttons that check the role of the session.

import { h } from "./elements.js";
import { refusal } from "./session.js";
import { toast, toastProblem } from "./toasts.js";
import { isAbort } from "./api.js";

/** A button that needs `role` (on `queue`). Without it the button is visible and disabled, with the reason as its title. */
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

/** Returns the text of a page that this token may not see; null if it may. */
export function refusedPage(role) {
  const why = refusal(role);
  return why === null ? null : h("div.empty", { "data-test": "refused" }, h("h2", {}, "Not allowed for this token"), h("p", {}, why));
}
