// Places for the nodes and edges of the flow map: numbers only, nothing is drawn here.
//
// Wide: three columns, connections → destinations → consumers, and below the consumers the store, the disk and what
// else the broker holds things in. Narrow (a phone): one list in the same order, with the flow as arcs at the left and
// the waits as arcs at the right.
//
// An edge over two columns goes through a gap in the middle one: it has a place there like a node.

import { ordered } from "./map_order.js";

const HEIGHT = 50;
const GAP = 14;
const SLOT = 12;
const TOP = 28;
const SECTION = 34;
export const NARROW = 560;
const GUTTER = 46;

const COLUMN_OF = { connection: 0, destination: 1, subscription: 2 };
const TITLES = ["Connections", "Destinations", "Consumers"];
const BELOW_TITLE = "Store, disk and broker";

/**
 * `map`: an answer of /map; `width`: pixels there are; `before`: the last layout, or null.
 * Returns {narrow, width, height, nodes: Map id → {node, x, y, width, height}, edges: [{edge, path, label, kind}],
 * titles: [{text, x, y}], stacks (ids by column), next: id → neighbours (for the keyboard)}.
 */
export function laidOut(map, width, before) {
  const narrow = width < NARROW;
  const nodes = new Map(map.nodes.map((node) => [node.id, node]));
  const edges = map.edges.filter((edge) => edge.from !== edge.to && nodes.has(edge.from) && nodes.has(edge.to));
  const columns = [[], [], [], []];
  for (const node of map.nodes) columns[columnOf(node)].push(node.id);
  const { links, slots } = linked(edges, nodes, columns);
  const below = new Set(columns[3]);
  const stacks = ordered([columns[0], columns[1], [...columns[2], ...columns[3]]], links, below, before?.stacks ?? null);
  const order = [stacks[0], stacks[1], stacks[2].filter((id) => !below.has(id)), stacks[2].filter((id) => below.has(id))];
  const layout = narrow ? listed(order, nodes, edges, width) : columned(order, nodes, edges, width, slots, links, before?.y ?? null);
  return { ...layout, narrow, width, stacks, next: neighbours(edges, nodes) };
}

export function columnOf(node) {
  return COLUMN_OF[node.kind] ?? 3;
}

/** In the picture the broker's own things stand in the third column. */
const drawnColumn = (column) => Math.min(column, 2);

/** Links between neighbouring columns for the order; `slots`: the place in the middle that a long edge goes through. */
function linked(edges, nodes, columns) {
  const links = [];
  const slots = new Map();
  for (const edge of edges) {
    let [left, right] = [edge.from, edge.to];
    let [a, b] = [columnOf(nodes.get(left)), columnOf(nodes.get(right))];
    if (a > b) [left, right, a, b] = [right, left, b, a];
    if (drawnColumn(a) === drawnColumn(b)) continue;
    if (a === 0 && b >= 2) {
      const slot = `slot ${left} ${right}`;
      if (!slots.has(slot)) columns[1].push(slot);
      slots.set(slot, true);
      links.push([left, slot], [slot, right]);
    } else {
      links.push([left, right]);
    }
  }
  return { links, slots };
}

function neighbours(edges, nodes) {
  const next = new Map([...nodes.keys()].map((id) => [id, []]));
  for (const edge of edges) {
    next.get(edge.from).push(edge.to);
    next.get(edge.to).push(edge.from);
  }
  return next;
}

// ---------------------------------------------------------------------------------------------------- three columns

function columned(order, nodes, edges, width, slots, links, before) {
  const box = Math.max(128, Math.min(300, Math.floor((width - 150) / 3)));
  const step = (width - box) / 2;
  const y = heights(order, slots, links, before);
  const placed = new Map();
  order.forEach((ids, column) => {
    for (const id of ids) {
      placed.set(id, { node: nodes.get(id), x: drawnColumn(column) * step, y: y.get(id), width: box, height: slots.has(id) ? SLOT : HEIGHT });
    }
  });
  const bottom = Math.max(TOP, ...[...placed.values()].map((place) => place.y + place.height));
  const titles = TITLES.map((text, column) => ({ text, x: column * step, y: 14 }));
  if (order[3].length) {
    const first = Math.min(...order[3].map((id) => y.get(id)));
    titles.push({ text: BELOW_TITLE, x: 2 * step, y: first - 12 });
  }
  const drawn = curves(edges, nodes, placed);
  for (const slot of slots.keys()) placed.delete(slot);
  return { height: bottom + 8, nodes: placed, edges: drawn, titles, y };
}

