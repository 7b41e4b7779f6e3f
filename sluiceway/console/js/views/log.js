// One log with its groups: how far behind each is, and moving one to another place.

import { seek } from "../actions.js";
import { ask, ApiError, explained } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { logLine } from "../log_line.js";
import { to } from "../router.js";
import { sorted, table } from "../tables.js";
import { pair } from "./destination.js";

const RECORDS_LIMIT = 20;

/** Records from an index or a time on; asked for when that is chosen, not each second. */
class Records {
  constructor(context, name) {
    this.context = context;
    this.name = name;
    this.place = "latest";
    this.found = null;
    this.wrong = null;
    this.index = "";
    this.time = "";
  }

  async load() {
    if (this.found || this.wrong) return;
    const place = this.place;
    let [found, wrong] = [null, null];
    try {
      found = await ask("/records", { name: this.name, from: place, limit: RECORDS_LIMIT });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status === 401) throw error;
      wrong = error;
    }
    // Another place may be wanted by now.
    if (place === this.place) Object.assign(this, { found, wrong });
  }

  go(place) {
    Object.assign(this, { place: String(place), found: null, wrong: null });
    this.context.redraw();
    this.context.soon();
  }

  draw() {
    const submit = (event) => {
      event.preventDefault();
      if (this.time) this.go(`time:${new Date(this.time).getTime()}`);
      else if (this.index !== "") this.go(this.index);
    };
    const button = (words, place, disabled = false) => h("button", { class: ["button", "tiny"], type: "button", disabled, onclick: () => this.go(place) }, words);
    const rows = this.found?.items ?? [];
    return h(
      "section",
      { class: "card", "aria-label": "Records" },
      h("header", {}, h("h2", {}, "Records"), h("form", { class: ["row", "end"], onsubmit: submit },
        h("input", { class: "search", type: "number", min: "0", value: this.index, placeholder: "Index", "aria-label": "Index", oninput: (event) => { this.index = event.target.value; this.time = ""; this.context.redraw(); } }),
        h("input", { class: "search", type: "datetime-local", value: this.time, "aria-label": "Time", oninput: (event) => { this.time = event.target.value; this.index = ""; this.context.redraw(); } }),
        h("button", { class: ["button", "tiny", "main"], type: "submit" }, "Go"),
        button("First", "earliest"), button("Last", "latest"), button("Next", this.found?.from, !Number.isInteger(this.found?.from)),
      )),
      this.wrong && h("p", { class: "empty" }, explained(this.wrong)),
      h("div", { class: ["body", "flush"] }, table({ columns: RECORDS, rows, idOf: (row) => row.index, caption: "Records", empty: this.found ? "No records from here on." : "Reading …" })),
    );
  }
}

const RECORDS = [
  { name: "Index", lead: true, cell: (row) => format.count(row.index) },
  { name: "Time", cell: (row) => (row.timestamp_ms ? format.day(row.timestamp_ms) : "–") },
  { name: "Size", num: true, cell: (row) => format.size(row.size_bytes) },
  { name: "Headers", cell: (row) => Object.entries(row.headers ?? {}).filter(([key]) => key !== "destination").map(([key, value]) => `${key}: ${value}`).join(", ") },
  { name: "Begins with", cell: (row) => (row.missing ? h("span", { class: "bad-text" }, `gone up to ${format.count(row.end - 1)}: ${row.missing}`) : h("span", { class: ["clip", "mono"], title: row.preview }, row.preview)) },
];

export function log(context) {
  const name = context.query.name ?? "";
  let found = null;
  let sort = "-lag";
  const records = new Records(context, name);
  const columns = [
    { name: "Group", key: "group", lead: true, cell: (row) => h("span", { class: "name" }, row.group) },
    { name: "At", key: "front", num: true, cell: (row) => format.count(row.front) },
    { name: "Behind", key: "lag", num: true, cell: (row) => format.count(row.lag) },
    { name: "Bytes", key: "lag_bytes", num: true, cell: (row) => format.size(row.lag_bytes) },
    { name: "Time", key: "lag_seconds", num: true, cell: (row) => (row.lag ? format.age(row.lag_seconds) : "–") },
    { name: "Unacked", key: "unsettled", num: true, cell: (row) => format.count(row.unsettled) },
    { name: "Consumers", key: "consumers", num: true, cell: (row) => h("span", { class: row.lag && !row.consumers ? "warn-text" : "" }, format.count(row.consumers)) },
    { name: "", class: "actions", cell: (row) => context.may().admin !== false && h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Move group ${row.group}`, onclick: () => seek(context, found, row) }, "Move") },
  ];
  return {
    title: name,
    load: async () => {
      [found] = await Promise.all([ask("/log", { name }), records.load()]);
    },
    draw: () =>
      found && [
        h("a", { class: "crumbs", href: to("logs") }, "← All logs"),
        h("section", { class: "card" }, h("header", {}, h("h2", {}, "Records and who reads them"), found.failing && h("span", { class: ["tag", "is-blocked"] }, found.failing)), h("div", { class: "body" }, logLine(found))),
        h(
          "section",
          { class: "card" },
          h("header", {}, h("h2", {}, "Groups")),
          h(
            "div",
            { class: ["body", "flush"] },
            table({
              columns, rows: sorted(found.groups ?? [], sort), idOf: (row) => row.group, sort, caption: "Groups", empty: "No group reads it.",
              onsort: (wanted) => {
                sort = wanted;
                context.redraw();
              },
            }),
          ),
        ),
        records.draw(),
        h(
          "section",
          { class: "card" },
          h("header", {}, h("h2", {}, "Numbers")),
          h(
            "div",
            { class: "body" },
            h(
              "dl",
              { class: "pairs" },
              pair("Records", format.count(found.size)),
              pair("Size", format.size(found.bytes)),
              pair("First record", found.first_timestamp_ms ? `${format.count(found.first)}, of ${format.day(found.first_timestamp_ms)}` : format.count(found.first)),
              pair("Last record", found.last_timestamp_ms ? `${format.count(found.next - 1)}, of ${format.day(found.last_timestamp_ms)}` : "–"),
              pair("On disk up to", format.count(found.synced)),
              pair("Waiting to be appended", format.count(found.waiting)),
              pair("Readers without a group", format.count(found.readers)),
              pair("Gaps", format.count(found.gaps)),
            ),
          ),
        ),
      ],
  };
}
