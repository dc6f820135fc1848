import { api, isAbort, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { count, firstLine, number, shortId, time } from "../format.js";
import { carried } from "../bytes_text.js";
import { createTable } from "../table.js";
import { queueHead } from "../queue_head.js";
import { actionButton } from "../actions.js";
import { confirmDialog } from "../dialogs.js";
import { emptyState, urlOption } from "../clipboard.js";
import { replaceQuery } from "../router.js";
import { problemBox } from "../problem_box.js";
import { detailPanel, messageFacts } from "../message_detail.js";
import { bodyPreview, searchText } from "./messages.js";
import { openBulk } from "../bulk.js";
import { openEditor } from "../editor.js";
import { queues } from "../queues.js";
import { toast } from "../toasts.js";

const PAGE = 100;

const sameGroup = (group, letter) => letter.reason === group.reason && (letter.error ?? null) === (group.error ?? null);

export async function deadLettersPage(view) {
  const name = view.params.queue;
  view.title(`Dead letters of ${name}`);
  const base = path`/v1/queues/${name}/dead-letters`;
  const { element: head, actions } = queueHead(view, "dead-letters");
  const problem = h("div");
  const groupPlace = h("section", { "data-test": "groups" });
  const selectionBar = h("div.selection", { hidden: true, "data-test": "selection" });
  const filterInput = h("input.filter", { type: "search", placeholder: "Filter by body, header, id, key, error  /", "aria-label": "Filter dead letters", value: view.query.get("q") ?? "", "data-filter": true, "data-test": "filter" });
  const shown = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const chosenGroup = h("span");
  const place = h("div.list-side");
  const more = h("div.more");
  const detail = detailPanel({ onClose: () => select(null) });
  const listPart = h("div.stack", {}, h("div.toolbar", {}, filterInput, chosenGroup, shown), selectionBar, h("div.split", {}, h("div.list-side", {}, place, more), detail.element));
  replace(view.root, h("div.stack", { "data-test": "page-dead-letters" }, head, problem, groupPlace, listPart));

  let groups = [];
  let letters = [];
  let next = null;
  let opened = view.query.get("id");
  let group = view.query.has("reason") ? { reason: view.query.get("reason"), error: view.query.get("error") } : null;

  const table = createTable({
    label: `Dead letters of ${name}`,
    test: "dead-letter-table",
    rowTest: "dead-letter-row",
    key: (row) => row.id,
    open: openLetter,
    selectable: true,
    onSelect: drawSelection,
    columns: [
      { label: "Message", class: "main-cell", render: (row) => [h("div.clip.mono", {}, bodyPreview(row)), h("div.sub", {}, h("code", { title: row.id }, shortId(row.id)), row.ordering_key ? ` key ${row.ordering_key}` : null, row.revision > 0 ? h("span.pill", {}, "edited") : null)] },
      { label: "Reason", class: "reason", render: (row) => [h("span.pill.bad", {}, row.reason), row.error ? h("div.clip.sub", { title: row.error }, firstLine(row.error)) : null] },
      { label: "Deliveries", class: "num", render: (row) => number(row.receive_count) },
      { label: "Died", class: "when", render: (row) => time(row.dead_at) },
    ],
  });
  view.keys.table = table;
  view.keys.escape = () => detail.close();

  function drawActions() {
    replace(
      actions,
      actionButton({ label: "Redrive all", test: "redrive-all", role: "operate", queue: name, tone: "primary", run: () => redrive({}, `Every dead letter of ${name} goes back to be delivered again, with its counts at zero.`) }),
      actionButton({ label: "Purge all", test: "purge-all", role: "operate", queue: name, tone: "danger", run: () => purge({}, `of ${name}`) }),
    );
  }

  function keepAddress() {
    const query = new URLSearchParams();
    if (filterInput.value !== "") query.set("q", filterInput.value);
    if (group) {
      query.set("reason", group.reason);
      if (group.error !== null) query.set("error", group.error);
    }
    if (opened) query.set("id", opened);
    replaceQuery(query);
  }

  function select(id) {
    opened = id;
    table.show(id);
    keepAddress();
  }

  /** How the API is told which ones a group has. It can name an error but not the lack of one: those are named one by one. */
  async function choiceOf(one) {
    if (one.error !== null && one.error !== undefined) return { reason: one.reason, error: one.error };
    if (!groups.some((other) => other.reason === one.reason && other.error)) return { reason: one.reason };
    const ids = [];
    let after;
    do {
      const page = await api.get(base, { query: { reason: one.reason, limit: 1000, after } });
      ids.push(...page.dead_letters.filter((letter) => !letter.error).map((letter) => letter.id));
      after = page.next;
    } while (after);
    return { ids };
  }

  function redrive(choice, what) {
    openBulk({
      title: "Redrive dead letters",
      test: "dialog-redrive",
      what,
      verb: "Redrive",
      noun: "message",
      withTarget: true,
      preview: async (options) => {
        const answer = await api.post(`${base}/redrive`, { ...choice, ...options, dry_run: true });
        return { ids: answer.redriven, skipped: answer.skipped };
      },
      start: (options) => api.post(`${base}/redrive-job`, { ...choice, ...options }),
      onEnd: load,
    });
  }

  function purge(choice, which) {
    confirmDialog({
      title: "Purge dead letters?",
      test: "dialog-purge-dead",
      count: async () => {
        const { purged } = await api.post(`${base}/purge`, { ...choice, dry_run: true });
        return purged === 0
          ? { text: "There is nothing to remove. What somebody has leased stays.", label: "Purge", nothing: true }
          : { text: `${count(purged, "dead letter")} ${which} will be removed for good. What somebody has leased stays.`, label: `Purge ${count(purged, "dead letter")}` };
      },
      run: async () => {
        const { purged } = await api.post(`${base}/purge`, choice);
        toast(`${count(purged, "dead letter")} purged`);
        detail.close();
        table.clearSelection();
        await load();
      },
    });
  }

  function drawGroups(answer) {
    if (groups.length === 0) return replace(groupPlace);
    replace(
      groupPlace,
      h("div.section-head", {}, h("h2", {}, "By error"), answer.complete ? null : h("span.muted", {}, `of the first ${number(answer.looked_at)} looked at`)),
      h(
        "div.groups",
        {},
        groups.map((one) =>
          h(
            "article.group",
            { "data-test": "group", "data-reason": one.reason, "data-error": one.error, class: group && sameGroup(group, one) ? "group chosen" : "group" },
            h("div.group-count", {}, h("strong", { "data-test": "group-count" }, (answer.complete ? "" : "~") + number(one.count)), h("span.pill.bad", {}, one.reason)),
            h("div.group-text", {}, h("p.error-line", { title: one.error }, one.error ? firstLine(one.error, 240) : h("span.muted", {}, "no error text")), h("p.sub", {}, "last ", time(one.last_dead_at), ", first ", time(one.first_dead_at))),
            h(
              "div.actions",
              {},
              h("button.btn.small", { type: "button", "data-test": "group-show", "aria-pressed": String(Boolean(group && sameGroup(group, one))), on: { click: () => choose(group && sameGroup(group, one) ? null : one) } }, group && sameGroup(group, one) ? "Show all" : "Show"),
              actionButton({ label: "Redrive", test: "group-redrive", role: "operate", queue: name, small: true, run: async () => redrive(await choiceOf(one), `The dead letters with this error go back to be delivered again: ${one.reason}${one.error ? `, “${firstLine(one.error, 100)}”` : ""}.`) }),
              actionButton({ label: "Purge", test: "group-purge", role: "operate", queue: name, small: true, tone: "danger", run: async () => purge(await choiceOf(one), "with this error") }),
            ),
          ),
        ),
      ),
    );
  }

  function choose(one) {
    group = one ? { reason: one.reason, error: one.error ?? null } : null;
    keepAddress();
    load();
  }

  function drawSelection(rows) {
    selectionBar.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const ids = rows.map((row) => row.id);
    replace(
      selectionBar,
      h("strong", {}, `${number(ids.length)} selected`),
      actionButton({ label: "Redrive", test: "selection-redrive", role: "operate", queue: name, small: true, tone: "primary", run: () => redrive({ ids }, `The ${count(ids.length, "selected message")} go back to be delivered again, with their counts at zero.`) }),
      actionButton({ label: "Purge", test: "selection-purge", role: "operate", queue: name, small: true, tone: "danger", run: () => purge({ ids }, "that are selected") }),
      h("button.btn.small.ghost", { type: "button", "data-test": "selection-clear", on: { click: () => table.clearSelection() } }, "Clear"),
    );
  }

  function openLetter(letter) {
    select(letter.id);
    detail.show(view, {
      title: "Dead letter",
      message: letter,
      actions: [
        actionButton({ label: "Edit and retry", test: "edit-retry", role: "operate", queue: name, small: true, tone: "primary", run: () => edit(letter.id) }),
        actionButton({ label: "Redrive", test: "redrive-one", role: "operate", queue: name, small: true, run: () => redrive({ ids: [letter.id] }, "This message goes back to be delivered again, with its counts at zero.") }),
        actionButton({ label: "Purge", test: "purge-one", role: "operate", queue: name, small: true, tone: "danger", run: () => purge({ ids: [letter.id] }, "") }),
      ],
      facts: messageFacts([
        ["Reason", h("span.pill.bad", {}, letter.reason)],
        ["Error", letter.error ? h("pre.error-text", {}, letter.error) : null],
        ["Ordering key", letter.ordering_key],
        ["Dedup key", letter.dedup_key],
        ["Priority", String(letter.priority ?? "–")],
        ["Content type", letter.content_type],
        ["Deliveries", `${number(letter.receive_count)}, of which ${number(letter.attempts_count)} were tried again`],
        ["Sent", time(letter.enqueued_at)],
        ["First attempt", letter.first_attempt_at ? time(letter.first_attempt_at) : null],
        ["Last attempt", letter.last_attempt_at ? time(letter.last_attempt_at) : null],
        ["Died", time(letter.dead_at)],
        ["Expires", letter.expires_at ? time(letter.expires_at) : null],
        ["Edited", letter.revision > 0 ? count(letter.revision, "time") : null],
      ]),
      bytes: carried(letter, "body"),
      attemptsUrl: path`/v1/queues/${name}/messages/${letter.id}/attempts`,
    });
  }

  async function edit(id) {
    // As it is now: somebody else may have edited it.
    const letter = await api.get(`${base}/${encodeURIComponent(id)}`);
    const save = async (changes) => (Object.keys(changes).length === 0 ? letter : api.patch(`${base}/${encodeURIComponent(id)}`, changes));
    openEditor({
      title: "Edit and retry",
      test: "dialog-edit",
      name: "body",
      note: "The change is shown before it is saved. The message keeps its id.",
      original: { bytes: carried(letter, "body"), contentType: letter.content_type, headers: letter.headers ?? {} },
      actions: [
        { label: "Save and redrive", test: "editor-save-redrive", tone: "primary", evenUnchanged: true, save: async (changes) => {
          await save(changes);
          const { redriven, skipped } = await api.post(`${base}/redrive`, { ids: [id] });
          if (redriven.length > 0) {
            toast("Saved and redriven");
            detail.close();
          } else toast(`Saved, but not redriven: ${skipped[0]?.why ?? "it is gone"}`, "info");
          await load();
        } },
        { label: "Save only", test: "editor-save", save: async (changes) => {
          const saved = await save(changes);
          toast("Saved");
          await load();
          openLetter(saved);
        } },
      ],
    });
  }

  function draw() {
    const wanted = filterInput.value.trim().toLowerCase();
    const list = wanted === "" ? letters : letters.filter((letter) => searchText(letter).includes(wanted));
    replace(chosenGroup, group ? h("button.btn.small", { type: "button", "data-test": "group-clear", on: { click: () => choose(null) } }, `${group.reason}${group.error ? `: ${firstLine(group.error, 40)}` : ""}  ×`) : null);
    listPart.hidden = letters.length === 0 && group === null && next === null;
    if (listPart.hidden) {
      if (groups.length === 0) {
        replace(groupPlace, emptyState({
          title: "No dead letters",
          test: "empty-dead-letters",
          text: "A message that fails too often, expires or can not be read is put aside here, with its error. To see one, let a worker refuse it (65 means: never again):",
          commands: [`postrider work ${name} ${urlOption()} --drain -- sh -c 'echo "no good" >&2; exit 65'`],
        }));
      }
      return;
    }
    shown.textContent = wanted === "" ? `${number(letters.length)}${next ? " loaded" : ""}` : `${number(list.length)} of ${number(letters.length)}`;
    replace(place, table.element);
    table.update(list);
    replace(more, next ? h("button.btn", { type: "button", "data-test": "load-more", on: { click: () => loadMore(PAGE) } }, "Load more") : null);
  }

  // The API pages by reason; of an error, pages are read until there are enough.
  async function readPage(after, enough, into) {
    let cursor = after;
    do {
      const page = await api.get(base, { query: { reason: group?.reason, limit: group ? 500 : Math.min(1000, enough), after: cursor }, signal: view.signal });
      into.push(...page.dead_letters.filter((letter) => group === null || sameGroup(group, letter)));
      cursor = page.next ?? null;
    } while (cursor && into.length < enough);
    return cursor;
  }

  async function loadMore(n) {
    try {
      const added = [];
      next = await readPage(next, n, added);
      letters = [...letters, ...added];
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error));
    }
  }

  async function load() {
    try {
      const found = [];
      const [answer, cursor] = await Promise.all([api.get(`${base}/groups`, { signal: view.signal }), readPage(undefined, Math.max(PAGE, letters.length), found)]);
      groups = answer.groups;
      letters = found;
      next = cursor;
      replace(problem);
      drawGroups(answer);
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: load }));
      return;
    }
    draw();
  }

  filterInput.addEventListener("input", () => {
    keepAddress();
    draw();
  });
  let lastDead = queues.all.get(name)?.dead;
  const loadSoon = throttled(3000, () => !view.signal.aborted && load());
  view.until(queues.on((names) => {
    if (names !== null && !names.includes(name)) return;
    const dead = queues.all.get(name)?.dead;
    if (dead === lastDead) return;
    lastDead = dead;
    loadSoon();
  }));
  view.onLive("resync", loadSoon);
  drawActions();
  await load();
  if (opened) {
    try {
      openLetter(await api.get(`${base}/${encodeURIComponent(opened)}`, { signal: view.signal }));
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error));
      select(null);
    }
  }
}
