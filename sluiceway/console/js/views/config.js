// The configuration in force: what is set, what differs from the default, and what can change while the broker runs.

import { drain, reload } from "../actions.js";
import { ask } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { table } from "../tables.js";

export function config(context) {
  let found = null;
  let q = context.query.q ?? "";
  let changedOnly = false;
  const columns = [
    { name: "Key", lead: true, cell: (row) => h("code", { title: row.doc }, row.key) },
    { name: "Value", class: "long", cell: (row) => h(row.changed ? "b" : "span", {}, valued(row, row.value)) },
    { name: "Default", class: "long", cell: (row) => h("span", { class: "muted" }, row.changed ? valued(row, row.default) : "") },
    { name: "Changes", cell: (row) => (row.live ? h("span", { class: ["tag", "good"] }, "while it runs") : h("span", { class: "tag" }, "with a restart")) },
  ];
  return {
    title: "Configuration",
    load: async () => {
      found = await ask("/config");
    },
    draw: () => {
      if (!found) return null;
      const rows = found.values.filter((row) => (!changedOnly || row.changed) && row.key.toLowerCase().includes(q.toLowerCase()));
      const name = context.overview().broker.name;
      return [
        context.may().admin !== false &&
          h(
            "section",
            { class: "card" },
            h(
              "header",
              {},
              h("h2", {}, "This broker"),
              h("span", { class: "hint" }, found.file ? `configured by ${found.file}` : "runs without a configuration file"),
              h("span", { class: "end" }, h("button", { class: ["button", "tiny"], type: "button", onclick: () => reload(context) }, "Reload the file"), drains(context, name)),
            ),
          ),
        h(
          "section",
          { class: "card" },
          h(
            "header",
            {},
            h("input", { class: "search", type: "search", value: q, placeholder: "Search by key", "aria-label": "Search by key", oninput: (event) => { q = event.target.value; context.redraw(); } }),
            h("label", { class: "row" }, h("input", { type: "checkbox", checked: changedOnly, onchange: (event) => { changedOnly = event.target.checked; context.redraw(); } }), "Only what differs from the default"),
            h("span", { class: "hint" }, format.things(rows.length, "value")),
          ),
          h("div", { class: ["body", "flush"] }, table({ columns, rows, idOf: (row) => row.key, caption: "Configuration in force", empty: "No such key." })),
        ),
      ];
    },
  };
}

/** In the unit that its key has; empty and null are «–». */
function valued(row, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "number" && row.unit === "bytes") return format.size(value);
  if (typeof value === "number" && row.unit === "seconds") return format.age(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A button for each process to be drained. */
function drains(context, name) {
  const button = (words, hub) => [" ", h("button", { class: ["button", "tiny", "danger"], type: "button", onclick: () => drain(context, name, hub) }, words)];
  const hubs = context.overview().hubs;
  return hubs ? hubs.map((hub) => button(`Drain ${hub.name}`, hub.name)) : button("Drain for shutdown", null);
}
