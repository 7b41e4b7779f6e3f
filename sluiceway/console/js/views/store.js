// The store: what was written, what never had to be, how often the disk was waited for, and what left memory and came back.

import { ask } from "../api.js";
import { parted, spanChoice, timeChart } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { stateOf } from "../glyphs.js";
import { loadHour, points } from "../history.js";
import { pair } from "./destination.js";

export function store(context) {
  let found = null;
  return {
    title: "Store",
    load: async () => {
      found = (await ask("/store")).store ?? {};
      await loadHour();
    },
    draw: () => {
      if (!found) return null;
      if (!found.engine) return h("section", { class: "card" }, h("p", { class: "empty" }, h("b", {}, "This broker has no store."), h("br"), "Messages are in memory only, and are gone when it stops."));
      return [troubles(found), h("div", { class: "row" }, h("span", { class: "end" }, spanChoice(context))), h("div", { class: "grid-2" }, writes(found), syncs(), pages(), avoided(found)), numbers(found)];
    },
  };
}

function troubles(found) {
  if (found.state === "ok" || !found.state) return null;
  return h("section", { class: ["card", "verdict"] }, h("div", { class: ["line", "first", "blocked"] }, stateOf("blocked"), h("p", { class: "said" }, `The store is ${found.state}.`), h("p", { class: "facts" }, found.error ?? "")));
}

const card = (title, hint, body) => h("section", { class: "card" }, h("header", {}, h("h2", {}, title), h("span", { class: "hint" }, hint)), h("div", { class: "body" }, body));

function avoided(found) {
  return card("Writes that were avoided", "since the start", parted("Messages written and messages acknowledged before they had to be", [
    { name: "written", value: found.written_count },
    { name: "acknowledged before they had to be", value: found.cancelled_count },
  ]));
}

function writes() {
  return card("Writes", "messages per second", timeChart("Writes", [
    { name: "written", points: points("store written_count") },
    { name: "writes avoided", points: points("store cancelled_count") },
  ]));
}

function syncs() {
  return card("Syncs", "times per second that the disk was waited for", timeChart("Syncs", [{ name: "syncs", points: points("store syncs_count") }]));
}

function pages() {
  return card("Pages", "messages per second that left memory, and came back", timeChart("Pages", [
    { name: "out", points: points("store paged_out_count") },
    { name: "in", points: points("store loaded_count") },
  ]));
}

function numbers(found) {
  return card("Numbers", found.engine, h(
    "dl",
    { class: "pairs" },
    pair("State", found.state),
    pair("Size on disk", format.size(found.size_bytes)),
    pair("Free on the disk", found.free_bytes === undefined ? null : format.size(found.free_bytes)),
    pair("Queues in it", format.count(found.queues_count)),
    pair("Messages written", `${format.count(found.written_count)}, ${format.size(found.written_bytes)}`),
    pair("Batches", format.count(found.batches_count)),
    pair("Largest batch", format.things(found.largest_batch_count, "message")),
    pair("Last write", format.age(found.last_write_seconds)),
    pair("Longest write", format.age(found.longest_write_seconds)),
    pair("Writes that failed", format.count(found.failures_count)),
    pair("Lost to corruption", format.things(found.lost_count, "message")),
  ));
}
