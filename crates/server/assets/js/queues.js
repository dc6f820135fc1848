// Every queue's numbers, loaded once and kept up to date by events.

import { api } from "./api.js";
import { live } from "./live.js";

const listeners = new Set();
let loading = null;

export const queues = {
  all: new Map(),
  loaded: false,
  /** Told of the names that changed; of null when it may be all of them. */
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

function tell(names) {
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
  tell(null);
}

live.on("queues", (event) => {
  let isNew = false;
  for (const stats of event.queues) {
    isNew ||= !queues.all.has(stats.queue);
    queues.all.set(stats.queue, stats);
  }
  tell(isNew ? null : event.queues.map((stats) => stats.queue));
});

live.on("gone", (event) => {
  for (const name of event.queues) queues.all.delete(name);
  tell(null);
});

live.on("resync", () => queues.load().catch(() => {}));
