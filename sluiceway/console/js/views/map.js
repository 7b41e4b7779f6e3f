// The flow map alone, with as many nodes as are wanted.

import { h } from "../dom.js";
import { MapView } from "../map_view.js";

export function map(context) {
  const view = new MapView(context, Number(context.query.limit) || 60);
  if (context.query.node) view.picked = context.query.node;
  const choose = (limit) => {
    view.limit = limit;
    context.adjust({ limit });
    context.redraw();
    context.soon();
  };
  return {
    title: "Flow map",
    load: () => view.load(),
    key: (event) => view.pageKey(event),
    close: () => view.close(),
    draw: () => [
      h(
        "div",
        { class: "row" },
        h("span", { class: "muted" }, "Nodes that wait or block are always shown, then the busiest."),
        h(
          "span",
          { class: ["choice", "end"], role: "group", "aria-label": "How many nodes" },
          [30, 60, 150].map((limit) => h("button", { type: "button", "aria-pressed": view.limit === limit ? "true" : "false", onclick: () => choose(limit) }, `${limit}`)),
        ),
      ),
      view.draw(),
    ],
  };
}
