// The hubs of a cluster: which has which shard, what moves, and the links between them.

import { ask } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../glyphs.js";
import { hubsMap, linksOf, stateOfShard, wordsOfShard } from "../hubs_map.js";
import { table } from "../tables.js";
import { pair } from "./destination.js";

const WORDS = { open: "open", opening: "is being opened", moving: "moves", waiting: "waits" };

export function hubs(context) {
  let found = null;
  let picked = null;
  let sort = "shard";
  const pick = (shard) => {
    picked = picked === shard ? null : shard;
    context.redraw();
  };
  const onsort = (wanted) => {
    sort = wanted;
    context.redraw();
  };
  return {
    title: "Hubs",
    load: async () => {
      found = await ask("/cluster");
    },
    draw: () => {
      if (!found) return null;
      const shard = found.shards.find((one) => one.shard === picked);
      return [
        h(
          "section",
          { class: "card" },
          h("header", {}, h("h2", {}, "Hubs and shards"), h("span", { class: "hint" }, `${format.things(found.hubs.length, "hub")}, ${format.things(found.shards.length, "shard")}, as ${found.hub} knows it`)),
          found.words && h("div", { class: "notice" }, `This may be old: ${found.words}.`),
          h("div", { class: "body" }, hubsMap(found, picked, pick), legend()),
        ),
        shard && detail(shard),
        h("section", { class: "card" }, h("header", {}, h("h2", {}, "Hubs")), h("div", { class: ["body", "flush"] }, hubsTable(found.hubs))),
        h("section", { class: "card" }, h("header", {}, h("h2", {}, "Shards"), h("span", { class: "hint" }, "the epoch grows with each move")), h("div", { class: ["body", "flush"] }, shardsTable(found.shards, { sort, onsort, picked }))),
      ];
    },
  };
}

function legend() {
  const sample = (state, words) => h("span", { class: "sample" }, h("svg", { viewBox: "0 0 22 22", width: 16, height: 16, "aria-hidden": "true" }, h("g", { class: ["shard", `is-${state}`] }, h("rect", { class: "square", x: 1, y: 1, width: 20, height: 20, rx: 3 }))), words);
  return h("div", { class: ["map-foot", "hubs-foot"] }, sample("open", "open"), sample("opening", "is being opened"), sample("moving", "moves to another hub"), sample("waiting", "waits: no hub has it"), h("span", {}, "Filled: what it holds, compared with the others"));
}

function detail(shard) {
  return h(
    "section",
    { class: "card", key: "detail" },
    h("header", {}, h("h2", {}, `Shard ${shard.shard}`), h("span", { class: "hint" }, WORDS[stateOfShard(shard)])),
    h(
      "div",
      { class: "body" },
      h("p", {}, `${wordsOfShard(shard)}.`),
      h("dl", { class: "pairs" }, pair("Hub", shard.hub || "none"), pair("Epoch", format.count(shard.epoch)), pair("Moves to", shard.to || null), pair("Chosen by an operator", shard.pinned || null), pair("Messages", known(shard.depth_count, format.count)), pair("Size", known(shard.depth_bytes, format.size)), pair("Destinations", known(shard.destinations_count, format.count))),
      h("p", { class: "muted" }, h("code", {}, `sluiceway cluster move ${shard.shard} HUB`), " moves it."),
    ),
  );
}

const known = (value, said) => (value === null || value === undefined ? "–" : said(value));

function hubsTable(rows) {
  const links = linksOf(rows);
  const cut = (name) => links.filter((link) => link.cutSeconds !== null && link.ends.includes(name));
  const columns = [
    { name: "Hub", lead: true, cell: (row) => h("span", { class: "name" }, row.name) },
    { name: "State", cell: (row) => (row.missing ? h("span", { class: "bad-text" }, icon("alarm"), ` missing: ${row.missing}`) : row.state) },
    { name: "Version", cell: (row) => row.version || "–" },
    { name: "Weight", num: true, cell: (row) => (row.missing ? "–" : `${row.weight}`) },
    { name: "Shards", num: true, cell: (row) => format.count(row.shards_count) },
    { name: "Links", cell: (row) => (cut(row.name).length ? h("span", { class: "bad-text" }, icon("alarm"), ` none to ${cut(row.name).map((link) => `${link.ends.find((end) => end !== row.name)}, for ${format.age(link.cutSeconds)}`).join("; ")}`) : row.missing ? "–" : format.things((row.links ?? []).length, "link")) },
    { name: "Clients at", cell: (row) => row.clients || "–" },
  ];
  return table({ columns, rows, idOf: (row) => row.name, caption: "Hubs" });
}

function shardsTable(rows, { sort, onsort, picked }) {
  const key = sort.replace("-", "");
  const way = sort.startsWith("-") ? -1 : 1;
  const value = (row) => row[key] ?? -1;
  const sorted = [...rows].sort((a, b) => way * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.shard - b.shard));
  const columns = [
    { name: "Shard", key: "shard", first: "shard", num: true, lead: true, cell: (row) => `${row.shard}` },
    { name: "Hub", key: "hub", first: "hub", cell: (row) => row.hub || h("span", { class: "bad-text" }, "none") },
    { name: "State", cell: (row) => (row.to && row.hub ? `moves to ${row.to}` : WORDS[stateOfShard(row)]) },
    { name: "Epoch", key: "epoch", num: true, cell: (row) => format.count(row.epoch) },
    { name: "Messages", key: "depth_count", num: true, cell: (row) => known(row.depth_count, format.count) },
    { name: "Size", key: "depth_bytes", num: true, cell: (row) => known(row.depth_bytes, format.size) },
    { name: "Destinations", key: "destinations_count", num: true, cell: (row) => known(row.destinations_count, format.count) },
    { name: "Chosen for", cell: (row) => row.pinned || "–" },
    { name: "Why", cell: (row) => row.words || "–" },
  ];
  return table({ columns, rows: sorted, idOf: (row) => `${row.shard}`, sort, onsort, caption: "Shards", picked: picked === null ? undefined : `${picked}` });
}
