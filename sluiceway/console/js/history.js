// The last two minutes of numbers, kept in the page: the broker keeps no history, and a page that is open sees them come by.

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

export function points(name) {
  return series.get(name) ?? [];
}

export function latest(name) {
  return points(name).at(-1)?.value ?? null;
}
