// Modal dialogs: they trap and restore the focus, close on Escape, and show errors of their actions.

import { freshId, h, replace } from "./elements.js";
import { problemBox } from "./problem_box.js";
import { isAbort } from "./api.js";

const FOCUSABLE = "a[href], button:not([disabled]), input:not([disabled]), select:not([disabled]), textarea:not([disabled]), summary, [tabindex='0']";

/**
 * `actions` are `{label, test, tone, run, disabled}`; Enter in a field runs the first. `run` receives the dialog, which stays
 * open if `run` fails or returns `false`.
 */
export function openDialog({ title, test, body = [], actions = [], wide = false, closeLabel = "Cancel", onClose }) {
  const titleId = freshId("dialog");
  const cameFrom = document.activeElement;
  const content = h("div.dialog-body", {}, body);
  const problems = h("div.dialog-problems");
  const foot = h("div.dialog-foot");
  const form = h("form", { novalidate: true }, content, problems, h("div.dialog-toasts"), foot);
  const element = h(
    wide ? "dialog.dialog.wide" : "dialog.dialog",
    { "aria-labelledby": titleId, "data-test": test },
    h("div.dialog-head", {}, h("h2", { id: titleId }, title), h("button.btn.ghost.icon", { type: "button", "aria-label": "Close", "data-test": "dialog-close", on: { click: () => dialog.close() } }, "×")),
    form,
  );

  const dialog = {
    element,
    content,
    isOpen: true,
    close() {
      if (element.open) element.close();
    },
    setBody(...children) {
      replace(content, ...children);
    },
    showProblem(error) {
      replace(problems, error ? problemBox(error) : null);
      problems.scrollIntoView?.({ block: "nearest" });
    },
    setActions(next, close = closeLabel) {
      dialog.actions = next;
      const buttons = next.map((action, i) =>
        h(
          `button.btn${action.tone ? `.${action.tone}` : ""}`,
          { type: i === 0 ? "submit" : "button", "data-test": action.test, disabled: action.disabled, on: i === 0 ? {} : { click: () => run(action, buttons[i]) } },
          action.label,
        ),
      );
      dialog.buttons = buttons;
      replace(foot, h("button.btn", { type: "button", "data-test": "dialog-cancel", on: { click: () => dialog.close() } }, close), h("span.spacer"), [...buttons].reverse());
    },
  };

  async function run(action, button) {
    if (button.disabled) return;
    dialog.showProblem(null);
    const before = dialog.buttons.map((one) => one.disabled);
    dialog.buttons.forEach((one) => (one.disabled = true));
    button.setAttribute("aria-busy", "true");
    try {
      if ((await action.run(dialog)) !== false) dialog.close();
    } catch (error) {
      if (!isAbort(error)) dialog.showProblem(error);
    } finally {
      button.removeAttribute("aria-busy");
      // Unless `run` has replaced the buttons.
      if (dialog.buttons.includes(button)) dialog.buttons.forEach((one, i) => (one.disabled = before[i]));
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (dialog.actions.length > 0) run(dialog.actions[0], dialog.buttons[0]);
  });
  element.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Tab") return;
    const inside = [...element.querySelectorAll(FOCUSABLE)].filter((one) => one.offsetParent !== null);
    if (inside.length === 0) return;
    const first = inside[0];
    const last = inside[inside.length - 1];
    if (event.shiftKey && (document.activeElement === first || !element.contains(document.activeElement))) {
      event.preventDefault();
      last.focus();
    } else if (!event.shiftKey && document.activeElement === last) {
      event.preventDefault();
      first.focus();
    }
  });
  element.addEventListener("close", () => {
    dialog.isOpen = false;
    element.remove();
    const target = cameFrom?.isConnected ? cameFrom : document.querySelector("#main h1");
    target?.focus?.({ preventScroll: true });
    onClose?.();
  });

  dialog.setActions(actions);
  document.body.append(element);
  element.showModal();
  (content.querySelector("[data-autofocus]") ?? content.querySelector("input, textarea, select") ?? foot.querySelector("button"))?.focus();
  return dialog;
}

/**
 * Confirms a destructive action. `count` reads the current numbers and returns `{text, label, nothing}`: the question, the
 * button's label, and whether there is nothing to do. With `typed`, that text must be typed first.
 */
export function confirmDialog({ title, test, count, typed, tone = "danger", run, onDone }) {
  const typedId = freshId("typed");
  const message = h("p", { "data-test": "confirm-text", "aria-live": "polite" }, "Counting…");
  const field = typed
    ? h("div.field", {}, h("label", { for: typedId }, "Type ", h("code", {}, typed), " to confirm"), h("input", { id: typedId, autocomplete: "off", spellcheck: "false", "data-test": "confirm-typed" }))
    : null;
  let counted = null;
  const dialog = openDialog({ title, test, body: [message, field], actions: [action("…", true)] });
  const input = field?.querySelector("input");
  input?.addEventListener("input", update);
  (input ?? dialog.element.querySelector("[data-test=dialog-cancel]")).focus();

  function action(label, disabled) {
    return {
      label,
      test: "confirm-button",
      tone,
      disabled,
      run: async () => {
        const result = await run();
        onDone?.(result);
      },
    };
  }

  function update() {
    dialog.buttons[0].disabled = counted === null || counted.nothing || (typed !== undefined && input.value.trim() !== typed);
  }

  (async () => {
    try {
      counted = await count();
    } catch (error) {
      replace(message, "The affected rows could not be counted, so nothing is done.");
      dialog.showProblem(error);
      return;
    }
    replace(message, counted.text);
    dialog.setActions([action(counted.label, true)], counted.nothing ? "Close" : "Cancel");
    update();
  })();
  return dialog;
}

/** A labelled field. `control` is an input, select or textarea. */
export function field(label, control, note) {
  const id = freshId("field");
  control.id = id;
  if (note) control.setAttribute("aria-describedby", `${id}-note`);
  return h("div.field", {}, h("label", { for: id }, label), control, note ? h("p.note", { id: `${id}-note` }, note) : null);
}
