// Small drawings. States have a shape each, so that nobody needs colours to tell them apart.

import { h } from "./dom.js";

const MARKS = {
  open: () => [h("circle", { cx: 6, cy: 6, r: 4.2, fill: "none", stroke: "currentColor", "stroke-width": 2.2 })],
  throttled: () => [h("path", { d: "M6 1 11.500 11H.500Z", fill: "currentColor" })],
  blocked: () => [
    h("rect", { x: 0.5, y: 0.5, width: 11, height: 11, rx: 2, fill: "currentColor" }),
    h("path", { d: "M3 6h6", class: "bar-in-mark", "stroke-width": 2.2 }),
  ],
  busy: () => [h("circle", { cx: 6, cy: 6, r: 5, fill: "currentColor" })],
  idle: () => [h("path", { d: "M2.500 6h7", stroke: "currentColor", "stroke-width": 2.2 })],
  paused: () => [
    h("rect", { x: 1.5, y: 1, width: 3.4, height: 10, fill: "currentColor" }),
    h("rect", { x: 7.1, y: 1, width: 3.4, height: 10, fill: "currentColor" }),
  ],
};

export const STATES = ["open", "throttled", "blocked", "paused"];

export function known(state) {
  return state in MARKS ? state : "open";
}

/** The mark of a state alone; inside an SVG give its place. */
export function mark(state, place) {
  return h("svg", { class: "mark", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true", ...place }, MARKS[known(state)]());
}

/** Mark and word. */
export function stateOf(state) {
  return h("span", { class: ["state", `is-${known(state)}`] }, mark(state), state);
}

const LINES = {
  overview: "M3 13h5V3H3zM12 17h5V7h-5zM3 17h5M12 3h5",
  map: "M5 5h.01M5 15h.01M15 10h.01M6 6l7 3.500M6 14l7-3.500M3 5a2 2 0 1 0 4 0 2 2 0 1 0-4 0M3 15a2 2 0 1 0 4 0 2 2 0 1 0-4 0M13 10a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  hubs: "M3 3h5v5H3zM12 3h5v5h-5zM7.500 12h5v5h-5zM8 5.500h4M6 8l3 4M14 8l-3 4",
  destinations: "M3 5h14M3 10h14M3 15h9",
  consumers: "M10 3v9M6 8.500l4 4 4-4M3 17h14",
  connections: "M7 6H5a4 4 0 0 0 0 8h2M13 6h2a4 4 0 0 1 0 8h-2M7 10h6",
  deadletters: "M3 5h14v10H3zM3 6l7 5 7-5",
  logs: "M3 4h14M3 8h14M3 12h14M3 16h8",
  store: "M4 5c0-3 12-3 12 0v10c0 3-12 3-12 0zM4 5c0 3 12 3 12 0M4 10c0 3 12 3 12 0",
  trail: "M9 3a6 6 0 1 0 0 12A6 6 0 0 0 9 3zM13.500 13.500 18 18",
  config: "M3 6h8M15 6h2M11 6a2 2 0 1 0 4 0 2 2 0 1 0-4 0M3 14h2M9 14h8M5 14a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  menu: "M3 6h14M3 10h14M3 14h14",
  close: "M5 5l10 10M15 5L5 15",
  fine: "M3 10.500l4.500 4.500L17 5.500",
  alarm: "M10 2.500 18.500 17h-17zM10 8v4.500M10 14.800v.1",
};

export function icon(name) {
  return h(
    "svg",
    { viewBox: "0 0 20 20", "aria-hidden": "true" },
    h("path", {
      d: LINES[name], fill: "none", stroke: "currentColor", "stroke-width": 1.7, "stroke-linecap": "round", "stroke-linejoin": "round",
    }),
  );
}

export function brandMark() {
  return h(
    "svg",
    { viewBox: "0 0 32 32", "aria-hidden": "true" },
    h("rect", { width: 32, height: 32, rx: 7, fill: "#0b5d7a" }),
    h("path", { d: "M6 8v18M26 8v18", stroke: "#cfe6ee", "stroke-width": 2.5, "stroke-linecap": "round" }),
    h("rect", { x: 9, y: 6, width: 14, height: 9, rx: 1, fill: "#fff" }),
    h("path", {
      d: "M9 20c2.300-2 4.700-2 7 0s4.700 2 7 0M9 25c2.300-2 4.700-2 7 0s4.700 2 7 0", fill: "none", stroke: "#7fd0e8", "stroke-width": 2.3, "stroke-linecap": "round",
    }),
  );
}
