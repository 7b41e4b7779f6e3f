// What is known of one node of the flow map: the chain of what it waits for in words, step by step, to the root
// cause and its remedy; then how full it is, and where to go from here.

import { gauge, usedOf } from "./charts.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { icon, stateOf } from "./glyphs.js";
import { called } from "./map_names.js";
import { to } from "./router.js";
import { remedies } from "./standings.js";

export function panel({ context, node, chain, nameOf, onclose, onstep }) {
  return h(
    "aside",
    { class: ["card", "panel"], "aria-label": "The picked node", onkeydown: (event) => event.key === "Escape" && (event.stopPropagation(), onclose()) },
    h(
      "header",
      {},
      h("div", {}, h("h2", {}, node ? called(node) : "No longer there"), node && h("p", { class: "small" }, stateOf(node.state), node.rate_per_second > 0 ? ` · ${format.rate(node.rate_per_second)}` : "")),
      h("button", { class: ["button", "plain", "tiny"], type: "button", "aria-label": "Close", onclick: onclose }, icon("close")),
    ),
    h("div", { class: "body" }, chain ? chained(context, chain, nameOf, onstep) : h("p", { class: "muted" }, "Looking …"), node && held(node), node && ways(node)),
  );
}

function chained(context, chain, nameOf, onstep) {
  if (chain.gone) return h("p", {}, "It has gone since the map was drawn.");
  const steps = chain.steps ?? [];
  const waits = steps.length > 1;
  return h(
    "div",
    { class: "section" },
    h("h3", {}, chain.cycle ? "Waits in a ring: this never resolves by itself" : waits ? "Why is it blocked?" : "Not blocked"),
    waits
      ? h("ol", { class: "chain" }, steps.map((step, at) => stepOf(step, at, steps.length, chain.cycle, nameOf, onstep)))
      : h("p", { class: "muted" }, steps[0]?.words || chain.words),
    chain.remedy && h("p", { class: "remedy" }, h("b", {}, "What to do"), chain.remedy),
    chain.cause && (waits || chain.remedy) && remedies(context, chain.cause, { open: waits }),
  );
}

function stepOf(step, at, length, cycle, nameOf, onstep) {
  const last = at === length - 1;
  const culprit = last && !cycle;
  return h(
    "li",
    { key: `${at} ${step.id}`, class: culprit ? "culprit" : "" },
    h("button", { class: "step", type: "button", title: step.title, onclick: () => onstep(step.id) }, nameOf(step)),
    h(
      "p",
      {},
      at > 0 && step.age_seconds > 0 && h("b", { class: "bad-text" }, `blocking for ${format.age(step.age_seconds)}`),
      at > 0 && step.age_seconds > 0 && step.words ? ` – ${step.words}` : step.words,
    ),
    culprit && h("span", { class: ["tag", "is-blocked"] }, "root cause"),
  );
}

function held(node) {
  // A connection has several, most of them empty.
  const used = (node.limiters ?? []).filter((limiter) => limiter.used > 0);
  const limiters = used.length ? used : (node.limiters ?? []).slice(0, 1);
  return h(
    "div",
    { class: "section" },
    h("h3", {}, "How full it is"),
    limiters.length
      ? limiters.map((limiter, at) => gauge(`${limiter.label}`, usedOf(limiter), limiter.share, limiter.throttled))
      : h("p", { class: "muted" }, "It has no limits of its own."),
    node.facts_words && h("p", { class: ["small", "muted"] }, node.facts_words),
  );
}

function ways(node) {
  const links = {
    destination: node.name.startsWith("/log/")
      ? [[to("log", { name: node.name }), "Open the log"]]
      : [[to("destination", { name: node.name }), "Open the destination"], [to("messages", { name: node.name }), "Browse its messages"]],
    connection: [[to("connections", { q: node.name }), "Open the connection"]],
    subscription: [[to("consumers", { q: node.name }), "Open the subscription"], [to("connections", { q: node.name.split(" of ").at(-1) }), "Open its connection"]],
    store: [[to("store"), "Open the store"]],
    disk: [[to("store"), "Open the store"]],
  }[node.kind];
  return links && h("div", { class: "row" }, links.map(([href, words]) => h("a", { class: ["button", "tiny"], href }, words)));
}
