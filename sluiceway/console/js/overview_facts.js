// What the header, the alarm and the first page all take from /overview.

import { note, noteCounter } from "./history.js";

/** Shorter waits come and go. */
export const LASTING_SECONDS = 1;

/** Those that have blocked senders for a while and wait for nothing themselves; in a ring all wait. */
export function culprits(overview) {
  const all = (overview?.bottlenecks ?? []).filter((one) => one.age_seconds >= LASTING_SECONDS);
  const found = all.filter((one) => !one.waits_itself);
  return found.length ? found : all;
}

/** The worst that there is: {id, words}; id "" for nothing. A wait of a moment is none: any busy broker has those. */
export function alarmOf(overview) {
  const worst = culprits(overview)[0];
  if (!worst) return { id: "", words: "Nothing is blocked any more." };
  return { id: worst.id, words: `Bottleneck: ${worst.words}` };
}

const TOTALS = ["in_per_second", "out_per_second", "depth_count", "unsettled_count", "memory_bytes", "connections_count"];
const STORE_COUNTERS = ["written_count", "cancelled_count", "syncs_count", "paged_out_count", "loaded_count", "written_bytes"];

/** Keep the numbers that are drawn over time. */
export function remember(overview) {
  const at = performance.now() / 1000;
  for (const name of TOTALS) note(`total ${name}`, overview.totals?.[name], at);
  for (const name of STORE_COUNTERS) noteCounter(`store ${name}`, overview.store?.[name], at);
}
