// All subscriptions, and the durable ones that stay when their consumer goes.

import { closeConnection, removeDurable } from "../actions.js";
import { ask } from "../api.js";
import { gauge, usedOf } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { to } from "../router.js";
import { STATE, TROUBLES } from "../standings.js";
import { Paged, sorted, table } from "../tables.js";

export function consumers(context) {
  const list = new Paged(context, "/subscriptions", { sort: "-state" });
  let durables = [];
  let sort = "-backlog_count";
  const durableColumns = [
    ...DURABLES,
    {
      name: "", class: "actions",
      cell: (row) => context.may().admin !== false && !row.attached && h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Remove ${row.name}`, onclick: () => removeDurable(context, row) }, "Remove"),
    },
  ];
  return {
    title: "Consumers",
    load: async () => {
      const [found] = await Promise.all([ask("/durables", { limit: 500 }), list.load()]);
      durables = found.items;
    },
    draw: () => [
      h(
        "section",
        { class: "card" },
        h("header", {}, h("h2", {}, "Subscriptions"), list.search("Search by name or destination"), h("span", { class: "hint" }, format.things(list.total, "subscription"))),
        h("div", { class: ["body", "flush"] }, list.table(columnsFor(context, list.items), { idOf: (row) => row.id, empty: "There are no subscriptions.", caption: "Subscriptions" })),
      ),
      h(
        "section",
        { class: "card" },
        h("header", {}, h("h2", {}, "Durable subscriptions"), h("span", { class: "hint" }, "they keep what comes while their consumer is away")),
        h(
          "div",
          { class: ["body", "flush"] },
          table({
            columns: durableColumns, rows: sorted(durables, sort), idOf: (row) => `${row.client_id} ${row.name} ${row.destination}`, sort, empty: "There are none.", caption: "Durable subscriptions",
            onsort: (wanted) => {
              sort = wanted;
              context.redraw();
            },
          }),
        ),
      ),
    ],
  };
}

const pageOf = (name) => (name.startsWith("/log/") ? "log" : "destination");

const DESTINATION = { name: "Destination", key: "destination", cell: (row) => (row.destination ? h("a", { href: to(pageOf(row.destination), { name: row.destination }) }, row.destination) : "–") };

const subscriptionsOf = (context) => [
  {
    name: "Subscription", key: "name", lead: true,
    cell: (row) => {
      const at = row.name.lastIndexOf(" of ");
      return row.client_id && at > 0
        ? [h("span", { class: "name" }, row.client_id), h("span", { class: "muted", title: row.name }, ` ${row.name.slice(0, at)}`)]
        : h("span", { class: "name" }, row.name);
    },
  },
  STATE,
  DESTINATION,
  { name: "User", cell: (row) => row.user ?? "–" },
  { name: "Acknowledges", cell: (row) => row.ack },
  { name: "Selector", cell: (row) => (row.selector ? h("code", {}, row.selector) : "") },
  { name: "Out", key: "rate_per_second", num: true, cell: (row) => format.rate(row.rate_per_second) },
  { name: "Unacked", key: "unsettled_count", num: true, cell: (row) => format.count(row.unsettled_count) },
  { name: "Window", class: "window", cell: (row) => row.window && gauge(row.window.throttled ? "full" : "", usedOf(row.window), row.window.share, row.window.throttled && TROUBLES.has(row.state)) },
  { name: "Idle", key: "idle_seconds", num: true, cell: (row) => (row.ack === "auto" ? "–" : format.age(row.idle_seconds)) },
  {
    name: "", class: "actions",
    cell: (row) => h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Close the connection of ${row.name}`, onclick: () => closeConnection(context, row) }, "Close"),
  },
];

/** The column of selectors is there if somebody has one. */
const columnsFor = (context, rows) => subscriptionsOf(context).filter((column) => column.name !== "Selector" || rows.some((row) => row.selector));

const DURABLES = [
  { name: "Name", key: "name", lead: true, cell: (row) => h("span", { class: "name" }, row.name) },
  { name: "Client", key: "client_id", cell: (row) => row.client_id },
  DESTINATION,
  { name: "Backlog", key: "backlog_count", num: true, cell: (row) => format.count(row.backlog_count) },
  { name: "Consumer", key: "attached", cell: (row) => (row.attached ? h("span", { class: ["tag", "good"] }, row.consumers_count > 1 ? `${row.consumers_count} connected` : "connected") : h("span", { class: ["tag", "is-throttled"] }, `away ${format.age(row.away_seconds)}`)) },
  { name: "Age", key: "age_seconds", num: true, cell: (row) => format.age(row.age_seconds) },
];
