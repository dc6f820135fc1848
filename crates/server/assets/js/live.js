// The server's events, and the state of their connection.

import { api } from "./api.js";

// `resync`: this client was too slow and has missed events.
const TYPES = ["queues", "gone", "job", "tasks", "schedules", "resync"];
const SILENCE = 40_000; // the server pings every 15 seconds
const HIDDEN = 60_000; // background tabs disconnect: a browser allows few connections per host

const listeners = new Map();
let source = null;
let attempts = 0;
let lastEvent = 0;
let retryTimer = null;
let hiddenTimer = null;
let wasLive = false;
let wanted = false;

export const live = {
  /** connecting, live, reconnecting, resting */
  state: "connecting",
  /** Listens to the server's events, to `state`, and to `resync`, which also follows a reconnect. Returns the unsubscriber. */
  on(type, act) {
    if (!listeners.has(type)) listeners.set(type, new Set());
    listeners.get(type).add(act);
    return () => listeners.get(type).delete(act);
  },
  start() {
    if (wanted) return;
    wanted = true;
    open();
  },
  stop() {
    wanted = false;
    shut();
  },
};

function emit(type, data) {
  for (const act of listeners.get(type) ?? []) act(data);
}

function become(state) {
  if (live.state === state) return;
  live.state = state;
  emit("state", state);
}

function shut() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function open() {
  shut();
  if (!wanted) return;
  lastEvent = Date.now();
  const opened = new EventSource("/v1/events");
  source = opened;
  const received = (act) => (event) => {
    if (source !== opened) return;
    lastEvent = Date.now();
    act(event);
  };
  opened.onopen = received(() => {
    attempts = 0;
    become("live");
    // Missed events are made up for by a reload.
    if (wasLive) emit("resync");
    wasLive = true;
  });
  opened.onerror = () => {
    if (source === opened) reconnect();
  };
  opened.addEventListener("ping", received(()  => {}));
  for (const type of TYPES) opened.addEventListener(type, received((event) => emit(type, JSON.parse(event.data || "{}"))));
}

function reconnect() {
  shut();
  become(wasLive ? "reconnecting" : "connecting");
  const wait = Math.min(15_000, 500 * 2 ** attempts++) * (0.75 + Math.random() / 2);
  retryTimer = setTimeout(open, wait);
  // An EventSource hides the status of a failure; this call leads to the login page if the token has ended.
  if (attempts === 2) api.get("/v1/queue-names").catch(() => {});
}

setInterval(() => {
  if (source !== null && Date.now() - lastEvent > SILENCE) reconnect();
}, 5000);

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => {
      shut();
      become("resting");
    }, HIDDEN);
  } else if (wanted && source === null) {
    attempts = 0;
    open();
  }
});

// The back-forward cache may keep a page with its connection.
addEventListener("pagehide", () => {
  clearTimeout(hiddenTimer);
  shut();
});
addEventListener("pageshow", (event) => {
  if (event.persisted && wanted) open();
});
