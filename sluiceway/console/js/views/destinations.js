// All queues and topics: what flows, what waits, and when that ends.

import { limit, pause, publish, purge, resume } from "../actions.js";
import { spanChoice, spark } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { mark } from "../glyphs.js";
import { isHour, loadHour, note, points } from "../history.js";
import { to } from "../router.js";
import { STATE } from "../standings.js";
import { Paged } from "../tables.js";

/** Rows of which the last hour is drawn: each is a request. */
const HOURS_MAX = 20;

export function destinations(context) {
  const list = new Paged(context, "/destinations", { sort: "-state" });
  const columns = columnsOf(context);
  return {
    title: "Destinations",
    load: async () => {
      await list.load();
      if (isHour()) await Promise.all(list.items.slice(0, HOURS_MAX).map((row) => loadHour(row.name)));
      const at = performance.now() / 1000;
      for (const row of list.items) {
        note(`in ${row.name}`, row.in_per_second, at);
        note(`out ${row.name}`, row.out_per_second, at);
      }
    },
    draw: () =>
      h(
        "section",
        { class: "card" },
        h("header", {}, list.search("Search by name"), h("span", { class: "hint" }, format.things(list.total, "destination")), h("span", { class: "end" }, spanChoice(context))),
        h("div", { class: ["body", "flush"] }, list.table(columns, { idOf: (row) => row.name, caption: "Destinations", empty: "There are no destinations yet: they are made by the first SEND or SUBSCRIBE." })),
      ),
  };
}

function columnsOf(context) {
  return [
    {
      name: "Name", key: "name", lead: true,
      cell: (row) => [h("a", { class: "name", href: to("destination", { name: row.name }) }, row.name), row.paused && [" ", h("span", { class: ["tag", "is-paused"] }, mark("paused"), " paused")], limitsTag(row)],
    },
    STATE,
    { name: "In", key: "in_per_second", num: true, cell: (row) => rated(row, "in") },
    { name: "Out", key: "out_per_second", num: true, cell: (row) => rated(row, "out") },
    { name: "Messages", key: "depth_count", num: true, cell: (row) => format.count(row.depth_count) },
    { name: "Size", key: "depth_bytes", num: true, cell: (row) => format.size(row.depth_bytes) },
    { name: "Unacked", key: "unsettled_count", num: true, cell: (row) => format.count(row.unsettled_count) },
    { name: "Oldest", key: "oldest_seconds", num: true, cell: (row) => format.age(row.oldest_seconds) },
    { name: "Drained in", key: "drain_seconds", num: true, cell: (row) => forecast(row.drain_seconds, row.depth_count > 0) },
    { name: "Full in", key: "quota_seconds", num: true, cell: (row) => h("span", { class: row.quota_seconds !== null && row.quota_seconds < 600 ? "bad-text" : "" }, forecast(row.quota_seconds)) },
    { name: "Consumers", key: "subscriptions_count", num: true, cell: (row) => h("span", { class: row.depth_count && !row.subscriptions_count ? "warn-text" : "" }, format.count(row.subscriptions_count)) },
    { name: "", class: "actions", cell: (row) => buttons(context, row) },
  ];
}

/** That its limits were changed at run time; in full for those who point at it or listen. */
export function limitsTag(row) {
  if (!Object.keys(row.changed_limits ?? {}).length) return null;
  return [" ", h("span", { class: "tag", title: format.changedLimits(row.changed_limits) }, "limits changed")];
}

function rated(row, way) {
  return [spark(points(`${way} ${row.name}`), { label: `${way} over ${isHour() ? "the last hour" : "the last minute"}`, series: way === "in" ? 1 : 3 }), format.rate(row[`${way}_per_second`])];
}

/** Seconds till something; at this rate it may never be. */
export function forecast(seconds, needed = false) {
  if (seconds === null || seconds === undefined) return needed ? "not at this rate" : "–";
  return format.age(seconds);
}

export function buttons(context, row, { publishing = false } = {}) {
  if (!row.may_admin) return null;
  return [
    row.paused
      ? h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Resume ${row.name}`, onclick: () => resume(context, row.name) }, "Resume")
      : h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Pause ${row.name}`, onclick: () => pause(context, row.name) }, "Pause"),
    " ",
    publishing && h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Publish to ${row.name}`, onclick: () => publish(context, row.name) }, "Publish"),
    publishing && " ",
    publishing && h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Change the limits of ${row.name}`, onclick: () => limit(context, row.name) }, "Limits"),
    publishing && " ",
    row.kind.includes("queue") && h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Purge ${row.name}`, disabled: !row.depth_count, onclick: () => purge(context, row.name, row.depth_count) }, "Purge"),
  ];
}
