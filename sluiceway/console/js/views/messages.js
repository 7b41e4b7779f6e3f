// Looking into a queue without taking anything: a page of messages, and one of them with headers and body.

import { drop, move, publish, retry } from "../actions.js";
import { ask } from "../api.js";
import { bodyView } from "../body_view.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { to } from "../router.js";
import { table } from "../tables.js";

const LIMIT = 50;
const TOPIC = /^(\/@[\w-]+)?\/topic\//;
const NO_BODY = {};
const REASON = "dead-letter-reason";
const ORIGIN = "dead-letter-destination";
const TIME = "dead-letter-time";

const REASONS = {
  redeliveries: "rejected or requeued too often",
  rejected: "refused by a consumer",
  expired: "expired",
  full: "its queue was full",
};

/** Why a message was given up, as a sentence. */
export function reasonOf(headers) {
  const reason = headers[REASON];
  if (!reason) return "–";
  const count = headers["dead-letter-count"];
  return `${Object.hasOwn(REASONS, reason) ? REASONS[reason] : reason}${reason === "redeliveries" && count ? ` (${count} times)` : ""}`;
}

export function messages(context) {
  const name = context.query.name ?? "";
  const letters = Boolean(context.query.letters);
  const before = [];
  let from = "";
  let q = context.query.q ?? "";
  let found = null;
  /** Another page is asked for: until it is here the one that is shown does not turn. */
  let turning = false;
  let picked = context.query.message ?? null;
  let place = "";
  let message = null;
  let view = null;
  const chosen = new Set();

  const turn = (start) => {
    from = start;
    turning = true;
    chosen.clear();
    context.redraw();
    context.soon();
  };
  const open = (id, where = "") => {
    picked = id;
    place = where;
    message = null;
    view = null;
    context.adjust({ message: id });
    context.redraw();
    context.soon();
  };
  const columnsOf = () => [
    found.may_admin && !TOPIC.test(name) && {
      name: "", class: "check",
      cell: (row) => h("input", { type: "checkbox", checked: chosen.has(row.message_id), "aria-label": `Choose ${row.message_id}`, onchange: (event) => {
        if (event.target.checked) chosen.add(row.message_id);
        else chosen.delete(row.message_id);
        context.redraw();
      } }),
    },
    { name: "Message", lead: true, cell: (row) => h("button", { class: ["button", "plain", "tiny", "mono"], type: "button", onclick: () => open(row.message_id, row.place) }, row.message_id) },
    letters && { name: "Why", cell: (row) => reasonOf(row.headers) },
    letters && { name: "Since", cell: (row) => format.day(format.number(row.headers[TIME])) },
    letters && { name: "From", cell: (row) => row.headers[ORIGIN] ?? "–" },
    !letters && { name: "State", cell: (row) => h("span", { class: "tag" }, row.state, row.redelivered && ", redelivered") },
    { name: "Size", num: true, cell: (row) => format.size(row.size_bytes) },
    { name: "Age", num: true, cell: (row) => format.age(row.age_seconds) },
    { name: "Begins with", cell: (row) => h("span", { class: ["clip", "mono"], title: row.preview }, row.preview) },
  ].filter(Boolean);

  return {
    title: letters ? "Dead letters" : "Messages",
    load: async () => {
      // What is wanted may have changed when the answer comes: it is not taken then, for another question follows.
      const wanted = { from, q, picked };
      const page = await ask("/messages", { name, from, limit: LIMIT, q });
      if (wanted.from === from && wanted.q === q) {
        found = page;
        turning = false;
      }
      if (picked && !message && wanted.picked === picked) {
        const one = await oneOf(name, picked, place);
        if (wanted.picked === picked) message = one;
      }
    },
    key: (event) => event.key === "Escape" && picked && open(null),
    draw: () => {
      if (!found) return null;
      const columns = columnsOf();
      return [
        h(
          "div",
          { class: "row" },
          h("a", { class: "crumbs", href: letters ? to("dead-letters") : to("destination", { name }) }, letters ? "← All dead letters" : "← Back to the destination"),
          h("b", {}, name),
          h("span", { class: "muted" }, "Browsing does not consume."),
          h("span", { class: ["row", "end"] },
            h("input", { class: "search", type: "search", value: q, placeholder: "Search in headers and bodies", "aria-label": "Search in headers and bodies", oninput: (event) => { q = event.target.value; before.length = 0; context.adjust({ q }); turn(""); } }),
            !letters && found.may_admin && h("button", { class: ["button", "tiny"], type: "button", onclick: () => publish(context, name) }, "Publish"),
          ),
        ),
        h(
          "div",
          { class: picked ? "split" : "" },
          h(
            "section",
            { class: "card" },
            chosen.size > 0 && h(
              "header",
              {},
              `${format.things(chosen.size, letters ? "letter" : "message")} chosen`,
              h("span", { class: "end" },
                h("button", { class: ["button", "tiny", "danger"], type: "button", onclick: () => drop(context, name, [...chosen]) }, "Delete"),
                h("button", { class: ["button", "tiny"], type: "button", onclick: () => move(context, name, [...chosen]) }, "Move"),
                letters && h("button", { class: ["button", "tiny", "main"], type: "button", onclick: () => retry(context, name, [...chosen]) }, "Retry"),
              ),
            ),
            h("div", { class: ["body", "flush"] }, table({ columns: picked ? columns.filter((column) => column.name !== "Begins with") : columns, rows: found.items, idOf: (row) => row.message_id, picked: picked ?? undefined, caption: `Messages of ${name}`, empty: q ? `None of ${format.things(found.looked_count, "message")} has «${q}» in it.` : from ? "No messages from here on." : "It is empty." })),
            (from || found.next) &&
              h(
                "nav",
                { class: "pager", "aria-label": "Pages" },
                `${format.things(found.items.length, "message")} from number ${format.count(before.reduce((sum, page) => sum + page.length, 0) + 1)}`,
                h(
                  "span",
                  { class: "end" },
                  h("button", { class: ["button", "tiny"], type: "button", disabled: turning || !before.length, onclick: () => turn(before.pop().start) }, "Back"),
                  h("button", { class: ["button", "tiny"], type: "button", disabled: turning || !found.next, onclick: () => (before.push({ start: from, length: found.items.length }), turn(found.next)) }, "Next"),
                ),
              ),
          ),
          picked && detail(context, { name, picked, message, view, letters, may: found.may_admin && !TOPIC.test(name), onview: (wanted) => { view = wanted; context.redraw(); }, onclose: () => open(null) }),
        ),
      ];
    },
  };
}

