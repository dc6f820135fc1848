// Bulk actions: a preview first, then a job with its progress.

import { field, openDialog } from "./dialogs.js";
import { freshId, h, replace } from "./elements.js";
import { count, number, shortId } from "./format.js";
import { openJobs } from "./jobs.js";
import { queues } from "./queues.js";

const WHY = { leased: "leased by a worker", dedup_key_taken: "another living message has its dedup key", not_found: "no longer there" };

function skippedList(skipped) {
  if (skipped.length === 0) return null;
  const groups = new Map();
  for (const { id, why } of skipped) {
    if (!groups.has(why)) groups.set(why, []);
    groups.get(why).push(id);
  }
  return h("details", { "data-test": "bulk-skipped" }, h("summary", {}, `${number(skipped.length)} will be skipped`), [...groups].map(([why, ids]) => h("div", {}, h("p", {}, h("strong", {}, number(ids.length)), ` ${WHY[why] ?? why}`), idList(ids))));
}

function idList(ids) {
  return h("ul.ids", {}, ids.slice(0, 200).map((id) => h("li", {}, h("code", { title: id }, shortId(id)))), ids.length > 200 ? h("li.muted", {}, `and ${number(ids.length - 200)} more`) : null);
}

/**
 * `preview(options)` returns `{ids, skipped: [{id, why}]}`, or `{count, skippedCount}` without ids; `start(options)` returns the
 * job. `options` has `to` (with `withTarget`) and `rate`. `noun` and `verb` are the words of the button.
 */
export function openBulk({ title, test, what, verb, noun, preview, start, withTarget = false, fields = [], tone = "primary", onEnd }) {
  const listId = freshId("queues");
  const target = withTarget ? h("input", { list: listId, spellcheck: "false", autocomplete: "off", placeholder: "the queue of origin", "data-test": "bulk-to" }) : null;
  const rate = h("input", { type: "number", min: "0.01", step: "any", inputmode: "decimal", placeholder: "no limit", "data-test": "bulk-rate" });
  const result = h("div.preview", { "aria-live": "polite", "data-test": "bulk-preview" });
  let asked = 0;

  const options = () => {
    const chosen = {};
    if (target && target.value.trim() !== "") chosen.to = target.value.trim();
    if (rate.value.trim() !== "") {
      const number = Number(rate.value);
      if (!(number > 0)) throw new Error("Invalid rate; use a number above 0, or leave it empty for no limit.");
      chosen.rate = number;
    }
    return chosen;
  };
  const begin = (n) => ({
    label: n === null ? "Counting…" : `${verb} ${count(n, noun)}`,
    test: "bulk-start",
    tone,
    disabled: n === null || n === 0,
    run: async (dialog) => {
      const job = await start(options());
      dialog.close();
      openJobs(job, { onEnd });
      return false;
    },
  });
  const dialog = openDialog({
    title,
    test,
    body: [
      h("p", {}, what),
      result,
      h("div.fields", {}, fields, target ? [field("To queue", target, "Empty: the queue that each died in"), h("datalist", { id: listId }, [...queues.all.keys()].map((name) => h("option", { value: name })))] : null, field("Rate per second", rate, "Empty: no limit")),
    ],
    actions: [begin(null)],
  });

  async function ask() {
    if (!dialog.isOpen) return;
    const mine = ++asked;
    replace(result, h("p.muted", {}, "Counting…"));
    dialog.setActions([begin(null)]);
    try {
      const { to } = options();
      const { ids = [], skipped = [], note, count: total = ids.length, skippedCount = skipped.length } = await preview(to === undefined ? {} : { to });
      if (mine !== asked || !dialog.isOpen) return;
      dialog.showProblem(null);
      replace(
        result,
        h("p", {}, h("strong", { "data-test": "bulk-count" }, number(total)), ` ${total === 1 ? noun : `${noun}s`} will be processed,  `, h("strong", { "data-test": "bulk-skipped-count" }, number(skippedCount)), " skipped. Nothing has been changed yet."),
        note ? h("p", {}, note) : null,
        ids.length > 0 ? h("details", {}, h("summary", {}, "Which"), idList(ids)) : null,
        skippedList(skipped),
      );
      dialog.setActions([begin(total)]);
    } catch (error) {
      if (mine !== asked || !dialog.isOpen) return;
      replace(result);
      dialog.showProblem(error);
    }
  }
  // Counted again on input, not on blur: a click on the button blurs the field, and the button would be replaced under
  // it.
  let timer = null;
  target?.addEventListener("input", () => {
    asked++;
    dialog.setActions([begin(null)]);
    clearTimeout(timer);
    timer = setTimeout(ask, 300);
  });
  ask();
}
