// Where is my message: what happened to it, as a line of time.

import { ask } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { to } from "../router.js";

const WORDS = {
  accepted: "Accepted", parked: "Waited before a full destination", stored: "Written to the store", paged_out: "Left memory for the disk",
  paged_in: "Came back from the disk", sent: "Sent to a consumer", acked: "Acknowledged", nacked: "Refused by a consumer", returned: "Requeued",
  expired: "Expired", dropped: "Dropped by policy", dead_lettered: "Dead-lettered", moved: "Moved", consumed: "Consumed",
};
const LOOKS = { acked: "end", consumed: "end", nacked: "bad", expired: "bad", dropped: "bad", dead_lettered: "bad", stored: "disk", paged_out: "disk", paged_in: "disk" };

export function trail(context) {
  let by = context.query.correlation_id ? "correlation_id" : "message_id";
  let wanted = context.query[by] ?? "";
  let asked = wanted;
  let askedBy = by;
  let found = null;
  const submit = (event) => {
    event.preventDefault();
    asked = wanted.trim();
    askedBy = by;
    found = null;
    context.adjust({ message_id: undefined, correlation_id: undefined, [by]: asked });
    context.redraw();
    context.soon();
  };
  const chooser = (name, words) => h("button", { type: "button", "aria-pressed": by === name ? "true" : "false", onclick: () => { by = name; context.redraw(); } }, words);
  return {
    title: "Find a message",
    load: async () => {
      if (!asked) return;
      const wanted_now = asked;
      const items = (await ask("/trails", { [askedBy]: asked })).items;
      if (wanted_now === asked) found = items;
    },
    draw: () => [
      h(
        "section",
        { class: "card" },
        h(
          "form",
          { onsubmit: submit },
          h(
            "header",
            { class: "row" },
            h("span", { class: "choice", role: "group", "aria-label": "By what" }, chooser("message_id", "message-id"), chooser("correlation_id", "correlation-id")),
            h("input", { class: "search", type: "search", value: wanted, "aria-label": "Id of the message", placeholder: "Its id", oninput: (event) => { wanted = event.target.value; } }),
            h("button", { class: ["button", "main"], type: "submit" }, "Find"),
          ),
        ),
        !asked && h("p", { class: "empty" }, "The broker keeps a short trail of the latest messages: when they came, to whom they went, and what became of them."),
      ),
      asked && found && (found.length ? found.map(trailOf) : h("section", { class: "card" }, h("p", { class: "empty" }, h("b", {}, "No trail of such a message."), h("br"), "It never came here, or so long ago that its trail has made room for others.", askedBy === "correlation_id" && [h("br"), "Messages on the disk that an earlier run of the broker left are found by their message-id only."]))),
    ],
  };
}

/** Trails are kept newest last. */
function trailOf(found) {
  const begin = found.entries[0]?.at_ms;
  return h(
    "section",
    { class: "card", key: found.message_id },
    h(
      "header",
      {},
      h("h2", { class: "mono" }, found.message_id),
      found.destination && h("a", { class: "hint", href: to("destination", { name: found.destination }) }, found.destination),
      found.correlation_id && h("span", { class: "hint" }, `correlation-id ${found.correlation_id}`),
    ),
    h(
      "div",
      { class: "body" },
      found.words && h("p", {}, h("b", {}, found.words)),
      !found.complete && h("p", { class: "muted" }, "Not all of it was kept: the beginning or the middle may be missing."),
      h(
        "ol",
        { class: "timeline" },
        found.entries.map((entry, at) =>
          h(
            "li",
            { key: `${at} ${entry.at_ms}` },
            h("span", { class: "when", title: format.day(entry.at_ms) }, at ? `+ ${format.age((entry.at_ms - begin) / 1000)}` : format.clock(entry.at_ms)),
            h("span", { class: "dot", "aria-hidden": "true" }, h("i", { class: LOOKS[entry.what] ?? "" }), h("u")),
            h("div", { class: "what" }, h("b", {}, WORDS[entry.what] ?? entry.what), entry.where && h("span", {}, ` ${entry.where}`, entry.hub && ` on ${entry.hub}`), entry.detail && h("p", { class: "muted" }, entry.detail)),
          ),
        ),
      ),
    ),
  );
}
