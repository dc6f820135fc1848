import { api, isAbort, path } from "../api.js";
import { h, replace, throttled } from "../elements.js";
import { absolute, count, number, shortId, time } from "../format.js";
import { carried } from "../bytes_text.js";
import { createTable } from "../table.js";
import { queueHead } from "../queue_head.js";
import { actionButton } from "../actions.js";
import { confirmDialog } from "../dialogs.js";
import { emptyState, urlOption } from "../clipboard.js";
import { errorLine, errorSummary } from "../error_summary.js";
import { filterFields } from "../filter_fields.js";
import { problemBox } from "../problem_box.js";
import { detailPanel, messageFacts } from "../message_detail.js";
import { bodyPreview } from "./messages.js";
import { openBulk } from "../bulk.js";
import { openEditor } from "../editor.js";
import { queues } from "../queues.js";
import { toast } from "../toasts.js";

const PAGE = 100; // rows
const SHORT_PAGES = 40; // requests per page: each reads a bounded number of dead letters
/** The exit status of a command is shown as a badge. */
const withoutEnding = (fingerprint) => fingerprint.replace(/^(?:exit code \d+|ended by signal \d+|stopped after its --timeout|stopped with the worker): /, "");
const REASONS = ["max_receive_count", "rejected", "retries_exhausted", "expired", "undecodable"];

