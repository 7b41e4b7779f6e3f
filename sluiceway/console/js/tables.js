// Tables that sort, search and page. The broker does the work where there may be many rows (`Paged`); short lists are
// sorted here. On a phone a row becomes a card: each cell knows its column's name.

import { ask } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";

/** What a phone has no room for. */
const NOTHING = new Set(["–", "", "0", "0 B", "0/s", null, false, undefined]);

/**
 * `columns`: [{name, key (to sort by; none: can't be sorted), first (the sort that a click begins with), num, lead,
 * cell: row => child, class}].
 * `sort`: `-depth_count` or `depth_count`; `onsort(key)`. `idOf(row)`: what tells rows apart.
 */
export function table({ columns, rows, idOf, sort, onsort, empty, caption, picked }) {
  if (!rows.length) return h("p", { class: "empty" }, empty ?? "There is nothing here.");
  return h(
    "div",
    { class: "table-box", tabindex: -1 },
    h(
      "table",
      { class: "stacks" },
      caption && h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => heading(column, sort, onsort)))),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { key: idOf(row), class: picked !== undefined && picked === idOf(row) ? "is-picked" : "" },
            columns.map((column) => {
              const said = column.cell(row);
              return h("td", { class: [column.num && "num", column.lead && "lead", column.class, NOTHING.has(said) && "nothing"], "data-label": column.name }, said);
            }),
          ),
        ),
      ),
    ),
  );
}

function heading(column, sort, onsort) {
  const down = sort === `-${column.key}`;
  const up = sort === column.key;
  const sorted = column.key && (down || up);
  return h(
    "th",
    { scope: "col", class: column.num && "num", "aria-sort": sorted ? (down ? "descending" : "ascending") : null },
    column.key && onsort
      ? h("button", { type: "button", onclick: () => onsort(nextSort(sort, column)) }, column.name, h("span", { class: "way", "aria-hidden": "true" }, down ? "↓" : up ? "↑" : ""))
      : column.name,
  );
}

/** Numbers begin with the largest, names with the first. */
function nextSort(sort, column) {
  if (sort === `-${column.key}`) return column.key;
  if (sort === column.key) return `-${column.key}`;
  return column.first ?? (column.num ? `-${column.key}` : column.key);
}

/** Rows that are here already, sorted. */
export function sorted(rows, sort) {
  const key = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return sign * (typeof x === "string" ? x.localeCompare(String(y)) : x - y);
  });
}

const HUB = { name: "Hub", cell: (row) => row.hub ?? "–" };

/** A list of which the broker gives a page at a time. */
export class Paged {
  constructor(context, path, { sort, limit = 50 }) {
    this.context = context;
    this.path = path;
    this.limit = limit;
    this.offset = 0;
    this.sort = context.query.sort || sort;
    this.q = context.query.q || "";
    this.total = 0;
    this.items = [];
  }

  async load() {
    const wanted = { offset: this.offset, sort: this.sort, q: this.q };
    const found = await ask(this.path, { ...wanted, limit: this.limit });
    // What is wanted may have changed since: the answer to that follows.
    if (Object.keys(wanted).some((name) => wanted[name] !== this[name])) return;
    this.items = found.items;
    this.total = found.total;
    if (this.offset && this.offset >= this.total) this.offset = Math.max(0, Math.floor((this.total - 1) / this.limit) * this.limit);
  }

  change(changes) {
    Object.assign(this, { offset: 0, ...changes });
    this.context.adjust({ q: this.q, sort: this.sort });
    this.context.redraw();
    this.context.soon();
  }

  search(label) {
    return h("input", { class: "search", type: "search", value: this.q, placeholder: label, "aria-label": label, oninput: (event) => this.change({ q: event.target.value }) });
  }

  table(columns, more) {
    // Of several hubs each row says where it is.
    if (this.items.some((row) => row.hub)) columns = [columns[0], HUB, ...columns.slice(1)];
    return [
      table({ columns, rows: this.items, sort: this.sort, onsort: (sort) => this.change({ sort }), ...more, empty: this.q ? `Nothing has «${this.q}» in its name.` : more.empty }),
      this.pager(),
    ];
  }

  pager() {
    if (this.total <= this.limit && !this.offset) return null;
    const last = Math.min(this.total, this.offset + this.items.length);
    return h(
      "nav",
      { class: "pager", "aria-label": "Pages" },
      `${format.count(this.offset + 1)} to ${format.count(last)} of ${format.count(this.total)}`,
      h(
        "span",
        { class: "end" },
        h("button", { class: ["button", "tiny"], type: "button", disabled: !this.offset, onclick: () => this.change({ offset: Math.max(0, this.offset - this.limit) }) }, "Back"),
        h("button", { class: ["button", "tiny"], type: "button", disabled: last >= this.total, onclick: () => this.change({ offset: this.offset + this.limit }) }, "Next"),
      ),
    );
  }
}
