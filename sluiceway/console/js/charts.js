// Small pictures of numbers: sparklines, lines and areas over time, gauges, bars.

import { h } from "./dom.js";
import * as format from "./format.js";
import { isHour, setHour, spanSeconds } from "./history.js";
import { isNarrow } from "./screen.js";

function path(points, x, y) {
  return points.map((point, at) => `${at ? "L" : "M"}${x(point).toFixed(1)} ${y(point).toFixed(1)}`).join("");
}

/** The last two minutes of one number, without axes. `label` is for those who can't see it. */
export function spark(points, { label, width = 84, height = 22, series = 1 } = {}) {
  const hour = isHour();
  const shown = hour ? points : points.slice(-60);
  const most = Math.max(1e-9, ...shown.map((point) => point.value));
  // A page that was just opened has seen some seconds only.
  const seconds = shown.length ? hour ? spanSeconds() : Math.min(60, Math.max(15, shown.at(-1).at - shown[0].at)) : 60;
  const x = (point) => width - ((shown.at(-1).at - point.at) / seconds) * width;
  const y = (point) => height - 2 - (point.value / most) * (height - 4);
  const line = shown.length > 1 ? path(shown, x, y) : "";
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label ?? "" },
    line && h("path", { class: `area series-${series}`, d: `${line}L${width} ${height}L${x(shown[0]).toFixed(1)} ${height}Z` }),
    line && h("path", { class: `line series-${series}`, d: line }),
    !line && h("path", { class: `line series-${series}`, d: `M0 ${height - 2}H${width}`, "stroke-dasharray": "2 4" }),
  );
}

const HIGH = 150;
const LEFT = 58;
const BOTTOM = 20;

/** A nice number at or above this one: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  for (const step of [1, 2, 5, 10]) if (value <= step * power) return step * power;
  return value;
}

/** Several numbers over two minutes or an hour. `lines`: [{name, points}]; `say`: how a value reads. */
export function timeChart(title, lines, { say = format.rate, seconds = spanSeconds() } = {}) {
  const wide = isNarrow() ? 320 : 560;
  const end = Math.max(0, ...lines.map((line) => line.points.at(-1)?.at ?? 0));
  const most = ceiling(Math.max(0, ...lines.flatMap((line) => line.points.map((point) => point.value))));
  const x = (point) => wide - ((end - point.at) / seconds) * (wide - LEFT);
  const y = (point) => HIGH - BOTTOM - (point.value / most) * (HIGH - BOTTOM - 8);
  return h(
    "figure",
    { class: "chart" },
    h(
      "svg",
      { viewBox: `0 0 ${wide} ${HIGH}`, role: "img", "aria-label": `${title}: ${lines.map((line) => `${line.name} ${say(line.points.at(-1)?.value ?? null)}`).join(", ")}` },
      [0, 0.5, 1].map((part) => [
        h("line", { class: "axis", x1: LEFT, x2: wide, y1: y({ value: most * part }), y2: y({ value: most * part }) }),
        h("text", { x: LEFT - 8, y: y({ value: most * part }) + 4, "text-anchor": "end" }, say(most * part)),
      ]),
      h("text", { x: LEFT, y: HIGH - 4 }, `${format.age(seconds)} ago`),
      h("text", { x: wide, y: HIGH - 4, "text-anchor": "end" }, "now"),
      lines.map((line, at) => {
        const shown = line.points.filter((point) => end - point.at <= seconds);
        if (shown.length < 2) return null;
        const drawn = path(shown, x, y);
        return [
          h("path", { class: `area series-${at + 1}`, d: `${drawn}L${x(shown.at(-1)).toFixed(1)} ${HIGH - BOTTOM}L${x(shown[0]).toFixed(1)} ${HIGH - BOTTOM}Z` }),
          h("path", { class: `line series-${at + 1}`, d: drawn }),
        ];
      }),
    ),
    h(
      "figcaption",
      { class: "legend" },
      lines.map((line, at) => h("span", {}, h("i", { class: `key series-${at + 1}` }), line.name, h("b", {}, say(line.points.at(-1)?.value ?? null)))),
    ),
  );
}

/** The choice between the last two minutes and the last hour, for all charts. */
export function spanChoice(context) {
  const button = (words, hour) =>
    h("button", { type: "button", "aria-pressed": isHour() === hour ? "true" : "false", onclick: () => (setHour(hour), context.redraw(), context.soon()) }, words);
  return h("span", { class: "choice small", role: "group", "aria-label": "Time that charts show" }, button("2 min", false), button("1 hour", true));
}

/** How full something is. `share`: 0 to 1 and more. */
export function gauge(label, words, share, throttled = false) {
  const full = Math.max(0, Math.min(1, share ?? 0));
  return h(
    "div",
    { class: ["gauge", throttled ? "is-blocked" : full > 0.8 && "is-throttled"] },
    h("div", { class: "words" }, h("b", {}, label), h("span", {}, words)),
    h("div", { class: "track", "aria-hidden": "true" }, h("svg", { viewBox: "0 0 100 7", preserveAspectRatio: "none" }, h("rect", { class: "fill", width: (full * 100).toFixed(1), height: 7 }))),
  );
}

/** What a limiter holds, of what it may. */
export function usedOf(limiter) {
  const say = limiter.unit === "bytes" ? format.size : format.count;
  const unit = limiter.unit === "bytes" ? "" : ` ${limiter.unit}`;
  return limiter.capacity === null || limiter.capacity === undefined ? say(limiter.used) : `${say(limiter.used)} of ${say(limiter.capacity)}${unit}`;
}

/** One part of a whole beside the other: a bar in two colours. */
export function parted(label, parts) {
  const whole = parts.reduce((sum, part) => sum + (part.value ?? 0), 0);
  let at = 0;
  return h(
    "figure",
    { class: "chart" },
    h(
      "svg",
      { viewBox: "0 0 560 22", preserveAspectRatio: "none", role: "img", "aria-label": label },
      whole
        ? parts.map((part, index) => {
            const width = ((part.value ?? 0) / whole) * 560;
            at += width;
            return h("rect", { class: `bar series-${index + 1}`, x: (at - width).toFixed(1), width: width.toFixed(1), height: 22 });
          })
        : h("line", { class: "axis", x1: 0, x2: 560, y1: 11, y2: 11 }),
    ),
    h(
      "figcaption",
      { class: "legend" },
      parts.map((part, index) => h("span", {}, h("i", { class: `key series-${index + 1}` }), part.name, h("b", {}, format.count(part.value)), whole ? ` (${format.share((part.value ?? 0) / whole)})` : "")),
    ),
  );
}

/** Counts by name, longest first. `counts`: {name: count}. */
export function bars(counts) {
  const rows = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  const most = Math.max(1, ...rows.map(([, value]) => value));
  return h(
    "ul",
    { class: "bars" },
    rows.map(([name, value]) =>
      h(
        "li",
        { key: name },
        h("span", {}, name),
        h("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, h("rect", { class: "rail", width: 100, height: 10, rx: 1 }), h("rect", { class: "bar", width: Math.max(1, (value / most) * 100).toFixed(1), height: 10, rx: 1 })),
        h("b", {}, format.count(value)),
      ),
    ),
  );
}
