// All connections: who is blocked, by what, and how much they hold.

import { closeConnection } from "../actions.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { STATE } from "../standings.js";
import { Paged } from "../tables.js";

export function connections(context) {
  const list = new Paged(context, "/connections", { sort: "-state" });
  const columns = [
    { name: "Peer", key: "peer", lead: true, cell: (row) => [h("span", { class: "name" }, row.client_id ?? row.peer), row.client_id && h("span", { class: "muted" }, ` ${row.peer}`)] },
    { name: "User", key: "user", cell: (row) => row.user ?? "–" },
    STATE,
    { name: "STOMP", cell: (row) => row.version ?? "–" },
    { name: "Sends", key: "in_per_second", num: true, cell: (row) => format.rate(row.in_per_second) },
    { name: "In", key: "in_bytes", num: true, cell: (row) => format.size(row.in_bytes) },
    { name: "Out", key: "out_bytes", num: true, cell: (row) => format.size(row.out_bytes) },
    { name: "Pending", num: true, cell: (row) => format.count(row.parked_count) },
    { name: "Unacked", key: "unsettled_count", num: true, cell: (row) => format.count(row.unsettled_count) },
    { name: "Subscriptions", key: "subscriptions_count", num: true, cell: (row) => format.count(row.subscriptions_count) },
    {
      name: "", class: "actions",
      cell: (row) => context.may().admin !== false && h("button", { class: ["button", "tiny"], type: "button", "aria-label": `Close ${row.peer}`, onclick: () => closeConnection(context, row) }, "Close"),
    },
  ];
  return {
    title: "Connections",
    load: () => list.load(),
    draw: () =>
      h(
        "section",
        { class: "card" },
        h("header", {}, list.search("Search by peer, client-id or user"), h("span", { class: "hint" }, format.things(list.total, "connection"))),
        h("div", { class: ["body", "flush"] }, list.table(columns, { idOf: (row) => row.session, empty: "No client is connected.", caption: "Connections" })),
      ),
  };
}
