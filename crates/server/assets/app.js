// The dashboard: session, routes, navigation and top bar.

import { api, onUnauthorized, path } from "./js/api.js";
import { loadSession, may, session } from "./js/session.js";
import { live } from "./js/live.js";
import { queues } from "./js/queues.js";
import { loadJobs, openJobs } from "./js/jobs.js";
import { navigate, route, show } from "./js/router.js";
import { h, reconcile, replace, throttled } from "./js/elements.js";
import { startKeyboard, openHelp } from "./js/keyboard.js";
import { toast, toastProblem } from "./js/toasts.js";
import { number } from "./js/format.js";
import { overviewPage } from "./js/pages/overview.js";
import { queuePage } from "./js/pages/queue.js";
import { messagesPage } from "./js/pages/messages.js";
import { deadLettersPage } from "./js/pages/dead_letters.js";
import { archivePage } from "./js/pages/archive.js";
import { tasksPage } from "./js/pages/tasks.js";
import { taskPage } from "./js/pages/task.js";
import { schedulesPage } from "./js/pages/schedules.js";
import { schedulePage } from "./js/pages/schedule.js";
import { workersPage } from "./js/pages/workers.js";
import { providerPage } from "./js/pages/provider.js";
import { auditPage } from "./js/pages/audit.js";
import { tokensPage } from "./js/pages/tokens.js";
import { loginPage } from "./js/pages/login.js";

route("/", overviewPage, "overview");
route("/ui", overviewPage, "overview");
route("/ui/queues", overviewPage, "overview");
route("/ui/queues/:queue", queuePage, "");
route("/ui/queues/:queue/messages", messagesPage, "");
route("/ui/queues/:queue/dead-letters", deadLettersPage, "");
route("/ui/queues/:queue/archive", archivePage, "");
route("/ui/tasks", tasksPage, "tasks");
route("/ui/tasks/:id", taskPage, "tasks");
route("/ui/schedules", schedulesPage, "schedules");
route("/ui/schedules/:name", schedulePage, "schedules");
route("/ui/workers", workersPage, "workers");
route("/ui/provider", providerPage, "provider");
route("/ui/audit", auditPage, "audit");
route("/ui/tokens", tokensPage, "tokens");
route("/ui/login", (view) => loginPage(view, enter), "");

const byId = (id) => document.getElementById(id);

function showLive(state) {
  const texts = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", resting: "Paused" };
  const titles = { live: "Changes are shown as they happen", reconnecting: "The connection to the server was lost; the page may be out of date", connecting: "Waiting for the server's events", resting: "This tab was in the background; it reconnects when you return" };
  byId("live").dataset.state = state;
  byId("live").title = titles[state];
  byId("live").querySelector(".live-text").textContent = texts[state];
}

function showSession() {
  document.body.classList.toggle("anonymous", !session.authenticated);
  byId("store").textContent = session.store ?? session.provider ?? "";
  byId("store").title = session.store ? `The store: ${session.store}` : "";
  byId("version").textContent = session.version ? `Postrider ${session.version}` : "";
  const who = byId("who");
  if (!session.authenticated) replace(who);
  else if (session.open) replace(who, h("span.pill", { title: "There are no tokens: every client that reaches this address may do everything. The server listens on loopback only.", "data-test": "open-mode" }, "open"));
  else {
    replace(who, h("span.who-name", { title: `Roles: ${session.roles.join(", ")}${session.queues ? `; queues: ${session.queues.join(", ")}` : ""}` }, session.name), h("button.btn.small", { type: "button", "data-test": "logout", on: { click: logout } }, "Log out"));
  }
}

async function logout() {
  try {
    await api.remove("/v1/session");
  } catch (error) {
    toastProblem(error);
    return;
  }
  live.stop();
  queues.forget();
  drawNavQueues();
  await loadSession();
  showSession();
  navigate("/ui/login");
}

