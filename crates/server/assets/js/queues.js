// The stats of all queues, loaded once and updated by events.

import { api } from "./api.js";
import { live } from "./live.js";

const listeners = new Set();
let loading = null;

export const queues = {
  all: new Map(),
  loaded: false,
  /** Calls `act` with the names of changed queues, or with null if all may have changed. */
  on(act) {
    listeners.add(act);
    return () => listeners.delete(act);
  },
  load() {
    loading ??= fetchAll().finally(() => {
      loading = null;
    });
    return loading;
  },
  forget() {
    queues.all = new Map();
    queues.loaded = false;
  },
};

function notify(names) {
  for (const act of listeners) act(names);
}

async function fetchAll() {
  const all = new Map();
  let after;
  do {
    const page = await api.get("/v1/queues", { query: { limit: 1000, after } });
    for (const stats of page.queues) all.set(stats.queue, stats);
    after = page.next;
  } while (after);
  queues.all = all;
  queues.loaded = true;
  notify(null);
}

live.on("queues", (event) => {
  let isNew = false;
  for (const stats of event.queues) {
    isNew ||= !queues.all.has(stats.queue);
    queues.all.set(stats.queue, stats);
  }
  notify(isNew ? null : event.queues.map((stats) => stats.queue));
});

live.on("gone", (event) => {
  for (const name of event.queues) queues.all.delete(name);
  notify(null);
});

live.on("resync", () => queues.load().catch(() => {}));
