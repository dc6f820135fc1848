// Builders of DOM elements. Strings become text nodes, so content of messages is never parsed as markup.

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

/**
 * Replaces the children of `place` by `elements`. A child with the same `data-key` is kept and updated, so that a link keeps
 * its focus and a click on it is not lost.
 */
export function reconcile(place, elements) {
  const known = new Map([...place.children].map((child) => [child.dataset.key, child]));
  const wanted = elements.map((fresh) => {
    const old = known.get(fresh.dataset.key);
    if (!old || old.tagName !== fresh.tagName) return fresh;
    for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const name of fresh.getAttributeNames()) if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
    if (old.innerHTML !== fresh.innerHTML) old.replaceChildren(...fresh.childNodes);
    return old;
  });
  wanted.forEach((element, i) => {
    if (place.children[i] !== element) place.insertBefore(element, place.children[i] ?? null);
  });
  while (place.children.length > wanted.length) place.lastElementChild.remove();
}

let lastId = 0;
/** An id for `label for` and `aria-labelledby`. */
export const freshId = (prefix) => `${prefix}-${++lastId}`;

/** Calls `act` at most once in `ms`, and once more at the end if there were calls in between. */
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
