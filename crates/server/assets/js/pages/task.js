import { api, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { count, number, time } from "../format.js";
import { carried } from "../bytes_text.js";
import { pretty } from "../json_text.js";
import { payloadViewer } from "../payload.js";
import { actionButton } from "../actions.js";
import { copyableId } from "../clipboard.js";
import { diffView } from "../diff.js";
import { messageFacts, timeline } from "../message_detail.js";
import { confirmCancel, confirmReplay, editTask, isOver, progressBar, retryTask, statePill } from "../task_parts.js";
import { queueOfType } from "../session.js";

const OUTCOME = {
  running: ["is running", "accent"],
  succeeded: ["succeeded", "good"],
  failed: ["failed", "bad"],
  lease_lost: ["lost its worker", "bad"],
  canceled: ["was canceled", "plain"],
  deadline: ["ran past the deadline", "bad"],
};

const readable = (bytes) => (bytes === null ? "" : bytes.text !== null ? (pretty(bytes.text) ?? bytes.text) : bytes.base64);

export async function taskPage(view) {
  const { id } = view.params;
  view.title("Task");
  let signature = null;

  async function load() {
    const task = await api.get(path`/v1/tasks/${id}`, { signal: view.signal });
    const text = JSON.stringify(task);
    if (text === signature) return;
    signature = text;
    draw(task, await queueOfType(task.type));
  }
  const reload = () => load().catch(() => {});

  function taskActions(task, queue) {
    const waiting = task.state === "PENDING" || task.state === "ENQUEUED";
    const dead = task.state === "DEAD";
    return [
      dead ? actionButton({ label: "Replay", test: "replay", role: "operate", queue, tone: "primary", run: () => confirmReplay(task, reload) }) : null,
      dead ? actionButton({ label: "Edit payload", test: "edit-payload", role: "operate", queue, run: () => editTask(id, reload) }) : null,
      waiting ? actionButton({ label: "Run now", test: "retry", role: "operate", queue, title: "Make it due at once", run: () => retryTask(task, reload) }) : null,
      isOver(task) ? null : actionButton({ label: "Cancel", test: "cancel", role: "operate", queue, tone: "danger", run: () => confirmCancel(task, reload) }),
    ];
  }

  function draw(task, queue) {
    view.title(`${task.type} ${task.state}`);
    const attempts = (task.attempts ?? []).map((one) => {
      const [text, tone] = OUTCOME[one.outcome] ?? [one.outcome, "plain"];
      return { title: `${one.replay > 0 ? `Replay ${one.replay}, attempt` : "Attempt"} ${one.attempt} ${text}`, tone, started: one.started_at, ended: one.ended_at, worker: one.worker, error: one.error };
    });
    const payload = carried(task, "payload");
    const result = carried(task, "result");
    const focused = document.activeElement?.getAttribute?.("data-test");
    replace(
      view.root,
      h(
        "div.stack",
        { "data-test": "page-task", "data-state": task.state },
        h("header.page-head", {}, h("p.crumbs", {}, h("a", { href: "/ui/tasks" }, "Tasks"), " / "), h("div.head-line", {}, h("h1.mono", { tabindex: "-1" }, task.type), statePill(task.state), task.blocked ? h("span.pill.warn", {}, "blocked") : null, h("span.spacer"), h("div.actions", {}, taskActions(task, queue))), copyableId(task.id)),
        task.state === "DEAD" ? h("div.notice", { "data-tone": "bad" }, h("strong", {}, task.dead_reason), task.last_error ? h("pre.error-text", {}, task.last_error) : null) : null,
        task.progress && !isOver(task) ? h("div.card.progress-card", { "data-test": "task-progress" }, progressBar(task), h("p", {}, [task.progress.fraction != null ? `${Math.round(task.progress.fraction * 100)} %` : null, task.progress.text].filter(Boolean).join(", "))) : null,
        h(
          "div.columns",
          {},
          h("section.card", {}, h("h2", {}, "Facts"), messageFacts([
            ["Attempts", `${task.attempt_count} of ${task.max_attempts}`],
            ["Created", time(task.created_at)],
            ["Due", time(task.scheduled_for)],
            ["Enqueued", task.enqueued_at ? time(task.enqueued_at) : null],
            ["Attempt started", task.started_at ? time(task.started_at) : null],
            ["Ended", task.finished_at ? time(task.finished_at) : null],
            ["Deadline", task.deadline ? time(task.deadline) : null],
            ["Worker", task.worker],
            ["Lease ends", task.lease_expires_at ? time(task.lease_expires_at) : null],
            ["Priority", String(task.priority ?? "–")],
            ["Ordering key", task.ordering_key ? `${task.ordering_key}${task.blocked ? ", waits for an earlier task" : ""}` : null],
            ["Idempotency key", task.idempotency_key],
            ["Tags", task.tags?.length > 0 ? task.tags.map((tag) => h("a.tag", { href: `/ui/tasks?tag=${encodeURIComponent(tag)}` }, tag)) : null],
            ["Schedule", task.schedule ? h("a", { href: path`/ui/schedules/${task.schedule}` }, task.schedule) : null],
            ["Retries", task.retry_strategy ? h("code", {}, JSON.stringify(task.retry_strategy)) : null],
            ["Replayed", task.replay_count > 0 ? count(task.replay_count, "time") : null],
            ["Edited", task.revision > 0 ? count(task.revision, "time") : null],
            ["Last error", task.last_error && task.state !== "DEAD" ? h("pre.error-text", {}, task.last_error) : null],
          ]), h("p", {}, h("a", { href: `/ui/tasks?type=${encodeURIComponent(task.type)}` }, "All tasks of this type"))),
          h("section.card", {}, h("h2", {}, "Attempts ", h("span.muted", {}, attempts.length > 0 ? number(attempts.length) : "")), attempts.length > 0 ? timeline(attempts) : h("p.muted", {}, "No attempts yet.")),
        ),
        h("section.card", {}, h("h2", {}, "Payload"), payloadViewer(payload, { label: "Payload" })),
        result !== null || task.state === "SUCCEEDED" ? h("section.card", { "data-test": "task-result" }, h("h2", {}, "Result"), payloadViewer(result, { label: "Result", test: "result" })) : null,
        task.revisions?.length > 0
          ? h("section.card", { "data-test": "task-revisions" }, h("h2", {}, "Revisions"), task.revisions.map((one, i) => {
            const later = task.revisions[i + 1] ? carried(task.revisions[i + 1], "payload") : payload;
            return h("details", { "data-test": "revision", open: i === task.revisions.length - 1 }, h("summary", {}, `Revision ${one.revision}, replaced `, time(one.replaced_at)), diffView(`To revision ${task.revisions[i + 1]?.revision ?? task.revision}`, readable(carried(one, "payload")), readable(later)));
          }))
          : null,
      ),
    );
    // Redrawing has removed the focus.
    if (focused && document.activeElement === document.body) view.root.querySelector(`[data-test="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  const loadSoon = throttled(1000, () => !view.signal.aborted && reload());
  view.onLive("tasks", loadSoon);
  view.onLive("resync", loadSoon);
  await load();
}
