// The details of a message: facts, body, headers and attempts.

import { api, isAbort } from "./api.js";
import { h, replace } from "./elements.js";
import { absolute, duration, number, time } from "./format.js";
import { copyableId } from "./clipboard.js";
import { headersTable, payloadViewer } from "./payload.js";
import { problemBox } from "./problem_box.js";

/** A list of names and values; unknown values are omitted. */
export const messageFacts = (pairs) =>
  h("dl.kv", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** A timeline of attempts, oldest first. Each is `{title, tone, started, ended, worker, error}`. */
export function timeline(attempts) {
  return h(
    "ol.timeline",
    { "data-test": "timeline" },
    attempts.map((one) =>
      h(
        "li",
        { "data-test": "attempt", "data-tone": one.tone },
        h("div.timeline-head", {}, h("strong", {}, one.title), " ", time(one.started), one.ended ? h("span.muted", { title: absolute(one.ended) }, `, took ${duration((Date.parse(one.ended) - Date.parse(one.started)) / 1000)}`) : null, one.worker ? h("span.muted", {}, " by ", h("code", {}, one.worker)) : null),
        one.error ? h("pre.error-text", {}, one.error) : null,
      ),
    ),
  );
}

// A store without attempts refuses the request; it is sent once.
let attemptsRefused = null;

async function drawAttempts(view, place, url, message) {
  let answer;
  try {
    if (attemptsRefused) throw attemptsRefused;
    answer = await api.get(url, { signal: view.signal });
  } catch (error) {
    if (isAbort(error)) return;
    if (error.code !== "not_supported") {
      replace(place, problemBox(error));
      return;
    }
    attemptsRefused = error;
    // The counts and the last error are known all the same.
    replace(
      place,
      h("p.muted", { "data-test": "attempts-not-kept" }, error.detail),
      h("p", {}, `${number(message.receive_count)} deliveries, ${number(message.attempts_count)} failed attempts.`),
      message.last_error ?? message.error ? h("pre.error-text", {}, message.last_error ?? message.error) : null,
    );
    return;
  }
  if (answer.attempts.length === 0) {
    replace(place, h("p.muted", { "data-test": "no-attempts" }, "No attempt has failed."));
    return;
  }
  replace(place, timeline(answer.attempts.map((one) => ({ title: `Attempt ${one.attempt} failed`, tone: "bad", started: one.started_at, ended: one.failed_at, worker: one.worker, error: one.error ?? "no error text" }))));
}

/** The panel beside a list; on a small screen it covers the list. */
export function detailPanel({ onClose }) {
  const element = h("aside.detail", { hidden: true, "aria-label": "Details", "data-test": "detail", tabindex: "-1" });
  let cameFrom = null;
  const panel = {
    element,
    close() {
      if (element.hidden) return;
      const hadFocus = element.contains(document.activeElement);
      element.hidden = true;
      document.body.classList.remove("detail-open");
      replace(element);
      onClose();
      if (hadFocus && cameFrom?.isConnected) cameFrom.focus({ preventScroll: true });
    },
    /** Updates the facts of the shown message. */
    refresh(facts) {
      if (!element.hidden) replace(element.querySelector(".facts"), facts);
    },
    show(view, { title, message, facts, bytes, attemptsUrl, actions }) {
      cameFrom = document.activeElement;
      const attempts = h("div", {}, h("p.muted", {}, "Loading…"));
      replace(
        element,
        h("div.detail-head", {}, h("h2", {}, title), h("span.spacer"), h("button.btn.ghost.icon", { type: "button", "aria-label": "Close the details", "data-test": "detail-close", on: { click: () => panel.close() } }, "×")),
        copyableId(message.id),
        actions ? h("div.actions", {}, actions) : null,
        h("div.facts", {}, facts),
        h("h3", {}, "Body"),
        payloadViewer(bytes),
        h("h3", {}, "Headers"),
        headersTable(message.headers),
        // Archived messages have no attempts.
        attemptsUrl ? [h("h3", {}, "Attempts"), attempts] : null,
      );
      element.hidden = false;
      element.scrollTop = 0;
      document.body.classList.add("detail-open");
      view.until(() => document.body.classList.remove("detail-open"));
      if (matchMedia("(max-width: 1000px)").matches) element.focus({ preventScroll: true });
      if (attemptsUrl) drawAttempts(view, attempts, attemptsUrl, message);
    },
  };
  return panel;
}
