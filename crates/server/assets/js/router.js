// Routes, and the lifetime of the current page.

import { live } from "./live.js";
import { h, replace } from "./elements.js";
import { problemBox } from "./problem_box.js";
import { isAbort } from "./api.js";

const routes = [];
let current = null;

/** `route("/ui/queues/:queue", page, "overview")`: the section is the current link of the navigation. */
export function route(pattern, page, section) {
  const names = [];
  const source = pattern.replace(/:([a-z]+)/g, (_, name) => {
    names.push(name);
    return "([^/]+)";
  });
  routes.push({ match: new RegExp(`^${source}/?$`), names, page, section });
}

function find(pathname) {
  for (const { match, names, page, section } of routes) {
    const found = match.exec(pathname);
    if (found === null) continue;
    const params = {};
    try {
      names.forEach((name, i) => {
        params[name] = decodeURIComponent(found[i + 1]);
      });
    } catch {
      return null; // an invalid escape, like /ui/queues/%
    }
    return { page, section, params };
  }
  return null;
}

export function navigate(url, { replace: instead = false } = {}) {
  if (instead) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  show({ moved: true });
}

/** Writes a page's filters into the URL. */
export function replaceQuery(query) {
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text === "" ? "" : `?${text}`));
}

/** The same with a history entry: the back button restores the previous filters. */
export function pushQuery(query) {
  const text = query.toString();
  const url = location.pathname + (text === "" ? "" : `?${text}`);
  if (url !== location.pathname + location.search) history.pushState(null, "", url);
}

export const currentView = () => current;

/** The context of a page: parameters, root element, and the end of everything that it starts. */
class View {
  constructor(params, section) {
    this.params = params;
    this.section = section;
    this.query = new URLSearchParams(location.search);
    this.root = h("div.page");
    this.ends = new AbortController();
    this.signal = this.ends.signal;
    this.keys = {};
  }

  /** Calls `stop` when the page is left. */
  until(stop) {
    this.signal.addEventListener("abort", stop, { once: true });
  }

  onLive(type, act) {
    this.until(live.on(type, act));
  }

  /** Calls `act` periodically while the tab is visible. */
  every(ms, act) {
    const timer = setInterval(() => {
      if (!document.hidden) act();
    }, ms);
    this.until(() => clearInterval(timer));
  }

  title(text) {
    document.title = `${text} · Postrider`;
  }

  /** Runs `act` and shows an error in the page. Returns whether it succeeded. */
  async attempt(act, place = this.root) {
    try {
      await act();
      return true;
    } catch (error) {
      if (isAbort(error) || this.signal.aborted) return false;
      replace(place, problemBox(error, { retry: () => refresh() }));
      return false;
    }
  }
}

export async function show({ moved = false } = {}) {
  const found = find(location.pathname);
  current?.ends.abort();
  const view = new View(found?.params ?? {}, found?.section ?? "");
  current = view;
  const main = document.getElementById("main");
  for (const link of document.querySelectorAll("#nav a[data-page]")) {
    if (link.dataset.page === view.section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const link of document.querySelectorAll("#nav-queues a")) {
    if (link.dataset.queue === view.params.queue) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(view.root);
  if (moved) {
    scrollTo(0, 0);
    // Dialogs belong to the page that was left.
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  }
  if (found === null) {
    view.title("Not found");
    replace(view.root, h("div.empty", { "data-test": "page-not-found" }, h("h1", { tabindex: "-1" }, "Page not found"), h("p", {}, h("a", { href: "/" }, "Go to the overview"))));
  } else {
    await view.attempt(() => found.page(view));
  }
  if (current !== view || !moved) return;
  const heading = view.root.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  heading?.focus({ preventScroll: true });
  document.getElementById("announcer").textContent = document.title;
}

/** Loads the current page again. */
export const refresh = () => show();

addEventListener("popstate", () => show({ moved: true }));

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target.closest("a[href]");
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (link.hash !== "" && link.pathname === location.pathname) return;
  if (link.pathname !== "/" && !link.pathname.startsWith("/ui/")) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
});
