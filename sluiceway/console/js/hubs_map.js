// Hubs of a cluster with their shards and links, as SVG: boxes on an ellipse, a square for each shard, a line for each link.

import { h } from "./dom.js";
import * as format from "./format.js";

const SQUARE = 22;
const GAP = 3;
const IN_ROW = 8;
const PAD = 10;
const HEAD = 26;
export const NOWHERE = "";
const WIDE = IN_ROW * (SQUARE + GAP) - GAP + 2 * PAD;

/** What a shard is doing: open, opening, moving, waiting. */
export function stateOfShard(shard) {
  if (!shard.hub) return "waiting";
  if (shard.to) return "moving";
  return shard.open ? "open" : "opening";
}

export function wordsOfShard(shard) {
  const parts = [shard.hub ? `on ${shard.hub}, epoch ${shard.epoch}` : shard.words];
  if (shard.depth_count !== null && shard.depth_count !== undefined) parts.push(`${format.things(shard.depth_count, "message")}, ${format.size(shard.depth_bytes)} in ${format.things(shard.destinations_count, "destination")}`);
  if (shard.hub && !shard.open) parts.push("it is being opened");
  if (shard.to) parts.push(`it moves to ${shard.to}`);
  if (shard.pinned) parts.push(`chosen for ${shard.pinned} by an operator`);
  return `Shard ${shard.shard}: ${parts.join("; ")}`;
}

/** Each pair of hubs once: whether there is a link, its flows, or for how long there is none. */
export function linksOf(hubs) {
  const found = new Map();
  const of = (one, other) => {
    const key = [one, other].sort().join(" ");
    if (!found.has(key)) found.set(key, { key, ends: [one, other].sort(), flows: 0, cutSeconds: null });
    return found.get(key);
  };
  for (const hub of hubs) {
    for (const link of hub.links ?? []) of(hub.name, link.hub).flows = Math.max(of(hub.name, link.hub).flows, link.flows_count);
    for (const link of hub.unlinked ?? []) of(hub.name, link.hub).cutSeconds = link.seconds;
  }
  return [...found.values()];
}

/** Places of boxes by name, and the size of the whole. */
function layoutOf(hubs, byHub) {
  const tall = (name) => HEAD + Math.max(1, Math.ceil((byHub.get(name) ?? []).length / IN_ROW)) * (SQUARE + GAP) - GAP + PAD;
  const tallest = Math.max(...hubs.map((hub) => tall(hub.name)));
  const across = hubs.length < 2 ? 0 : Math.max(WIDE * 0.75, (hubs.length * WIDE) / 4);
  const down = hubs.length < 3 ? 0 : Math.max(tallest * 0.8, (hubs.length * tallest) / 6);
  const width = 2 * across + WIDE + 2;
  let height = 2 * down + tallest + 2;
  const places = new Map(
    hubs.map((hub, at) => {
      const angle = Math.PI + (2 * Math.PI * at) / hubs.length;
      const own = tall(hub.name);
      return [hub.name, { x: 1 + across + across * Math.cos(angle), y: 1 + down + down * Math.sin(angle) + (tallest - own) / 2, tall: own }];
    }),
  );
  if (byHub.has(NOWHERE)) {
    places.set(NOWHERE, { x: 1 + across, y: height + 24, tall: tall(NOWHERE) });
    height += 24 + tall(NOWHERE) + 1;
  }
  return { places, width, height };
}

export function hubsMap({ hubs, shards }, picked, onpick) {
  const byHub = new Map();
  for (const shard of shards) byHub.set(shard.hub, [...(byHub.get(shard.hub) ?? []), shard]);
  const { places, width, height } = layoutOf(hubs, byHub);
  const most = Math.max(1, ...shards.map((shard) => shard.depth_bytes ?? 0));
  const middle = (name) => ({ x: places.get(name).x + WIDE / 2, y: places.get(name).y + places.get(name).tall / 2 });
  return h(
    "svg",
    { class: "hubs-map", viewBox: `0 0 ${width.toFixed(0)} ${height.toFixed(0)}`, width: width.toFixed(0), height: height.toFixed(0), role: "img", "aria-label": "Hubs with their shards, and the links between them. The tables below say the same." },
    linksOf(hubs)
      .filter((link) => link.ends.every((name) => places.has(name)))
      .map((link) => linkOf(link, middle(link.ends[0]), middle(link.ends[1]))),
    hubs.map((hub) => boxOf(hub, places.get(hub.name), byHub.get(hub.name) ?? [], { most, picked, onpick })),
    byHub.has(NOWHERE) && boxOf({ name: NOWHERE, state: "away" }, places.get(NOWHERE), byHub.get(NOWHERE), { most, picked, onpick }),
  );
}

function linkOf(link, from, to) {
  const cut = link.cutSeconds !== null;
  const words = cut ? `${link.ends.join(" and ")}: no link, for ${format.age(link.cutSeconds)}` : `${link.ends.join(" and ")}: ${format.things(link.flows, "flow")}`;
  return h("g", { key: `link ${link.key}` }, h("path", { class: ["hub-link", cut && "is-cut"], d: `M${from.x.toFixed(1)} ${from.y.toFixed(1)}L${to.x.toFixed(1)} ${to.y.toFixed(1)}` }, h("title", {}, words)));
}

function boxOf(hub, place, shards, { most, picked, onpick }) {
  const away = Boolean(hub.missing) || hub.state === "away";
  return h(
    "g",
    { key: `hub ${hub.name}`, class: ["hub-box", away && "is-away"], transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})` },
    h("rect", { class: "box", width: WIDE, height: place.tall, rx: 7 }),
    h("text", { class: "title", x: PAD, y: 17 }, hub.name === NOWHERE ? "at no hub" : hub.name),
    h("text", { class: "facts", x: WIDE - PAD, y: 17 }, hub.missing ? "missing" : hub.state === "drained" ? "drained" : format.things(shards.length, "shard")),
    shards.map((shard, at) => squareOf(shard, PAD + (at % IN_ROW) * (SQUARE + GAP), HEAD + Math.floor(at / IN_ROW) * (SQUARE + GAP), { most, picked, onpick })),
  );
}

function squareOf(shard, x, y, { most, picked, onpick }) {
  const held = Math.ceil(((SQUARE - 2) * (shard.depth_bytes ?? 0)) / most);
  return h(
    "g",
    { key: `shard ${shard.shard}`, class: ["shard", `is-${stateOfShard(shard)}`, shard.pinned && "is-pinned", picked === shard.shard && "is-picked"], transform: `translate(${x} ${y})`, onclick: () => onpick(shard.shard) },
    h("title", {}, wordsOfShard(shard)),
    h("rect", { class: "square", width: SQUARE, height: SQUARE, rx: 3 }),
    held > 0 && h("rect", { class: "held", x: 1, y: SQUARE - 1 - held, width: SQUARE - 2, height: held }),
    h("text", { x: SQUARE / 2, y: SQUARE / 2 + 4 }, `${shard.shard}`),
  );
}
