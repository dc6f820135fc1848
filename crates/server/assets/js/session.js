// The session and its roles.

import { api } from "./api.js";
import { clock } from "./format.js";

export let session = null;

export async function loadSession() {
  session = await api.get("/v1/session");
  if (session.now) clock.offset = Date.parse(session.now) - Date.now();
  return session;
}

const IMPLIED = { admin: ["read", "produce", "consume", "operate", "admin"], operate: ["operate", "read"] };

function has(role) {
  return (session?.roles ?? []).some((own) => own === role || IMPLIED[own]?.includes(role));
}

const covers = (pattern, queue) => (pattern.endsWith("*") ? queue.startsWith(pattern.slice(0, -1)) : pattern === queue);

/** The reason why an action is not allowed; null if it is. */
export function refusal(role, queue) {
  if (session === null) return "The session is not loaded yet.";
  if (!has(role)) {
    const own = session.roles?.length > 0 ? session.roles.join(", ") : "none";
    return `This needs the role “${role}”. ${session.name ? `“${session.name}” has` : "You have"}: ${own}.`;
  }
  if (queue && session.queues && !session.queues.some((pattern) => covers(pattern, queue))) {
    return `“${session.name}” is limited to the queues ${session.queues.join(", ")}.`;
  }
  return null;
}

export const may = (role, queue) => refusal(role, queue) === null;

let routes = null;
/** The queue of a task type, by which tokens are limited. */
export async function queueOfType(type) {
  routes ??= api.get("/v1/tasks/routes").catch(() => {
    routes = null;
    return null;
  });
  return `${(await routes)?.queue_prefix ?? "task_"}${type}`;
}
