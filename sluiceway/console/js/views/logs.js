// All logs, each as a line from its first record to its next, with its groups where they read.

import { ask } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { logLine } from "../log_line.js";
import { to } from "../router.js";

export function logs() {
  let found = [];
  return {
    title: "Logs",
    load: async () => {
      found = (await ask("/logs", { limit: 100 })).items;
    },
    draw: () =>
      found.length
        ? found.map((log) =>
            h(
              "section",
              { class: "card", key: log.log },
              h(
                "header",
                {},
                h("h2", {}, h("a", { href: to("log", { name: log.log }) }, log.log)),
                h("span", { class: "hint" }, `${format.things(log.size, "record")}, ${format.size(log.bytes)}, ${format.things(log.groups?.length ?? 0, "group")}${log.readers ? `, ${format.things(log.readers, "reader")}` : ""}`),
                log.failing && h("span", { class: ["tag", "is-blocked"] }, log.failing),
              ),
              h("div", { class: "body" }, logLine(log)),
            ),
          )
        : h("section", { class: "card" }, h("p", { class: "empty" }, "There are no logs. A log is made by the first SEND to /log/NAME.")),
  };
}
