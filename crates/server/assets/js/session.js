// Who we are to the server, and what that allows.

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

/** Why something is not allowed, as a sentence; null when it is. */
export function refusal(role, queue) {
  if (session === null) return "The session is not known yet.";
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
/** The queue that a task type belongs to when it is asked who may touch it. */
export async function queueOfType(type) {
  routes ??= api.get("/v1/tasks/routes").catch(() => {
    routes = null;
    return null;
  });
  return `${(await routes)?.queue_prefix ?? "task_"}${type}`;
}
