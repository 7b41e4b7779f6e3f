// The state of a destination, a connection or a subscription, as the broker says it, and what can be done at its cause.

import { closeConnection, limit, pause, purge, resume } from "./actions.js";
import { h } from "./dom.js";
import { mark } from "./glyphs.js";
import { to } from "./router.js";

/** State → [colour, shape]: stuck and busy differ in both. */
const LOOKS = {
  blocking: ["blocked", "blocked"],
  blocked: ["blocked", "blocked"],
  stalled: ["throttled", "throttled"],
  degraded: ["throttled", "throttled"],
  unconsumed: ["throttled", "throttled"],
  paused: ["paused", "paused"],
  busy: ["open", "busy"],
  flowing: ["open", "open"],
  idle: ["idle", "idle"],
};

export const TROUBLES = new Set(["blocking", "blocked", "stalled", "degraded", "unconsumed"]);

/** Mark and word. */
export function standing(row) {
  const [colour, shape] = LOOKS[row.state] ?? LOOKS.idle;
  return h("span", { class: ["state", `is-${colour}`], title: row.state_words || null }, mark(shape), row.state);
}

/** The column «State» of a list: the word, the sentence, and a link to the cause. */
export const STATE = {
  name: "State", key: "state", num: false, first: "-state", class: "standing",
  cell: (row) => [
    standing(row),
    row.state_words && row.state_words !== row.state && h("span", { class: "why" }, row.cause ? h("a", { href: addressOf(row.cause) }, row.state_words) : row.state_words),
  ],
};

/** The page of a node of the flow map. */
export function addressOf(cause) {
  const pages = {
    destination: () => (cause.name.startsWith("/log/") ? to("log", { name: cause.name }) : to("destination", { name: cause.name })),
    connection: () => to("connections", { q: cause.peer ?? cause.name }),
    subscription: () => to("consumers", { q: cause.name }),
    store: () => to("store"),
    disk: () => to("store"),
  };
  return pages[cause.kind]?.() ?? to("map", { node: cause.id });
}

/** Buttons for what ends the wait, at whoever is the cause: never at its victims. */
export function remedies(context, cause, { open = true } = {}) {
  if (!cause || context.may().admin === false) return null;
  const button = (words, onclick, danger) => h("button", { class: ["button", "tiny", danger && "danger"], type: "button", onclick }, words);
  return h(
    "span",
    { class: ["row", "remedies"] },
    cause.session && button(`Close the connection of ${cause.client}`, () => closeConnection(context, { session: cause.session, peer: cause.peer, client_id: cause.client, unsettled_count: cause.unsettled_count }), true),
    cause.kind === "destination" && cause.paused && button(`Resume ${cause.name}`, () => resume(context, cause.name)),
    cause.kind === "destination" && !cause.paused && !cause.name.startsWith("/log/") && button(`Pause ${cause.name}`, () => pause(context, cause.name)),
    cause.kind === "destination" && !cause.name.startsWith("/log/") && button(`Change the limits of ${cause.name}`, () => limit(context, cause.name)),
    cause.kind === "destination" && /^(\/@[\w-]+)?\/queue\//.test(cause.name) && button(`Purge ${cause.name}`, () => purge(context, cause.name, null), true),
    open && h("a", { class: ["button", "tiny"], href: addressOf(cause) }, `Open ${cause.title}`),
  );
}
