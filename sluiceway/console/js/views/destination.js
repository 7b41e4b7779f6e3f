// One queue or topic: numbers, who consumes it, the policy in force.

import { ask, ApiError } from "../api.js";
import { gauge, spanChoice, timeChart } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { icon, stateOf } from "../glyphs.js";
import { loadHour, note, points } from "../history.js";
import { to } from "../router.js";
import { remedies, standing, STATE, TROUBLES } from "../standings.js";
import { table } from "../tables.js";
import { buttons, forecast, limitsTag } from "./destinations.js";

export function destination(context) {
  const name = context.query.name ?? "";
  let found = null;
  let chain = null;
  return {
    title: name || "Destination",
    load: async () => {
      found = await ask("/destination", { name });
      chain = CHAINED.has(found.state) && context.may().admin !== false ? await chainOf(found.id) : null;
      await loadHour(name);
      const at = performance.now() / 1000;
      note(`in ${name}`, found.in_per_second, at);
      note(`out ${name}`, found.out_per_second, at);
      note(`depth ${name}`, found.depth_count, at);
    },
    draw: () => found && [head(context, found), trouble(context, found, chain), numbers(found), h("div", { class: "grid-2" }, flow(context, found), depth(found), fullness(found)), consumers(found), policy(found)],
  };
}

const CHAINED = new Set(["blocking", "stalled"]);

/** Nothing once the node has gone. */
async function chainOf(id) {
  try {
    return await ask("/chains", { id });
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** That it blocks, whom, since when, because of whom, and what can be done there. */
function trouble(context, found, chain) {
  if (!TROUBLES.has(found.state) && !(found.paused && found.state_seconds)) return null;
  const severe = found.state === "blocking";
  const steps = chain && chain.steps.length > 1 ? chain.steps : [];
  const cause = chain?.cause ?? found.cause;
  return h(
    "section",
    { class: ["card", "verdict", "trouble"], "aria-label": "What is wrong" },
    h(
      "div",
      { class: ["line", "first", severe ? "blocked" : "throttled"] },
      h("span", { class: severe ? "bad-text" : "warn-text" }, icon("alarm")),
      h("p", { class: "said" }, standing(found), " ", found.state_words),
      steps.length > 0 && h("ol", { class: ["facts", "because"] }, steps.slice(1).map((step) => h("li", { key: step.id }, h("b", {}, step.title), step.words && ` – ${step.words}`))),
      chain?.remedy && h("p", { class: "advice" }, h("b", {}, "What to do: "), chain.remedy),
      h("p", { class: "advice" }, remedies(context, cause, { open: cause?.id !== found.id }), severe && context.may().admin !== false && h("a", { class: ["button", "tiny"], href: to("connections", { sort: "-state" }) }, "Who waits")),
    ),
  );
}

function head(context, found) {
  return h(
    "div",
    { class: "row" },
    h("a", { class: "crumbs", href: to("destinations") }, "← All destinations"),
    found.paused ? stateOf("paused") : null,
    limitsTag(found),
    h("span", { class: "tag" }, found.kind),
    h("span", { class: ["row", "end"] }, h("a", { class: ["button", "tiny"], href: to("messages", { name: found.name }) }, "Browse messages"), buttons(context, found, { publishing: true })),
  );
}

function numbers(found) {
  const tile = (label, value, sub = "") => h("div", { class: "tile", key: label }, h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "sub" }, sub));
  return h(
    "section",
    { class: "tiles", "aria-label": "Numbers" },
    tile("Messages", format.count(found.depth_count), format.size(found.depth_bytes)),
    tile("Unacknowledged", format.count(found.unsettled_count), `at ${format.things(found.subscriptions_count, "consumer")}`),
    tile("Age of the oldest", format.age(found.oldest_seconds)),
    tile("Drained in", forecast(found.drain_seconds, found.depth_count > 0), "at the rate of now"),
    tile("Full in", forecast(found.quota_seconds), "at the rate of now"),
    tile("Dead-lettered", format.count(found.dead_lettered_count), `${format.count(found.expired_count)} expired, ${format.count(found.dropped_count)} dropped`),
  );
}

function depth(found) {
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Messages in it")),
    h("div", { class: "body" }, timeChart("Messages in it", [{ name: "messages", points: points(`depth ${found.name}`) }], { say: format.shortCount })),
  );
}

function flow(context, found) {
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "In and out"), h("span", { class: "end" }, spanChoice(context))),
    h("div", { class: "body" }, timeChart("In and out", [{ name: "in", points: points(`in ${found.name}`) }, { name: "out", points: points(`out ${found.name}`) }])),
  );
}

function fullness(found) {
  const memoryMax = found.policy?.memory_bytes;
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Where it is")),
    h(
      "div",
      { class: ["body", "section"] },
      gauge("Memory", `${format.size(found.memory_bytes)}${memoryMax ? ` of ${format.size(memoryMax)}` : ""}`, memoryMax ? found.memory_bytes / memoryMax : 0, false),
      found.bytes_max ? gauge("Quota", `${format.size(found.depth_bytes)} of ${format.size(found.bytes_max)}`, found.depth_bytes / found.bytes_max) : null,
      found.count_max ? gauge("Quota", `${format.count(found.depth_count)} of ${format.things(found.count_max, "message")}`, found.depth_count / found.count_max) : null,
      h(
        "dl",
        { class: "pairs" },
        pair("Limits", Object.keys(found.changed_limits).length ? format.changedLimits(found.changed_limits) : null),
        pair("Paged out", format.things(found.outside_count, "message")),
        pair("Delayed", format.count(found.delayed_count)),
        pair("Taken in since the start", format.count(found.added_count)),
        pair("Settled", format.count(found.settled_count)),
        pair("Returned", format.count(found.returned_count)),
        pair("Producers", format.count(found.producers_count)),
        pair("Partitions", found.partitions.length > 1 ? found.partitions.map((part) => part.name).join(", ") : null),
      ),
    ),
  );
}

export const pair = (term, words) => (words === null || words === undefined ? null : [h("dt", {}, term), h("dd", {}, words)]);

function consumers(found) {
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Consumers")),
    h("div", { class: ["body", "flush"] }, table({ columns: CONSUMERS, rows: found.subscriptions, idOf: (row) => row.id, empty: "It has no consumers.", caption: "Consumers" })),
  );
}

const CONSUMERS = [
  { name: "Subscription", lead: true, cell: (row) => h("span", { class: "name" }, row.name) },
  { ...STATE, key: undefined },
  { name: "Out", num: true, cell: (row) => format.rate(row.rate_per_second) },
  { name: "Delivered", num: true, cell: (row) => format.count(row.delivered_count) },
  { name: "Unacked", num: true, cell: (row) => format.count(row.unsettled_count) },
];

function policy(found) {
  const values = found.policy ?? {};
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Policy in force"), h("a", { class: "hint", href: to("config", { q: "destinations" }) }, "where it comes from")),
    h("div", { class: "body" }, h("dl", { class: ["pairs", "mono"] }, Object.entries(values).map(([key, value]) => pair(key, said(key, value))))),
  );
}

/** A value of the configuration as text. */
export function said(key, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "number" && /_bytes_per_second$/.test(key)) return `${format.size(value)}/s`;
  if (typeof value === "number" && /_bytes(_max)?$/.test(key)) return `${format.size(value)}`;
  if (typeof value === "number" && /_seconds(_max)?$/.test(key)) return format.age(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
