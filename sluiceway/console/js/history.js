// Numbers over time: the last two minutes, which a page that is open sees come by, or the last hour, which the broker
// keeps. Which of the two all charts show is one choice, kept in this browser.

import { ask } from "./api.js";

const POINTS_MAX = 120;
const SERIES_MAX = 600;

const series = new Map();
const counters = new Map();

/** Remember a value. `at`: seconds. */
export function note(name, value, at) {
  if (typeof value !== "number" || !Number.isFinite(value)) return;
  let points = series.get(name);
  if (points === undefined) {
    if (series.size >= SERIES_MAX) series.delete(series.keys().next().value);
    points = [];
  } else {
    // Those that are written to stay the youngest of the map.
    series.delete(name);
  }
  series.set(name, points);
  if (points.length && points[points.length - 1].at >= at) return;
  points.push({ at, value });
  if (points.length > POINTS_MAX) points.shift();
}

/** Remember a number that only grows, as its rate per second. A smaller one means that the broker began anew. */
export function noteCounter(name, total, at) {
  const last = counters.get(name);
  if (typeof total !== "number" || (last && at - last.at < 0.2)) return;
  counters.set(name, { total, at });
  if (counters.size > SERIES_MAX) counters.delete(counters.keys().next().value);
  if (last && total >= last.total) note(name, (total - last.total) / (at - last.at), at);
}

const KEY = "sluiceway-span";
const HOUR_SECONDS = 3600;
/** How long an answer about the last hour is good for. */
const HOUR_KEPT_SECONDS = 5;

/** Name of the series in the pages → name in the broker's answer. */
const OF_BROKER = (name) => (name.startsWith("total ") ? name.slice(6) : name.startsWith("store ") ? `store_${name.slice(6)}` : null);
const OF_DESTINATION = { in: "in_per_second", out: "out_per_second", depth: "depth_count" };

/** The last hour by name of a destination, "" of the broker: {at, series}. */
const hours = new Map();

export function isHour() {
  return localStorage.getItem(KEY) === "hour";
}

export function setHour(wanted) {
  localStorage.setItem(KEY, wanted ? "hour" : "minutes");
}

/** Seconds that charts show. */
export function spanSeconds() {
  return isHour() ? HOUR_SECONDS : POINTS_MAX;
}

/** Ask for the last hour, if that is what charts show. `name`: of a destination, or "". */
export async function loadHour(name = "") {
  const now = performance.now() / 1000;
  const known = hours.get(name);
  if (!isHour() || (known && now - known.asked < HOUR_KEPT_SECONDS)) return;
  const found = await ask("/history", { name });
  const series = {};
  for (const [key, values] of Object.entries(found.series)) {
    const end = now - found.age_seconds;
    series[key] = values.map((value, at) => ({ at: end - (values.length - 1 - at) * found.step_seconds, value })).filter((point) => point.value !== null);
  }
  hours.delete(name);
  hours.set(name, { asked: now, series });
  if (hours.size > SERIES_MAX) hours.delete(hours.keys().next().value);
}

/** The points that a chart shows: {at, value}, the oldest first. */
export function points(name) {
  if (!isHour()) return series.get(name) ?? [];
  const whole = OF_BROKER(name);
  const [way, ...rest] = name.split(" ");
  const found = hours.get(whole ? "" : rest.join(" "))?.series;
  return found?.[whole ?? OF_DESTINATION[way]] ?? [];
}

export function latest(name) {
  return points(name).at(-1)?.value ?? null;
}