function toLogin() {
  live.stop();
  if (location.pathname === "/ui/login") return;
  const from = location.pathname + location.search;
  navigate(`/ui/login?from=${encodeURIComponent(from)}`, { replace: true });
}

onUnauthorized(async () => {
  try {
    await loadSession();
  } catch {
    return;
  }
  if (session.authenticated) return;
  showSession();
  toast("The session has ended. Log in again.", "info");
  toLogin();
});

/** Called at the start and after a login. Returns whether the session is authenticated. */
async function enter() {
  await loadSession();
  showSession();
  if (!session.authenticated) return false;
  if (!may("read")) return true;
  live.start();
  queues.load().catch(() => {});
  loadJobs().catch(() => {});
  return true;
}

const NAV_QUEUES = 12;
// The navigation lists the queues with dead letters or the most ready messages; the overview lists all.
function drawNavQueues() {
  const place = byId("nav-queues");
  const list = [...queues.all.values()].sort((a, b) => (b.dead > 0) - (a.dead > 0) || (b.ready ?? 0) - (a.ready ?? 0) || (a.queue < b.queue ? -1 : 1)).slice(0, NAV_QUEUES).sort((a, b) => (a.queue < b.queue ? -1 : 1));
  if (list.length === 0) return replace(place);
  const isHere = (href) => location.pathname === href || location.pathname.startsWith(`${href}/`);
  reconcile(place, [
    h("h2", { "data-key": "" }, "Queues"),
    ...list.map((stats) => h("a", { href: path`/ui/queues/${stats.queue}`, "data-key": `queue ${stats.queue}`, "data-queue": stats.queue, "data-test": "nav-queue", title: stats.queue, "aria-current": isHere(path`/ui/queues/${stats.queue}`) ? "page" : null }, h("span.name", {}, stats.queue), stats.dead > 0 ? h("span.dot.bad", { title: "has dead letters", role: "img", "aria-label": "has dead letters" }) : null, stats.paused ? h("span.muted", {}, "paused") : h("span.muted", {}, number(stats.ready)))),
    ...(queues.all.size > list.length ? [h("a.muted", { href: "/", "data-key": "all" }, `all ${number(queues.all.size)}`)] : []),
  ]);
}
const drawNavSoon = throttled(2000, drawNavQueues);
queues.on((names) => (names === null ? drawNavQueues() : drawNavSoon()));

function startMenu() {
  const button = byId("menu-button");
  const set = (open) => {
    document.body.classList.toggle("menu-open", open);
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => set(!document.body.classList.contains("menu-open")));
  byId("nav").addEventListener("click", (event) => {
    if (event.target.closest("a")) set(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.body.classList.contains("menu-open")) {
      set(false);
      button.focus();
    }
  });
}

const THEMES = { auto: ["◐", "Colours: system"], light: ["☀", "Colours: light"], dark: ["☾", "Colours: dark"] };
function startTheme() {
  const button = byId("theme-button");
  const root = document.documentElement;
  const draw = () => {
    const [sign, text] = THEMES[root.dataset.theme ?? "auto"];
    button.textContent = sign;
    button.title = text;
    button.setAttribute("aria-label", text);
  };
  button.addEventListener("click", () => {
    const next = { auto: "light", light: "dark", dark: "auto" }[root.dataset.theme ?? "auto"];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      if (next === "auto") localStorage.removeItem("postrider.theme");
      else localStorage.setItem("postrider.theme", next);
    } catch {
      // Without storage the choice is lost on a reload.
    }
    draw();
  });
  draw();
}

live.on("state", showLive);
startMenu();
startTheme();
startKeyboard();
// By script: a jump to the fragment would be taken for a page change.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
byId("help-button").addEventListener("click", openHelp);
byId("jobs-button").addEventListener("click", () => openJobs());

try {
  const entered = await enter();
  if (!entered) toLogin();
  if (entered || location.pathname === "/ui/login") await show();
} catch (error) {
  const { problemBox } = await import("./js/problem_box.js");
  byId("main").replaceChildren(problemBox(error, { retry: () => location.reload() }));
}