export async function deadLettersPage(view) {
  const name = view.params.queue;
  view.title(`Dead letters of ${name}`);
  const base = path`/v1/queues/${name}/dead-letters`;
  const { element: head, actions } = queueHead(view, "dead-letters");
  const problem = h("div");
  const groupPlace = h("section", { "data-test": "groups" });
  const selectionBar = h("div.selection", { hidden: true, "data-test": "selection" });
  const shown = h("span.muted", { "aria-live": "polite", "data-test": "shown-count" });
  const chosenGroup = h("span");
  const place = h("div.list-side");
  const more = h("div.more");
  const detail = detailPanel({ onClose: () => select(null) });

  let groups = [];
  let letters = [];
  let next = null;
  let loaded = false;
  let opened = view.query.get("id");
  // Cursor of this page, and of the previous ones.
  let after = view.query.get("after");
  let before = [];
  let fingerprint = view.query.get("fingerprint");

  const reason = view.query.get("reason");
  const reasons = [...new Set([...REASONS, ...(reason ? [reason] : [])])];
  const filters = filterFields(
    view,
    [
      { name: "text", label: "Filter dead letters", placeholder: "Search body, header, id, key, error  /", test: "filter", isMain: true },
      { name: "error_contains", label: "Error contains", placeholder: "Error contains" },
      { name: "reason", label: "Reason", kind: "choice", options: [["", "any reason"], ...reasons.map((one) => [one, one])] },
      { name: "key", label: "Ordering key", placeholder: "Ordering key" },
      { name: "id_has", label: "Id contains", placeholder: "Id contains" },
      { name: "since", label: "Died since", kind: "time" },
      { name: "before", label: "Died before", kind: "time" },
    ],
    () => {
      rewind();
      load();
    },
    () => Object.entries({ fingerprint, after, id: opened }).filter(([, value]) => value),
  );
  const fields = h("div.filter-fields", {}, filters.input("error_contains"), filters.input("reason"), filters.input("key"), filters.input("id_has"), h("div.time-range", {}, filters.labelled("since"), filters.labelled("before")));
  const listPart = h("div.stack", {}, h("div.toolbar", {}, filters.input("text"), chosenGroup, shown, fields), selectionBar, h("div.split", {}, h("div.list-side", {}, place, more), detail.element));
  replace(view.root, h("div.stack", { "data-test": "page-dead-letters" }, head, problem, groupPlace, listPart));

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
      { label: "Reason", class: "reason", render: (row) => [h("span.pill.bad", {}, row.reason), row.error ? h("div.clip.sub", { title: row.error, "data-test": "error-line" }, errorLine(row.error)) : null] },
      { label: "Deliveries", class: "num", render: (row) => number(row.receive_count) },
      { label: "Died", class: "when", render: (row) => time(row.dead_at) },
    ],
  });
  view.keys.table = table;
  view.keys.escape = () => detail.close();

  /** The filter for the API; null if it is empty. */
  function filter() {
    const values = { fingerprint };
    for (const field of ["text", "error_contains", "reason", "key", "since", "before"]) values[field] = filters.value(field);
    values.id = filters.value("id_has");
    const pairs = Object.entries(values).filter(([, value]) => value);
    return pairs.length > 0 ? Object.fromEntries(pairs) : null;
  }

  const choice = () => (filter() === null ? {} : { filter: filter() });

  /** The filter in words. */
  function inWords() {
    const { fingerprint: kind, reason: why, text, error_contains: error, key, id, since, before: until } = filter() ?? {};
    return [
      why ? `the reason ${why}` : null,
      kind ? `errors like “${kind}”` : null,
      error ? `“${error}” in the error` : null,
      key ? `the key “${key}”` : null,
      id ? `“${id}” in the id` : null,
      since ? `a death since ${absolute(since)}` : null,
      until ? `a death before ${absolute(until)}` : null,
      text ? `“${text}” in them` : null,
    ].filter(Boolean).join(" and ");
  }

  let drawnWords = null;
  function drawActions() {
    const words = inWords();
    // Redrawing would remove the focus.
    if (words === drawnWords) return;
    drawnWords = words;
    const all = words === "" ? "all" : "all that match";
    replace(
      actions,
      actionButton({ label: `Redrive ${all}`, test: "redrive-all", role: "operate", queue: name, tone: "primary", run: () => redrive(choice(), words === "" ? `All dead letters of ${name} are sent again, with their counts reset.` : `All dead letters with ${words} are sent again, with their counts reset.`) }),
      actionButton({ label: `Purge ${all}`, test: "purge-all", role: "operate", queue: name, tone: "danger", run: () => purge(choice(), words === "" ? `of ${name}` : `with ${words}`) }),
    );
  }

  function select(id) {
    opened = id;
    table.show(id);
    filters.keep();
  }

  function rewind() {
    after = null;
    before = [];
    loaded = false;
    table.clearSelection();
    filters.keep();
  }

  function openPage(to, back) {
    // Closed first: closing writes the URL of the current page.
    detail.close();
    opened = null;
    before = back;
    after = to;
    table.clearSelection();
    filters.keep({ push: true });
    load().then(() => listPart.scrollIntoView({ block: "start" }));
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
      onEnd: reload,
    });
  }

  function purge(choice, which) {
    confirmDialog({
      title: "Purge dead letters?",
      test: "dialog-purge-dead",
      count: async () => {
        const { purged } = await api.post(`${base}/purge`, { ...choice, dry_run: true });
        return purged === 0
          ? { text: "There is nothing to remove. Leased ones stay.", label: "Purge", nothing: true }
          : { text: `${count(purged, "dead letter")} ${which} will be removed for good. Leased ones stay.`, label: `Purge ${count(purged, "dead letter")}` };
      },
      run: async () => {
        const { purged } = await api.post(`${base}/purge`, choice);
        toast(`${count(purged, "dead letter")} purged`);
        detail.close();
        table.clearSelection();
        await reload();
      },
    });
  }

  const isChosen = (one) => fingerprint === one.fingerprint && filters.value("reason") === one.reason;

  /** The URL of this page with only a group selected. */
  function groupLink(one) {
    if (isChosen(one)) return path`/ui/queues/${name}/dead-letters`;
    return `${path`/ui/queues/${name}/dead-letters`}?${new URLSearchParams({ reason: one.reason, fingerprint: one.fingerprint })}`;
  }

  function drawGroups(answer) {
    if (groups.length === 0) return replace(groupPlace);
    const approximate = (answer.complete ? "" : "~");
    replace(
      groupPlace,
      h("div.section-head", {}, h("h2", {}, "By error"), answer.complete ? null : h("span.muted", {}, `of the first ${number(answer.looked_at)}`)),
      h(
        "div.groups",
        {},
        groups.map((one) => {
          const { badge, line } = errorSummary(one.error);
          const choice = { filter: { reason: one.reason, fingerprint: one.fingerprint } };
          return h(
            "article.group",
            { "data-test": "group", "data-reason": one.reason, "data-error": one.error, "data-fingerprint": one.fingerprint, class: isChosen(one) ? "group chosen" : "group" },
            h("div.group-count", {}, h("strong", { "data-test": "group-count" }, approximate + number(one.count)), h("span.group-pills", {}, h("span.pill.bad", {}, one.reason), badge ? h("span.pill.exit", {}, badge) : null)),
            h("div.group-text", {}, h("p.error-line.clip-2", { title: one.error, "data-test": "group-error" }, line !== "" ? (one.count > 1 ? withoutEnding(one.fingerprint) : line.slice(0, 240)) : h("span.muted", {}, "no error text")), h("p.sub", {}, "last ", time(one.last_dead_at), ", first ", time(one.first_dead_at))),
            h(
              "div.actions",
              {},
              h("a.btn.small", { href: groupLink(one), "data-test": "group-show", "aria-current": isChosen(one) ? "true" : null }, isChosen(one) ? "Show all" : "Show"),
              actionButton({ label: "Redrive", test: "group-redrive", role: "operate", queue: name, small: true, run: () => redrive(choice, `The dead letters with this error are sent again: ${one.reason}, “${one.fingerprint}”.`) }),
              actionButton({ label: "Purge", test: "group-purge", role: "operate", queue: name, small: true, tone: "danger", run: () => purge(choice, "with this error") }),
            ),
          );
        }),
        answer.more_kinds > 0
          ? h("p.group-rest.muted", { "data-test": "more-kinds" }, `${count(answer.more_kinds, "more kind")} of errors, ${count(answer.more_count, "dead letter")} together. Search to find them.`)
          : null,
      ),
    );
  }

  function drawSelection(rows) {
    selectionBar.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const ids = rows.map((row) => row.id);
    replace(
      selectionBar,
      h("strong", {}, `${number(ids.length)} selected`),
      actionButton({ label: "Redrive", test: "selection-redrive", role: "operate", queue: name, small: true, tone: "primary", run: () => redrive({ ids }, `${count(ids.length, "selected message")} are sent again, with their counts reset.`) }),
      actionButton({ label: "Purge", test: "selection-purge", role: "operate", queue: name, small: true, tone: "danger", run: () => purge({ ids }, "selected") }),
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
        actionButton({ label: "Redrive", test: "redrive-one", role: "operate", queue: name, small: true, run: () => redrive({ ids: [letter.id] }, "This message is sent again, with its counts reset.") }),
        actionButton({ label: "Purge", test: "purge-one", role: "operate", queue: name, small: true, tone: "danger", run: () => purge({ ids: [letter.id] }, "") }),
      ],
      facts: messageFacts([
        ["Reason", h("span.pill.bad", {}, letter.reason)],
        ["Error", letter.error ? h("pre.error-text", {}, letter.error) : null],
        ["Ordering key", letter.ordering_key],
        ["Dedup key", letter.dedup_key],
        ["Priority", String(letter.priority ?? "–")],
        ["Content type", letter.content_type],
        ["Deliveries", `${number(letter.receive_count)}, ${number(letter.attempts_count)} retried`],
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
    // Read again: it may have been edited meanwhile.
    const letter = await api.get(`${base}/${encodeURIComponent(id)}`);
    const save = async (changes) => (Object.keys(changes).length === 0 ? letter : api.patch(`${base}/${encodeURIComponent(id)}`, changes));
    openEditor({
      title: "Edit and retry",
      test: "dialog-edit",
      name: "body",
      note: "You can review the changes before they are saved. The message keeps its id.",
      original: { bytes: carried(letter, "body"), contentType: letter.content_type, headers: letter.headers ?? {} },
      actions: [
        { label: "Save and redrive", test: "editor-save-redrive", tone: "primary", evenUnchanged: true, save: async (changes) => {
          await save(changes);
          const { redriven, skipped } = await api.post(`${base}/redrive`, { ids: [id] });
          if (redriven.length > 0) {
            toast("Saved and redriven");
            detail.close();
          } else toast(`Saved, but not redriven: ${skipped[0]?.why ?? "it is no longer there"}`, "info");
          await reload();
        } },
        { label: "Save only", test: "editor-save", save: async (changes) => {
          const saved = await save(changes);
          toast("Saved");
          await reload();
          openLetter(saved);
        } },
      ],
    });
  }

  function draw() {
    const isFiltered = filter() !== null;
    replace(chosenGroup, fingerprint ? h("a.btn.small", { href: path`/ui/queues/${name}/dead-letters`, "data-test": "group-clear", title: "Show all dead letters" }, `${fingerprint.length > 48 ? `${fingerprint.slice(0, 48)}…` : fingerprint}  ×`) : null);
    drawActions();
    listPart.hidden = loaded && letters.length === 0 && !isFiltered && after === null && next === null;
    if (listPart.hidden) {
      if (groups.length === 0) {
        replace(groupPlace, emptyState({
          title: "No dead letters",
          test: "empty-dead-letters",
          text: "A message that fails too often, expires or cannot be decoded becomes a dead letter, with its error. To see one, let a worker reject a message (exit code 65: do not retry):",
          commands: [`postrider work ${name} ${urlOption()} --drain -- sh -c 'echo "no good" >&2; exit 65'`],
        }));
      }
      return;
    }
    shown.textContent = !loaded ? "Searching…" : letters.length === 0 ? (next ? "None found so far" : "None matches") : `${number(letters.length)}${next || after ? " on this page" : ""}`;
    replace(place, loaded && letters.length === 0 ? h("div.empty", { "data-test": "empty-filter" }, h("h2", {}, next ? "Nothing found so far" : "No dead letter matches"), h("p", {}, next ? "The dead letters that were searched do not match. The next page continues from there. " : null, h("a", { href: path`/ui/queues/${name}/dead-letters`, "data-test": "clear-filters" }, "Show all dead letters"))) : table.element);
    table.update(letters);
    replace(
      more,
      after !== null ? h("button.btn", { type: "button", "data-test": "previous-page", on: { click: () => openPage(before[before.length - 1] ?? null, before.slice(0, -1)) } }, before.length > 0 ? "Previous page" : "First page") : null,
      next ? h("button.btn", { type: "button", "data-test": "next-page", on: { click: () => openPage(next, [...before, after]) } }, "Next page") : null,
    );
  }

  // A page of the API can be short and not the last: each request reads a bounded number of dead letters.
  async function readPage() {
    const query = { ...filter(), after };
    const found = [];
    for (let pages = 0; pages < SHORT_PAGES; pages++) {
      const page = await api.get(base, { query: { ...query, limit: PAGE - found.length }, signal: view.signal });
      found.push(...page.dead_letters);
      query.after = page.next ?? null;
      if (query.after === null || found.length >= PAGE) break;
    }
    return [found, query.after];
  }

  async function loadGroups() {
    try {
      const answer = await api.get(`${base}/groups`, { signal: view.signal });
      groups = answer.groups;
      drawGroups(answer);
      draw();
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error, { retry: reload }));
    }
  }

  let lastRequest = 0;
  async function load() {
    const request = ++lastRequest;
    draw();
    try {
      const [found, cursor] = await readPage();
      if (request !== lastRequest) return;
      letters = found;
      next = cursor;
      loaded = true;
      replace(problem);
    } catch (error) {
      if (!isAbort(error) && request === lastRequest) replace(problem, problemBox(error, { retry: reload }));
      return;
    }
    draw();
  }

  const reload = () => Promise.all([load(), loadGroups()]);

  let lastDead = queues.all.get(name)?.dead;
  const loadSoon = throttled(3000, () => !view.signal.aborted && load());
  // Groups count all dead letters, so they are reloaded less often.
  const groupSoon = throttled(10_000, () => !view.signal.aborted && loadGroups());
  view.until(queues.on((names) => {
    if (names !== null && !names.includes(name)) return;
    const dead = queues.all.get(name)?.dead;
    if (dead === lastDead) return;
    lastDead = dead;
    loadSoon();
    groupSoon();
  }));
  view.onLive("resync", () => {
    loadSoon();
    groupSoon();
  });
  await reload();
  if (opened) {
    try {
      openLetter(await api.get(`${base}/${encodeURIComponent(opened)}`, { signal: view.signal }));
    } catch (error) {
      if (!isAbort(error)) replace(problem, problemBox(error));
      select(null);
    }
  }
}
