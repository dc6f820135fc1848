// Parts shared by the list of tasks and the page of a task.

import { api, path } from "./api.js";
import { h } from "./elements.js";
import { confirmDialog } from "./dialogs.js";
import { toast } from "./toasts.js";
import { shortId } from "./format.js";
import { openEditor } from "./editor.js";
import { carried } from "./bytes_text.js";

export const STATES = ["PENDING", "ENQUEUED", "PROCESSING", "SUCCEEDED", "DEAD", "CANCELED"];
const TONE = { PENDING: "info", ENQUEUED: "info", PROCESSING: "accent", SUCCEEDED: "good", DEAD: "bad", CANCELED: "plain" };

export const statePill = (state) => h(`span.pill.${TONE[state] ?? "plain"}`, { "data-test": "task-state" }, state);
export const isOver = (task) => ["SUCCEEDED", "DEAD", "CANCELED"].includes(task.state);

export function progressBar(task) {
  const fraction = task.progress?.fraction;
  if (fraction === null || fraction === undefined) return null;
  return h("progress", { max: "1", value: String(fraction), "aria-label": "Progress", title: `${Math.round(fraction * 100)} %${task.progress.text ? `, ${task.progress.text}` : ""}` });
}

export function confirmCancel(task, onDone) {
  confirmDialog({
    title: "Cancel this task?",
    test: "dialog-cancel-task",
    count: async () => {
      const now = await api.get(path`/v1/tasks/${task.id}`);
      if (isOver(now)) return { text: `It has already ended as ${now.state}.`, label: "Cancel 1 task", nothing: true };
      const running = now.state === "PROCESSING" ? ` ${now.worker ?? "A worker"} works on it right now and is notified; its result is discarded.` : "";
      return { text: `1 task, ${now.type} ${shortId(now.id)}, is canceled.${running}`, label: "Cancel 1 task" };
    },
    run: async () => {
      const after = await api.post(path`/v1/tasks/${task.id}/cancel`);
      toast(after.left === "PROCESSING" ? "Canceled; its worker is notified" : "Canceled");
      onDone(after);
    },
  });
}

export async function retryTask(task, onDone) {
  onDone(await api.post(path`/v1/tasks/${task.id}/retry`));
  toast("It is due now");
}

export function confirmReplay(task, onDone) {
  confirmDialog({
    title: "Replay this task?",
    test: "dialog-replay-one",
    count: async () => {
      const now = await api.get(path`/v1/tasks/${task.id}`);
      if (now.state !== "DEAD") return { text: `It is no longer dead, but ${now.state}.`, label: "Replay 1 task", nothing: true };
      return { text: "1 task is due at once, with fresh attempts and without its deadline. Its history is kept.", label: "Replay 1 task" };
    },
    tone: "primary",
    run: () => replayTask(task, onDone),
  });
}

async function replayTask(task, onDone) {
  onDone(await api.post(path`/v1/tasks/${task.id}/replay`));
  toast("Replayed: it is due now, with fresh attempts");
}

/** Edits the payload of a dead task, with the option to replay it. */
export async function editTask(id, onDone) {
  const task = await api.get(path`/v1/tasks/${id}`);
  openEditor({
    title: "Edit the payload",
    test: "dialog-edit-task",
    name: "payload",
    note: "The previous payload is kept as a revision.",
    original: { bytes: carried(task, "payload") ?? { text: "", base64: null } },
    actions: [
      { label: "Save and replay", test: "editor-save-replay", tone: "primary", evenUnchanged: true, save: async (changes) => {
        if (Object.keys(changes).length > 0) await api.put(path`/v1/tasks/${id}/payload`, changes);
        await api.post(path`/v1/tasks/${id}/replay`);
        toast("Saved and replayed");
        onDone();
      } },
      { label: "Save only", test: "editor-save", save: async (changes) => {
        const { revision } = await api.put(path`/v1/tasks/${id}/payload`, changes);
        toast(`Saved as revision ${revision}`);
        onDone();
      } },
    ],
  });
}
