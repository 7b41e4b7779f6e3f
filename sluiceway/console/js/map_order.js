// Which node stands above which, in each column of the flow map: as few crossings as a few sweeps find (Sugiyama 1981,
// barycentres), found once: later ones are put in beside their neighbours by name, so that the picture stands still.

const SWEEPS = 6;

/**
 * `columns`: ids by column, as they come; `links`: [id, id] between neighbouring columns, left first; `below`: ids that
 * stay below the others of their column; `before`: the columns of the last picture, or null. Returns columns in order.
 */
export function ordered(columns, links, below, before) {
  const kept = before ? columns.map((ids, at) => asBefore(ids, before[at] ?? [])) : columns.map((ids) => [...ids]);
  if (before) return kept;
  let best = kept;
  let fewest = crossings(kept, links);
  let trial = kept.map((ids) => [...ids]);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep++) {
    trial = swept(trial, links, below, sweep % 2 === 0);
    const found = crossings(trial, links);
    if (found < fewest) {
      best = trial.map((ids) => [...ids]);
      fewest = found;
    }
  }
  return best;
}

/** Those of the last picture in their order, each newcomer behind the one that it comes behind. */
function asBefore(ids, before) {
  const known = new Set(before);
  const there = new Set(ids);
  const out = before.filter((id) => there.has(id));
  ids.forEach((id, at) => {
    if (known.has(id)) return;
    const above = at ? out.indexOf(ids[at - 1]) : -1;
    out.splice(above + 1, 0, id);
  });
  return out;
}

/** One pass: each column in the order of what its nodes are linked to in the column before it. */
function swept(columns, links, below, rightwards) {
  const out = columns.map((ids) => [...ids]);
  for (const at of rightwards ? [1, 2] : [1, 0]) {
    const fixed = out[rightwards ? at - 1 : at + 1];
    const place = new Map(fixed.map((id, index) => [id, index]));
    const pulls = new Map();
    for (const [left, right] of links) {
      const [mine, theirs] = rightwards ? [right, left] : [left, right];
      if (place.has(theirs)) pulls.set(mine, [...(pulls.get(mine) ?? []), place.get(theirs)]);
    }
    const mean = (id, index) => {
      const found = pulls.get(id);
      return found ? found.reduce((sum, value) => sum + value, 0) / found.length : index;
    };
    out[at] = out[at]
      .map((id, index) => ({ id, index, pull: mean(id, index), below: below.has(id) }))
      .sort((a, b) => a.below - b.below || a.pull - b.pull || a.index - b.index)
      .map((entry) => entry.id);
  }
  return out;
}

/** How many pairs of links cross. */
export function crossings(columns, links) {
  const place = new Map();
  columns.forEach((ids, column) => ids.forEach((id, row) => place.set(id, { column, row })));
  const gaps = new Map();
  for (const [left, right] of links) {
    const a = place.get(left);
    const b = place.get(right);
    if (!a || !b) continue;
    const list = gaps.get(a.column) ?? [];
    list.push([a.row, b.row]);
    gaps.set(a.column, list);
  }
  let found = 0;
  for (const list of gaps.values()) {
    for (let i = 0; i < list.length; i++) {
      for (let j = i + 1; j < list.length; j++) {
        if ((list[i][0] - list[j][0]) * (list[i][1] - list[j][1]) < 0) found += 1;
      }
    }
  }
  return found;
}
