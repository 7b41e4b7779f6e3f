// The flow map as SVG. What is drawn comes from map_layout.js; which node is picked and which chain is lit, from the view.

import { h } from "./dom.js";
import * as format from "./format.js";
import { known, mark } from "./glyphs.js";
import { called, facts } from "./map_names.js";

const THINNEST = 1.4;
const WIDEST = 9;

/** Width of an edge: the logarithm of its rate. 1/s is a hair, a million a second is a pipe. */
export function widthOf(perSecond) {
  return Math.min(WIDEST, THINNEST + Math.log10(1 + Math.max(0, perSecond ?? 0)) * 1.3);
}

/** `part`: what of it is seen, {x, y, width, height}, or null for all; `events`: listeners of the whole; `lit`: ids of the chain that is followed, in order; `culprits`: ids of those who hold others up; `focusable`: the one node that Tab comes to. */
export function drawn(layout, { part, events, picked, lit, culprits, focusable, onpick, onkey, onfocus }) {
  const chain = new Set(lit);
  const onChain = (edge) => chain.has(edge.from) && chain.has(edge.to);
  return h(
    "svg",
    {
      class: ["canvas", chain.size > 1 && "has-chain", part && "zoomed"],
      viewBox: part ? [part.x, part.y, part.width, part.height].map((value) => value.toFixed(1)).join(" ") : `0 0 ${layout.width} ${Math.max(60, layout.height)}`,
      width: layout.width,
      height: part ? Math.round((part.height / part.width) * layout.width) : Math.max(60, layout.height),
      role: "group",
      "aria-label": "Flow map. Arrow keys go from node to node, Enter opens one and then follows what it waits for, Escape closes. Plus and minus zoom, 0 ends that, Shift with an arrow key moves the window.",
      ...events,
    },
    layout.titles.map((title) => h("text", { key: title.text, class: "column-title", x: title.x, y: title.y, "aria-hidden": "true" }, title.text)),
    h(
      "g",
      { class: "edges", "aria-hidden": "true" },
      // Waits are drawn last, on top.
      [...layout.edges].sort((a, b) => (a.edge.kind !== "flow") - (b.edge.kind !== "flow")).map((entry) => edgeOf(entry, layout, onChain(entry.edge))),
    ),
    h("g", { class: "ages", "aria-hidden": "true" }, layout.edges.filter((entry) => entry.edge.kind !== "flow").map((entry) => ageOf(entry, onChain(entry.edge)))),
    h("g", { class: "nodes" }, [...layout.nodes.values()].map((place) => nodeOf(place, { picked, chain, culprits, focusable, onpick, onkey, onfocus }))),
  );
}

const keyOf = (edge) => `${edge.kind} ${edge.from} ${edge.to}`;

function edgeOf({ edge, path, head }, layout, lit) {
  const key = keyOf(edge);
  const flow = edge.kind === "flow";
  // A flow looks like what happens at its end: who sends into a full queue does not flow freely.
  const state = known(edge.state ?? layout.nodes.get(edge.to)?.node.state);
  const idle = flow && !(edge.rate_per_second > 0);
  return h(
    "g",
    { key },
    h(
      "path",
      {
        class: ["edge", edge.kind, idle && "idle", flow && state !== "blocked" && `is-${state}`, lit && "on-chain"],
        d: path,
        "stroke-width": flow ? widthOf(edge.rate_per_second).toFixed(1) : null,
      },
      h("title", {}, edge.words || (flow ? format.rate(edge.rate_per_second) : `waits for ${format.age(edge.age_seconds)}`)),
    ),
    head && h("path", { class: ["head", "edge-head", edge.kind, lit && "on-chain"], d: "M0 0-9-5-9 5Z", transform: `translate(${head.x.toFixed(1)} ${head.y.toFixed(1)}) rotate(${head.angle.toFixed(0)})` }),
  );
}

function ageOf({ edge, label }, lit) {
  const said = format.age(edge.age_seconds);
  const wide = said.length * 6.6 + 10;
  return h(
    "g",
    { key: keyOf(edge), class: ["edge-age", edge.kind, lit && "on-chain"], transform: `translate(${label[0].toFixed(1)} ${label[1].toFixed(1)})` },
    h("rect", { x: -wide / 2, y: -9, width: wide, height: 18, rx: 9 }),
    h("text", { y: 4 }, said),
  );
}

function nodeOf(place, { picked, chain, culprits, focusable, onpick, onkey, onfocus }) {
  const { node, width, height } = place;
  const state = known(node.state);
  const rate = node.rate_per_second > 0 ? format.rate(node.rate_per_second) : "";
  const fullest = (node.limiters ?? []).reduce((most, limiter) => Math.max(most, limiter.share ?? 0), 0);
  const since = state !== "open" && node.age_seconds ? ` ${format.age(node.age_seconds)}` : "";
  const said = facts(node);
  return h(
    "g",
    {
      key: node.id,
      class: ["node", `kind-${node.kind}`, `is-${state}`, picked === node.id && "is-picked", chain.has(node.id) && "on-chain", culprits.has(node.id) && "is-culprit"],
      transform: `translate(${place.x.toFixed(1)} ${place.y})`,
      role: "button",
      tabindex: focusable === node.id ? 0 : -1,
      "aria-label": `${called(node)}: ${state}${since}${rate && `, ${rate}`}${said && `, ${said}`}`,
      "aria-pressed": picked === node.id ? "true" : "false",
      "data-id": node.id,
      onclick: () => onpick(node.id),
      onkeydown: (event) => onkey(event, node.id),
      onfocus: () => onfocus(node.id),
    },
    h("title", {}, `${node.title}\n${node.words || said}`),
    h("rect", { class: "box", width, height, rx: 6 }),
    h("rect", { class: "edge-mark", width: 4, height: height - 12, y: 6, x: 0, rx: 1 }),
    mark(state, { x: 13, y: 10 }),
    h("text", { class: "title", x: 32, y: 21 }, fitted(node.label || node.name, width - 42 - (rate ? rate.length * 6.4 + 8 : 0), 7)),
    rate && h("text", { class: "rate", x: width - 10, y: 20 }, rate),
    h("text", { class: "facts", x: 13, y: 38 }, fitted(state === "open" ? said : `${state}${since}${said && ` · ${said}`}`, width - 22, 6.1, true)),
    h("rect", { class: "rail", x: 13, y: height - 6, width: width - 24, height: 3, rx: 1.5 }),
    fullest > 0 && h("rect", { class: "held", x: 13, y: height - 6, width: (Math.min(1, fullest) * (width - 24)).toFixed(1), height: 3, rx: 1.5 }),
  );
}

/** As much of a text as has room. `unit`: pixels of a usual letter; long names keep both ends, sentences the first. */
function fitted(text, pixels, unit, sentence = false) {
  const most = Math.max(4, Math.floor(pixels / unit));
  if (text.length <= most) return text;
  return sentence ? `${text.slice(0, most - 1)}…` : format.middle(text, most);
}
