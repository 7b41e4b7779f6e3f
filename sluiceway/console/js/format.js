// Sizes, ages, rates and counts as people say them, like flow/words.py does in the broker. Numbers that are not there are «–».

const NONE = "–";
const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? whole.format(value) : NONE;
}

/** `12.4 k`, `3.1 M`: where there is little room. */
export function shortCount(value) {
  if (!known(value)) return NONE;
  if (Math.abs(value) < 10_000) return whole.format(value);
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${(value / size).toFixed(value / size < 100 ? 1 : 0)} ${sign}`;
  }
  return whole.format(value);
}

export function size(bytes) {
  if (!known(bytes)) return NONE;
  if (Math.abs(bytes) < 1024) return `${Math.round(bytes)} B`;
  let value = bytes;
  for (const unit of UNITS) {
    value /= 1024;
    if (Math.abs(value) < 1023.95) return `${value.toFixed(value < 100 ? 1 : 0)} ${unit}`;
  }
  return `${value.toFixed(0)} PiB`;
}

export function age(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 0.9995) return `${Math.round(Math.max(0, seconds) * 1000)} ms`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
  if (seconds < 171_000) return `${Math.round(seconds / 3600)} h`;
  return `${whole.format(seconds / 86_400)} d`;
}

export function rate(perSecond) {
  if (!known(perSecond)) return NONE;
  if (perSecond > 0 && perSecond < 9.95) return `${perSecond.toFixed(1)}/s`;
  return `${shortCount(perSecond)}/s`;
}

export function share(value) {
  return known(value) ? `${Math.round(value * 100)} %` : NONE;
}

export function things(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** The time of day of a date in milliseconds, with them: what happened to a message may all be in one second. */
export function clock(epochMs) {
  if (!known(epochMs)) return NONE;
  const date = new Date(epochMs);
  const two = (number) => String(number).padStart(2, "0");
  const ms = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${ms}`;
}

export function day(epochMs) {
  return known(epochMs) ? new Date(epochMs).toLocaleString() : NONE;
}

/** The beginning and the end of a long text: names differ at both. */
export function middle(text, length) {
  if (text.length <= length) return text;
  const head = Math.ceil((length - 1) * 0.55);
  return `${text.slice(0, head)}…${text.slice(text.length - (length - 1 - head))}`;
}

/** Headers say everything as text: the number in it, or null. */
export function number(text) {
  const value = Number(text);
  return text !== "" && text !== null && text !== undefined && Number.isFinite(value) ? value : null;
}

/** A limit as it is typed in: exact, with a unit; no limit is empty. */
export function limit(name, value) {
  if (value === null || value === undefined) return "";
  if (name === "count_max") return String(value);
  const unit = ["TiB", "GiB", "MiB", "KiB"].find((_, at) => value >= 1024 ** (4 - at) && value % 1024 ** (4 - at) === 0);
  return unit === undefined ? `${value} B` : `${value / 1024 ** (4 - ["TiB", "GiB", "MiB", "KiB"].indexOf(unit))} ${unit}`;
}

/** The limits that were changed at run time, as a sentence. */
export function changedLimits(changed) {
  const said = Object.entries(changed).map(([name, { value, configured }]) => `${name} ${limit(name, value) || "no limit"} (configured: ${limit(name, configured) || "no limit"})`);
  return `Changed at run time, until a restart or a reload: ${said.join(", ")}`;
}
