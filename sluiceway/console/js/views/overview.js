// The first page: what is wrong in sentences, the numbers, and the map.

import { spanChoice, spark } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { icon, mark } from "../glyphs.js";
import { isHour, loadHour, points } from "../history.js";
import { MapView } from "../map_view.js";
import { alarmOf, culprits, LASTING_SECONDS } from "../overview_facts.js";
import { to } from "../router.js";
import { remedies } from "../standings.js";
import { table } from "../tables.js";

const LINES_MAX = 4;

export function overview(context) {
  const map = new MapView(context, 30);
  let remedy = { id: "", words: "" };
  const ask_remedy = async () => {
    // Only when another one is the worst: what to do about it does not change each second.
    const worst = culprits(context.overview())[0];
    if (!worst) remedy = { id: "", words: "" };
    else if (worst.id !== remedy.id) remedy = { id: worst.id, words: (await map.loadChain(worst.id)).remedy };
  };
  return {
    title: "Overview",
    load: () => Promise.all([map.load(), ask_remedy(), loadHour()]),
    key: (event) => map.pageKey(event),
    close: () => map.close(),
    draw: () => [verdict(context, context.overview(), map, remedy), h("div", { class: "row" }, h("span", { class: "end" }, spanChoice(context))), tiles(context.overview()), hubs(context.overview()), map.draw()],
  };
}

function verdict(context, found, map, remedy) {
  const bottlenecks = culprits(found);
  const behind = found.bottlenecks.filter((one) => one.age_seconds >= LASTING_SECONDS).length - bottlenecks.length;
  if (!alarmOf(found).id) {
    return h(
      "section",
      { class: ["card", "verdict"], "aria-label": "What is wrong" },
      h("div", { class: ["line", "first", "fine"] }, h("span", { class: "good-text" }, icon("fine")), h("p", { class: "said" }, "Nothing is blocked."), h("p", { class: "facts" }, flowing(found))),
      stalled(context, found, map),
    );
  }
  return h(
    "section",
    { class: ["card", "verdict"], "aria-label": "What is wrong" },
    bottlenecks.slice(0, LINES_MAX).map((one, at) =>
      h(
        "div",
        { key: one.id, class: ["line", "blocked", !at && "first"] },
        h("span", { class: "bad-text" }, icon("alarm")),
        h("p", { class: "said" }, headline(one, map)),
        h("p", { class: "facts" }, facts(one)),
        one.id === remedy.id && remedy.words && h("p", { class: "advice" }, h("b", {}, "What to do: "), remedy.words),
        h("p", { class: "advice" }, remedies(context, one.cause)),
        h("button", { class: ["button", "tiny", "end"], type: "button", onclick: () => map.pick(one.id), "aria-label": `Show ${one.title} in the map` }, "Follow"),
      ),
    ),
    stalled(context, found, map),
    (bottlenecks.length > LINES_MAX || behind > 0) &&
      h(
        "div",
        { class: ["line", "rest"] },
        h("span"),
        h("p", { class: "muted" }, [bottlenecks.length > LINES_MAX && `${format.count(bottlenecks.length - LINES_MAX)} more.`, behind > 0 && `${format.count(behind)} more ${behind === 1 ? "is" : "are"} blocked as a consequence.`].filter(Boolean).join(" ")),
      ),
  );
}

/** Consumers that acknowledge nothing, though no sender waits for them yet. */
function stalled(context, found, map) {
  const all = found.stalled ?? [];
  return all.slice(0, LINES_MAX).map((one) =>
    h(
      "div",
      { key: one.id, class: ["line", "throttled"] },
      h("span", { class: "warn-text" }, mark("throttled")),
      h("p", {}, h("b", {}, `Stalled consumer: ${one.title}`), ` – ${one.words}`),
      h("p", { class: "advice" }, remedies(context, one.cause)),
      h("button", { class: ["button", "tiny", "end"], type: "button", onclick: () => map.pick(one.id), "aria-label": `Show ${one.title} in the map` }, "Follow"),
    ),
  );
}

/** The processes that are this broker, where there are several, and what each has. */
function hubs(found) {
  if (!found.hubs) return null;
  const columns = [
    { name: "Hub", lead: true, cell: (row) => h("span", { class: "name" }, row.name) },
    { name: "State", cell: (row) => (row.missing ? h("span", { class: "bad-text" }, icon("alarm"), ` missing: ${row.missing}`) : "answers") },
    { name: "Process", num: true, cell: (row) => row.pid ?? "–" },
    { name: "Connections", num: true, cell: (row) => (row.missing ? "–" : format.count(row.connections_count)) },
    { name: "Destinations", num: true, cell: (row) => (row.missing ? "–" : format.count(row.destinations_count)) },
    { name: "In", num: true, cell: (row) => (row.missing ? "–" : format.rate(row.in_per_second)) },
    { name: "Out", num: true, cell: (row) => (row.missing ? "–" : format.rate(row.out_per_second)) },
    { name: "Shards", cell: (row) => (row.missing ? "–" : shards(row.shards)) },
  ];
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, h("a", { href: to("hubs") }, "Hubs"))), h("div", { class: ["body", "flush"] }, table({ columns, rows: found.hubs, idOf: (row) => row.name, caption: "Hubs" })));
}

/** Numbers of shards, as ranges where they follow each other. */
function shards(numbers) {
  const ranges = [];
  for (const number of numbers ?? []) {
    const last = ranges.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ") || "–";
}

const headline = (one, map) => `${map.nameOf(one)} blocks ${format.things(one.flows_count, "sender")}, for ${format.age(one.age_seconds)}`;

/** The broker's sentence says more behind a colon; if it is another sentence, all of it. */
function facts(one) {
  const at = one.words.indexOf(": ");
  return at > 0 && one.words.startsWith(one.title) ? one.words.slice(at + 2) : one.words;
}

const flowing = ({ totals }) => `${format.rate(totals.in_per_second)} come in, ${format.rate(totals.out_per_second)} go out.`;

function tiles({ totals }) {
  const tile = (label, value, name, sub = "") =>
    h("div", { class: "tile", key: name }, h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "sub" }, sub), spark(points(`total ${name}`), { label: `${label} over ${isHour() ? "the last hour" : "the last minute"}`, width: 160, height: 26 }));
  return h(
    "section",
    { class: "tiles", "aria-label": "Numbers" },
    tile("In", format.rate(totals.in_per_second), "in_per_second", "messages from producers"),
    tile("Out", format.rate(totals.out_per_second), "out_per_second", "messages to consumers"),
    tile("Waiting", format.shortCount(totals.depth_count), "depth_count", `${format.size(totals.depth_bytes)} in ${format.things(totals.destinations_count, "destination")}`),
    tile("Unacknowledged", format.shortCount(totals.unsettled_count), "unsettled_count", `at ${format.things(totals.subscriptions_count, "subscription")}`),
    tile("Held in memory", format.size(totals.memory_bytes), "memory_bytes", "by all limiters"),
    tile("Connections", format.count(totals.connections_count), "connections_count"),
  );
}
