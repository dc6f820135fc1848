// Tables: rows are kept by key, so that a thousand of them update smoothly, with keyboard navigation.

import { h, replace } from "./elements.js";

/**
 * `columns` are `{label, render(row), class, sort(row), title}`. Enter and a click on a row call `open(row)`.
 */
export function createTable({ label, test, rowTest, columns, key, open, selectable = false, onSelect, sort = null, onSort }) {
  const rows = new Map();
  const selected = new Set();
  let order = [];
  let active = null;
  let sorted = sort;

  const selectAll = selectable ? h("input", { type: "checkbox", "aria-label": "Select all rows", "data-test": "select-all" }) : null;
  selectAll?.addEventListener("change", () => {
    for (const id of order) mark(id, selectAll.checked);
    notifySelection();
  });

  const heads = columns.map((column) => {
    const head = h("th", { scope: "col", role: "columnheader", class: column.class, title: column.title });
    if (!column.sort) head.append(column.label);
    else {
      head.append(h("button.sort", { type: "button", on: { click: () => sortBy(column) } }, column.label));
    }
    return head;
  });
  const body = h("tbody", { role: "rowgroup" });
  const element = h(
    "table.list",
    { role: "table", "aria-label": label, "data-test": test },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, selectable ? h("th.check", { role: "columnheader", scope: "col" }, selectAll) : null, heads)),
    body,
  );

  function sortBy(column) {
    const falling = sorted?.column === column ? !sorted.falling : column.class === "num";
    sorted = { column, falling };
    showSort();
    arrange();
    onSort?.(sorted);
  }

  function showSort() {
    columns.forEach((column, i) => {
      if (sorted?.column === column) heads[i].setAttribute("aria-sort", sorted.falling ? "descending" : "ascending");
      else heads[i].removeAttribute("aria-sort");
    });
  }

  function draw(entry, row) {
    const signature = JSON.stringify(row);
    if (entry.signature === signature) return;
    entry.signature = signature;
    entry.row = row;
    columns.forEach((column, i) => {
      const cell = entry.cells[i];
      const content = column.render(row, cell);
      if (typeof content === "string") {
        if (cell.textContent !== content || cell.firstElementChild) cell.textContent = content;
      } else if (content !== undefined) replace(cell, content);
    });
  }

  function entryOf(id, row) {
    let entry = rows.get(id);
    if (!entry) {
      const cells = columns.map((column) => h("td", { role: "cell", class: column.class, "data-label": column.label }));
      let check = null;
      if (selectable) {
        check = h("input", { type: "checkbox", "aria-label": "Select this row", "data-test": "select-row" });
        check.addEventListener("change", () => {
          mark(id, check.checked);
          notifySelection();
        });
      }
      const tr = h("tr", { role: "row", tabindex: "-1", "data-test": rowTest, "data-key": id }, check ? h("td.check", { role: "cell" }, check) : null, cells);
      entry = { tr, cells, check, signature: null, row };
      rows.set(id, entry);
    }
    draw(entry, row);
    return entry;
  }

  function arrange() {
    if (sorted) {
      const value = sorted.column.sort;
      const sign = sorted.falling ? -1 : 1;
      const compare = (a, b) => {
        const x = value(rows.get(a).row);
        const y = value(rows.get(b).row);
        if (x === y) return a < b ? -1 : 1;
        if (x === null || x === undefined) return 1; // unknown values are last
        if (y === null || y === undefined) return -1;
        return (x < y ? -1 : 1) * sign;
      };
      order.sort(compare);
    }
    // Only misplaced rows are moved: moving a row removes its focus.
    let next = body.firstChild;
    for (const id of order) {
      const { tr } = rows.get(id);
      if (tr === next) next = next.nextSibling;
      else body.insertBefore(tr, next);
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
    if (active === null || !rows.has(active)) active = order[0] ?? null;
    for (const id of order) rows.get(id).tr.tabIndex = id === active ? 0 : -1;
  }

  function mark(id, on) {
    const entry = rows.get(id);
    if (on) selected.add(id);
    else selected.delete(id);
    if (entry?.check) entry.check.checked = on;
    entry?.tr.classList.toggle("selected", on);
  }

  function notifySelection() {
    if (selectAll) {
      selectAll.checked = selected.size > 0 && selected.size === order.length;
      selectAll.indeterminate = selected.size > 0 && selected.size < order.length;
    }
    onSelect?.([...selected].map((id) => rows.get(id).row));
  }

  function focusRow(id) {
    const entry = rows.get(id);
    if (!entry) return;
    if (active !== null && rows.has(active)) rows.get(active).tr.tabIndex = -1;
    active = id;
    entry.tr.tabIndex = 0;
    entry.tr.focus({ preventScroll: true });
    entry.tr.scrollIntoView({ block: "nearest" });
  }

  body.addEventListener("focusin", (event) => {
    const id = event.target.closest("tr")?.dataset.key;
    if (id === undefined || id === active || !rows.has(id)) return;
    if (active !== null && rows.has(active)) rows.get(active).tr.tabIndex = -1;
    active = id;
    rows.get(id).tr.tabIndex = 0;
  });
  body.addEventListener("click", (event) => {
    if (!open || event.defaultPrevented || event.target.closest("a, button, input, label")) return;
    if (String(getSelection()) !== "") return; // text is being selected
    const id = event.target.closest("tr")?.dataset.key;
    if (id !== undefined) open(rows.get(id).row);
  });
  if (open) element.classList.add("opens");
  showSort();

  return {
    element,
    /** Sets the rows, in this order unless a column sorts. */
    update(list) {
      const ids = new Set();
      order = [];
      for (const row of list) {
        const id = String(key(row));
        if (ids.has(id)) continue;
        ids.add(id);
        order.push(id);
        entryOf(id, row);
      }
      let lost = false;
      for (const id of [...rows.keys()]) {
        if (ids.has(id)) continue;
        rows.delete(id);
        lost = selected.delete(id) || lost;
      }
      arrange();
      if (lost || selectable) notifySelection();
    },
    /** Updates some of the rows. */
    patch(list) {
      for (const row of list) {
        const entry = rows.get(String(key(row)));
        if (entry) draw(entry, row);
      }
    },
    clearSelection() {
      for (const id of [...selected]) mark(id, false);
      notifySelection();
    },
    show(id) {
      for (const [other, entry] of rows) entry.tr.classList.toggle("shown", other === id);
    },
    get size() {
      return order.length;
    },
    /** Moves the focus by a number of rows. */
    move(by) {
      if (order.length === 0) return;
      const focused = body.contains(document.activeElement);
      const at = order.indexOf(active);
      focusRow(order[focused ? Math.min(order.length - 1, Math.max(0, at + by)) : Math.max(0, at)]);
    },
    openActive() {
      if (open && active !== null && rows.has(active)) open(rows.get(active).row);
    },
    toggleActive() {
      if (!selectable || active === null) return;
      mark(active, !selected.has(active));
      notifySelection();
    },
    hasFocus: () => body.contains(document.activeElement),
  };
}
