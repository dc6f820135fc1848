// The server's events, and how well we hear them.

import { api } from "./api.js";

// `resync` says that more happened than we took in time.
const TYPES = ["queues", "gone", "job", "tasks", "schedules", "resync"];
const SILENCE = 40_000; // a ping comes every 15 seconds
const HIDDEN = 60_000; // a browser allows few connections to a host: tabs in the background give theirs back

const listeners = new Map();
let source = null;
let attempts = 0;
let lastHeard = 0;
let retryTimer = null;
let hiddenTimer = null;
let wasLive = false;
let wanted = false;

export const live = {
  /** connecting, live, reconnecting, resting */
  state: "connecting",
  /** `state` beside the server's own events, and `resync` also after a lost connection. Answers how to stop listening. */
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

function tell(type, data) {
  for (const act of listeners.get(type) ?? []) act(data);
}

function become(state) {
  if (live.state === state) return;
  live.state = state;
  tell("state", state);
}

function shut() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function open() {
  shut();
  if (!wanted) return;
  lastHeard = Date.now();
  const opened = new EventSource("/v1/events");
  source = opened;
  const heard = (act) => (event) => {
    if (source !== opened) return;
    lastHeard = Date.now();
    act(event);
  };
  opened.onopen = heard(() => {
    attempts = 0;
    become("live");
    // What happened while nobody listened is asked for.
    if (wasLive) tell("resync");
    wasLive = true;
  });
  opened.onerror = () => {
    if (source === opened) again();
  };
  opened.addEventListener("ping", heard(() => {}));
  for (const type of TYPES) opened.addEventListener(type, heard((event) => tell(type, JSON.parse(event.data || "{}"))));
}

function again() {
  shut();
  become(wasLive ? "reconnecting" : "connecting");
  const wait = Math.min(15_000, 500 * 2 ** attempts++) * (0.75 + Math.random() / 2);
  retryTimer = setTimeout(open, wait);
  // An EventSource does not say why it failed; this call does, and leads to the login when a token has ended.
  if (attempts === 2) api.get("/v1/queue-names").catch(() => {});
}

setInterval(() => {
  if (source !== null && Date.now() - lastHeard > SILENCE) again();
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

// A page that was left may be kept by the browser, and its connection with it.
addEventListener("pagehide", () => {
  clearTimeout(hiddenTimer);
  shut();
});
addEventListener("pageshow", (event) => {
  if (event.persisted && wanted) open();
});