/**
 * Where each id of each column is: near to what it is linked to, in order, without touching. `before`: where each was,
 * which is where it stays unless a new one takes its room.
 */
function heights(order, slots, links, before) {
  const high = (id) => (slots.has(id) ? SLOT : HEIGHT);
  const y = new Map();
  // The last column stands below the third.
  const stacks = [order[0], order[1], [...order[2], ...order[3]]];
  const firstBelow = order[3][0];
  const extra = (id, at) => (id === firstBelow && at > 0 ? SECTION : id === firstBelow ? SECTION - GAP : 0);
  const pulls = new Map();
  for (const [left, right] of links) {
    pulls.set(left, [...(pulls.get(left) ?? []), right]);
    pulls.set(right, [...(pulls.get(right) ?? []), left]);
  }
  for (const stack of stacks) {
    let at = TOP;
    stack.forEach((id, index) => {
      at += extra(id, index);
      y.set(id, at);
      at += high(id) + GAP;
    });
  }
  const tallest = Math.max(...stacks.map((stack) => (stack.length ? y.get(stack.at(-1)) + high(stack.at(-1)) : TOP)));
  const lowest = before ? Math.max(tallest, ...[...before].filter(([id]) => y.has(id)).map(([id, at]) => at + high(id))) : tallest;
  for (let round = 0; round < (before ? 1 : 4); round++) {
    for (const stack of round % 2 ? [...stacks].reverse() : stacks) settle(stack, y, pulls, high, extra, lowest, before);
  }
  return y;
}

/** Move one stack towards its neighbours, between TOP and `bottom`, keeping order and distance. */
function settle(stack, y, pulls, high, extra, bottom, before) {
  const middleOf = (id) => y.get(id) + high(id) / 2;
  const wish = stack.map((id) => {
    if (before?.has(id)) return before.get(id);
    const found = pulls.get(id);
    return found ? found.reduce((sum, other) => sum + middleOf(other), 0) / found.length - high(id) / 2 : y.get(id);
  });
  // From below: nobody lower than leaves room for the rest; then from above: nobody nearer than the gap.
  let room = bottom;
  for (let at = stack.length - 1; at >= 0; at--) {
    wish[at] = Math.min(wish[at], room - high(stack[at]));
    room = wish[at] - GAP - extra(stack[at], at);
  }
  let floor = TOP;
  stack.forEach((id, at) => {
    const placed = Math.round(Math.max(wish[at], floor + extra(id, at)));
    y.set(id, placed);
    floor = placed + high(id) + GAP;
  });
}

/** Edges leave and arrive at ports of their own, in the order of where they go, so that they don't lie on each other. */
function curves(edges, nodes, placed) {
  const ports = new Map();
  const ends = edges.map((edge) => {
    const [a, b] = [columnOf(nodes.get(edge.from)), columnOf(nodes.get(edge.to))];
    const [left, right] = a <= b ? [edge.from, edge.to] : [edge.to, edge.from];
    const flat = drawnColumn(a) === drawnColumn(b);
    const via = !flat && Math.min(a, b) === 0 && Math.max(a, b) >= 2 ? placed.get(`slot ${left} ${right}`) : null;
    return { edge, left, right, flat, via };
  });
  const put = (id, side, end, other) => {
    const key = `${side} ${id}`;
    const list = ports.get(key) ?? [];
    list.push({ end, other, block: end.edge.kind !== "flow" });
    ports.set(key, list);
  };
  for (const end of ends) {
    put(end.left, "right", end, (end.via ?? placed.get(end.right)).y);
    put(end.right, end.flat ? "right" : "left", end, (end.via ?? placed.get(end.left)).y);
  }
  const at = new Map();
  for (const [key, list] of ports) {
    list.sort((a, b) => a.other - b.other || a.block - b.block);
    const place = placed.get(key.slice(key.indexOf(" ") + 1));
    const distance = Math.min(11, (place.height - 14) / Math.max(1, list.length - 1));
    list.forEach((port, index) => {
      const y = place.y + place.height / 2 + (index - (list.length - 1) / 2) * distance;
      const known = at.get(port.end) ?? {};
      at.set(port.end, { ...known, [key]: y });
    });
  }
  return ends.map((end) => {
    const [left, right] = [placed.get(end.left), placed.get(end.right)];
    const y1 = at.get(end)[`right ${end.left}`];
    const y2 = at.get(end)[`${end.flat ? "right" : "left"} ${end.right}`];
    const points = end.flat
      ? arc(left.x + left.width, y1, y2, 22)
      : end.via
        ? long(left.x + left.width, y1, end.via, right.x, y2)
        : curve(left.x + left.width, y1, right.x, y2);
    return finished(end.edge, points, end.left === end.from || end.edge.from === end.left);
  });
}

