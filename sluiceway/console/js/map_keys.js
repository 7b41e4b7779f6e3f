// Going through the flow map by keyboard: up and down within a column, left and right along edges, or where there are
// none to the nearest node of the next column.

/** The node that an arrow key leads to, or null. */
export function towards(layout, id, key) {
  const here = layout.nodes.get(id);
  if (!here) return null;
  if (key === "Home") return first(layout);
  if (layout.narrow && (key === "ArrowLeft" || key === "ArrowRight")) key = key === "ArrowLeft" ? "ArrowUp" : "ArrowDown";
  const others = [...layout.nodes.entries()].filter(([other]) => other !== id);
  if (key === "ArrowUp" || key === "ArrowDown") {
    const sign = key === "ArrowUp" ? -1 : 1;
    const column = others.filter(([, place]) => Math.abs(place.x - here.x) < 2 && (place.y - here.y) * sign > 0);
    return nearest(column, here);
  }
  const sign = key === "ArrowLeft" ? -1 : 1;
  const beyond = others.filter(([, place]) => (place.x - here.x) * sign > 2);
  const along = new Set(layout.next.get(id) ?? []);
  const linked = beyond.filter(([other]) => along.has(other));
  return nearest(linked.length ? linked : beyond, here);
}

export function first(layout) {
  const rank = { blocked: 0, throttled: 1, paused: 2, open: 3 };
  let best = null;
  for (const [id, place] of layout.nodes) {
    if (best === null || (rank[place.node.state] ?? 3) < (rank[layout.nodes.get(best).node.state] ?? 3)) best = id;
  }
  return best;
}

function nearest(entries, here) {
  let best = null;
  let least = Infinity;
  for (const [id, place] of entries) {
    const away = Math.abs(place.y - here.y) + Math.abs(place.x - here.x) * 2;
    if (away < least) [best, least] = [id, away];
  }
  return best;
}
