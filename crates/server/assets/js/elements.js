// Elements from code. Texts become text nodes and nothing else: what a message holds is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child);
  }
}

function make(create, description, attributes, children) {
  const [tag, ...classes] = description.split(".");
  const element = create(tag);
  if (classes.length > 0) element.setAttribute("class", classes.join(" "));
  return fill(element, attributes, children);
}

/** `h("button.btn.primary", {type: "button", on: {click}}, "Send")` */
export const h = (description, attributes, ...children) =>
  make((tag) => document.createElement(tag), description, attributes, children);

export const svg = (description, attributes, ...children) =>
  make((tag) => document.createElementNS(SVG, tag), description, attributes, children);

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

let lastId = 0;
/** An id for `label for` and `aria-labelledby`. */
export const freshId = (prefix) => `${prefix}-${++lastId}`;

/** Calls at most once in `ms`, and once more at the end when it was asked meanwhile. */
export function throttled(ms, act) {
  let timer = null;
  let again = false;
  return () => {
    if (timer !== null) {
      again = true;
      return;
    }
    act();
    timer = setTimeout(function end() {
      timer = null;
      if (!again) return;
      again = false;
      act();
      timer = setTimeout(end, ms);
    }, ms);
  };
}