const curve = (x1, y1, x2, y2) => {
  const bend = Math.max(24, (x2 - x1) * 0.45);
  return { parts: [[x1, y1], [x1 + bend, y1, x2 - bend, y2, x2, y2]], label: [(x1 + x2) / 2, (y1 + y2) / 2] };
};

const long = (x1, y1, via, x2, y2) => {
  const y = via.y + via.height / 2;
  const bend = Math.max(24, (via.x - x1) * 0.45);
  return {
    parts: [[x1, y1], [x1 + bend, y1, via.x - bend, y, via.x, y], [via.x + via.width, y], [via.x + via.width + bend, y, x2 - bend, y2, x2, y2]],
    label: [via.x + via.width / 2, y],
  };
};

const arc = (x, y1, y2, depth) => ({ parts: [[x, y1], [x + depth, y1, x + depth, y2, x, y2]], label: [x + depth * 0.75, (y1 + y2) / 2] });

/** `forward`: the points run from the edge's `from` to its `to`. Waits are drawn the other way: against the flow. */
function finished(edge, { parts, label }, forward) {
  const wanted = edge.kind === "flow";
  const path = written(forward === wanted ? parts : turned(parts));
  const last = (forward === wanted ? parts : turned(parts)).at(-1);
  const [cx, cy, x, y] = last.slice(-4);
  return { edge, path, label, head: wanted ? null : { x, y, angle: (Math.atan2(y - cy, x - cx) * 180) / Math.PI } };
}

function written(parts) {
  return parts
    .map((numbers, at) => `${at === 0 ? "M" : numbers.length === 2 ? "L" : "C"}${numbers.map((value) => Math.round(value * 10) / 10).join(" ")}`)
    .join("");
}

function turned(parts) {
  const ends = parts.map((numbers) => numbers.slice(-2));
  const out = [ends.at(-1)];
  for (let at = parts.length - 1; at > 0; at--) {
    const numbers = parts[at];
    out.push(numbers.length === 2 ? ends[at - 1] : [numbers[2], numbers[3], numbers[0], numbers[1], ...ends[at - 1]]);
  }
  return out;
}

// ---------------------------------------------------------------------------------------------------- one list

function listed(order, nodes, edges, width) {
  const placed = new Map();
  const titles = [];
  const box = width - 2 * GUTTER;
  let y = 6;
  order.forEach((ids, column) => {
    const own = ids.filter((id) => nodes.has(id));
    if (!own.length) return;
    titles.push({ text: column === 3 ? BELOW_TITLE : TITLES[column], x: GUTTER, y: y + 12 });
    y += 22;
    for (const id of own) {
      placed.set(id, { node: nodes.get(id), x: GUTTER, y, width: box, height: HEIGHT });
      y += HEIGHT + GAP - 4;
    }
    y += 10;
  });
  const longest = Math.max(1, ...edges.map((edge) => Math.abs(placed.get(edge.from).y - placed.get(edge.to).y)));
  const drawn = edges.map((edge) => {
    const flow = edge.kind === "flow";
    const [from, to] = [placed.get(edge.from), placed.get(edge.to)];
    const reach = 10 + (GUTTER - 16) * (Math.abs(from.y - to.y) / longest);
    const shift = flow ? 0 : from.y < to.y ? 8 : -8;
    const [y1, y2] = [from.y + HEIGHT / 2 + shift, to.y + HEIGHT / 2 - shift];
    const x = flow ? GUTTER : GUTTER + box;
    const points = arc(x, y1, y2, (flow ? -1 : 1) * reach * 1.3);
    return finished(edge, { ...points, label: [x + (flow ? -1 : 1) * Math.max(20, reach * 0.75), (y1 + y2) / 2] }, true);
  });
  return { height: y, nodes: placed, edges: drawn, titles };
}
