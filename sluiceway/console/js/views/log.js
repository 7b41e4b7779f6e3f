// One log with its groups: how far behind each is, and moving one to another place.

import { seek } from "../actions.js";
import { ask } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { logLine } from "../log_line.js";
import { to } from "../router.js";
import { sorted, table } from "../tables.js";
import { pair } from "./destination.js";

export function log(context) {
  const name = context.query.name ?? "";
  let found = null;
  let sort = "-lag";
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
      found = await ask("/log", { name });
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
