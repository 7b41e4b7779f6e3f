// One log as a picture: the records there are, what is not synced yet, and the front of each
// group with what it has yet to read.

import { h } from "./dom.js";
import * as format from "./format.js";
import { isNarrow } from "./screen.js";

const LEFT = 4;
const BAR = 26;
const ROW = 22;
const SHOWN_MAX = 12;
const LATE_SECONDS = 5;

/** `log`: as of /log, with its `groups`. */
export function logLine(log) {
  const groups = [...(log.groups ?? [])].sort((a, b) => b.lag - a.lag).slice(0, SHOWN_MAX);
  const width = isNarrow() ? 340 : 900;
  const span = Math.max(1, log.next - log.first);
  const x = (index) => LEFT + (Math.max(0, Math.min(span, index - log.first)) / span) * (width - 2 * LEFT);
  const height = 44 + groups.length * ROW;
  const synced = Math.max(log.first, Math.min(log.next, log.synced ?? log.next));
  return h(
    "svg",
    { class: "logline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Records ${log.first} to ${log.next}. ${groups.map((group) => `Group ${group.group} is ${format.count(group.lag)} behind`).join(", ")}` },
    h("text", { x: LEFT, y: 11 }, `first ${format.count(log.first)}`),
    h("text", { x: width - LEFT, y: 11, "text-anchor": "end" }, `next ${format.count(log.next)}`),
    h("rect", { class: "rail", x: LEFT, y: 17, width: width - 2 * LEFT, height: BAR - 8, rx: 3 }),
    log.next > log.first && h("rect", { class: "kept", x: LEFT, y: 17, width: Math.max(0, x(synced) - LEFT), height: BAR - 8, rx: 3 }),
    synced < log.next && h("rect", { class: "unsynced", x: x(synced), y: 17, width: Math.max(1.5, x(log.next) - x(synced)), height: BAR - 8 }, h("title", {}, "not synced to the disk yet")),
    groups.map((group, at) => frontOf(group, width, x(group.front), x(log.next), 17 + BAR - 8 + 6 + at * ROW)),
  );
}

function frontOf(group, width, x, end, y) {
  const behind = group.lag > 0;
  const late = behind && group.lag_seconds > LATE_SECONDS;
  const words = `${group.group}: ${behind ? `${format.count(group.lag)} behind, ${format.age(group.lag_seconds)}` : "has read everything"}`;
  const right = x > width * 0.5;
  return h(
    "g",
    { key: group.group },
    behind && h("line", { class: "lagging", x1: x, x2: end, y1: y + 9, y2: y + 9 }),
    h("path", { class: ["front", late && "late"], d: `M${x.toFixed(1)} ${y}l6 10h-12Z` }),
    h("text", { class: "front-name", x: right ? x - 10 : x + 10, y: y + (behind && !right ? 5 : 10), "text-anchor": right ? "end" : "start" }, words),
  );
}