async function oneOf(name, message_id, place) {
  try {
    return await ask("/message", { name, message_id, place });
  } catch (error) {
    if (error.status !== 404 && error.status !== 400) throw error;
    return { gone: true };
  }
}

function detail(context, { name, picked, message, view, letters, may, onview, onclose }) {
  return h(
    "section",
    { class: ["card", "detail"], "aria-label": "One message" },
    h(
      "header",
      {},
      h("h2", { class: "mono" }, picked),
      h(
        "span",
        { class: "end" },
        context.may().admin !== false && h("a", { class: ["button", "tiny"], href: to("trail", { message_id: picked }) }, "Where has it been?"),
        may && message && !message.gone && [
          h("button", { class: ["button", "tiny", "danger"], type: "button", onclick: () => drop(context, name, [picked]) }, "Delete"),
          h("button", { class: ["button", "tiny"], type: "button", onclick: () => move(context, name, [picked]) }, "Move"),
          letters && h("button", { class: ["button", "tiny", "main"], type: "button", onclick: () => retry(context, name, [picked]) }, "Retry"),
        ],
        h("button", { class: ["button", "tiny"], type: "button", onclick: onclose }, "Close"),
      ),
    ),
    !message && h("p", { class: "empty" }, "Looking …"),
    message?.gone && h("p", { class: "empty" }, "It is no longer there: it was consumed or moved."),
    message && !message.gone && h(
      "div",
      { class: "body" },
      message.headers?.[REASON] && h("p", {}, h("b", {}, "Dead letter: "), reasonOf(message.headers), `, from ${message.headers[ORIGIN] ?? "somewhere"}, ${format.day(format.number(message.headers[TIME]))}`),
      h(
        "div",
        { class: "section" },
        h("h3", {}, "Headers"),
        h("dl", { class: ["pairs", "mono"] }, Object.entries(message.headers ?? {}).map(([key, value]) => [h("dt", {}, key), h("dd", {}, String(value))])),
      ),
      bodyView(message.body ?? NO_BODY, view, onview),
    ),
  );
}
