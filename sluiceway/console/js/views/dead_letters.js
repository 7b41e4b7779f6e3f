// What was given up: from where, why, and back again.

import { ask } from "../api.js";
import { bars } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { move, retry } from "../actions.js";
import { to } from "../router.js";
import { reasonOf } from "./messages.js";

export function deadLetters(context) {
  let queues = [];
  return {
    title: "Dead letters",
    load: async () => {
      queues = (await ask("/dead-letters")).items;
    },
    draw: () =>
      queues.some((queue) => queue.depth_count)
        ? queues.filter((queue) => queue.depth_count).map((queue) => cardOf(context, queue))
        : h("section", { class: "card" }, h("p", { class: "empty" }, h("b", {}, "There are no dead letters."), h("br"), "Messages that are rejected too often, or expire, come here.")),
  };
}

function cardOf(context, queue) {
  const total = queue.depth_count;
  return h(
    "section",
    { class: "card", key: queue.name },
    h(
      "header",
      {},
      h("h2", {}, h("a", { href: to("messages", { name: queue.name, letters: 1 }) }, queue.name)),
      h("span", { class: "hint" }, format.things(total, "dead letter"), queue.counted_count < total ? `; why and from where of the first ${format.count(queue.counted_count)}` : ""),
      h(
        "span",
        { class: "end" },
        h("a", { class: ["button", "tiny"], href: to("messages", { name: queue.name, letters: 1 }) }, "Browse"),
        queue.may_admin && [
          h("button", { class: ["button", "tiny"], type: "button", disabled: !total, "aria-label": `Move all of ${queue.name}`, onclick: () => move(context, queue.name, null, total) }, "Move all"),
          h("button", { class: ["button", "tiny", "main"], type: "button", disabled: !total, "aria-label": `Retry all of ${queue.name}`, onclick: () => retry(context, queue.name, null, total) }, "Retry all"),
        ],
      ),
    ),
    h(
      "div",
      { class: ["body", "grid-2"] },
      h("div", { class: "section" }, h("h3", {}, "Why"), bars(countsOf(queue.reasons.map((entry) => ({ ...entry, reason: entry.reason && reasonOf({ "dead-letter-reason": entry.reason }) })), "reason"))),
      h("div", { class: "section" }, h("h3", {}, "From where"), bars(countsOf(queue.origins, "origin"))),
    ),
  );
}

/** [{reason | origin, count}] as {name: count}. */
function countsOf(entries, name) {
  return Object.fromEntries(entries.map((entry) => [entry[name] || "not said", entry.count]));
}
