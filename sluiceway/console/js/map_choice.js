// What of a large map is shown: whole paths, the blocked ones first, then the busiest; nodes of one kind with names alike
// as one group that can be opened; and what was shown stays shown for a while, so that the picture stands still.

import { LASTING_SECONDS } from "./overview_facts.js";

const GROUP_LEAST = 3;
/** A node that is no longer among the busiest stays so long; by then others may have its place. */
const STAYS_SECONDS = 30;
export const GROUP = "group ";

const isCalm = (node) => node.state === "open" && !(node.senders_seconds >= LASTING_SECONDS);

/** The common part of names that differ by a number, or by what follows the last dot: `/queue/team7.*`, `web-*`. */
export function stem(name) {
  const level = name.lastIndexOf(".");
  if (level > name.lastIndexOf("/") && level > 0 && !/^[0-9.:]+$/.test(name)) return `${name.slice(0, level)}.*`;
  const bare = name.replace(/[0-9]+$/, "");
  return bare === name || !bare ? "" : `${bare}*`;
}

/** The map with groups in the place of calm nodes, and of connections that are all blocked. `open`: ids of groups that are not to be closed. */
export function grouped(map, open) {
  const blocked = new Set(map.edges.flatMap((edge) => (edge.kind === "flow" ? [] : [edge.from, edge.to])));
  const members = new Map();
  for (const node of map.nodes) {
    const name = stem(node.label || node.name);
    const isVictim = node.kind === "connection" && !(node.senders_seconds >= LASTING_SECONDS);
    if (!name || (!isVictim && (!isCalm(node) || blocked.has(node.id)))) continue;
    const id = `${GROUP}${node.kind} ${node.state} ${name}`;
    if (!members.has(id)) members.set(id, { name, nodes: [] });
    members.get(id).nodes.push(node);
  }
  const into = new Map();
  const groups = [];
  for (const [id, { name, nodes }] of members) {
    if (nodes.length < GROUP_LEAST || open.has(id)) continue;
    for (const node of nodes) into.set(node.id, id);
    groups.push(groupOf(id, name, nodes));
  }
  const edges = new Map();
  for (const edge of map.edges) {
    const [from, to] = [into.get(edge.from) ?? edge.from, into.get(edge.to) ?? edge.to];
    const key = `${edge.kind} ${from} ${to}`;
    const known = edges.get(key);
    if (known) {
      known.rate_per_second += edge.rate_per_second;
      known.age_seconds = Math.max(known.age_seconds, edge.age_seconds);
    } else edges.set(key, { ...edge, from, to, words: from === edge.from && to === edge.to ? edge.words : "" });
  }
  return { ...map, nodes: [...map.nodes.filter((node) => !into.has(node.id)), ...groups], edges: [...edges.values()] };
}

function groupOf(id, name, nodes) {
  const kind = nodes[0].kind;
  const label = `${name} (${nodes.length})`;
  return {
    id, kind, name: label, label, title: `group ${label}`, state: nodes[0].state, words: "", limiters: [],
    facts_words: `${nodes.length} ${kind === "destination" ? "destinations" : kind === "connection" ? "connections" : "consumers"}, open to see each`,
    rate_per_second: nodes.reduce((sum, node) => sum + node.rate_per_second, 0),
    held_bytes: nodes.reduce((sum, node) => sum + node.held_bytes, 0),
    age_seconds: Math.max(...nodes.map((node) => node.age_seconds ?? 0)), senders_count: 0, senders_seconds: 0,
  };
}

/**
 * At most `limit` nodes, and all that are in trouble. `stay`: Map id → seconds until which a node stays, kept from call to call;
 * `q`: only nodes with this in their name, with all that flows into them and out of them.
 */
export function chosen(map, { limit, stay, now, q = "" }) {
  const known = new Map(map.nodes.map((node) => [node.id, node]));
  const edges = map.edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
  const wanted = q ? matching(map.nodes, edges, q.toLowerCase()) : kept(map.nodes, best(map.nodes, edges, limit), limit, stay, now);
  const nodes = map.nodes.filter((node) => wanted.has(node.id)).sort(byName);
  return {
    ...map,
    nodes,
    edges: edges.filter((edge) => wanted.has(edge.from) && wanted.has(edge.to)),
    omitted: { ...map.omitted, nodes_count: (map.omitted?.nodes_count ?? 0) + map.nodes.length - nodes.length },
  };
}

/** Those that were shown and are still among the best, or were so a moment ago; then the others of the best. */
function kept(nodes, ideal, limit, stay, now) {
  const known = new Set(nodes.map((node) => node.id));
  for (const [id, until] of stay) {
    if (!known.has(id) || (until < now && !ideal.has(id))) stay.delete(id);
  }
  const wanted = new Set(nodes.filter((node) => !isCalm(node)).map((node) => node.id));
  for (const id of [...stay.keys(), ...ideal]) {
    if (wanted.size >= limit) break;
    wanted.add(id);
  }
  for (const id of wanted) {
    if (ideal.has(id) || !stay.has(id)) stay.set(id, now + STAYS_SECONDS);
  }
  return wanted;
}

const byName = (a, b) => (a.label || a.name).localeCompare(b.label || b.name, "en", { numeric: true }) || a.id.localeCompare(b.id);

/** Ends of edges, those of waits first, then the busiest; what has no edge only where there is room. */
function best(nodes, edges, limit) {
  const wanted = new Set(nodes.filter((node) => !isCalm(node)).slice(0, limit).map((node) => node.id));
  const rank = (edge) => (edge.kind === "flow" ? edge.rate_per_second : Infinity);
  const paths = [...edges].sort((a, b) => rank(b) - rank(a) || a.from.localeCompare(b.from) || a.to.localeCompare(b.to));
  for (const edge of paths) {
    const more = [edge.from, edge.to].filter((id) => !wanted.has(id));
    if (wanted.size + more.length > limit) continue;
    for (const id of more) wanted.add(id);
  }
  for (const node of [...nodes].sort((a, b) => b.held_bytes - a.held_bytes || byName(a, b))) {
    if (wanted.size >= limit) break;
    wanted.add(node.id);
  }
  return wanted;
}

/** Nodes with that in their name, and all that is up or down the stream of them. */
function matching(nodes, edges, q) {
  const found = nodes.filter((node) => `${node.label} ${node.name}`.toLowerCase().includes(q)).map((node) => node.id);
  const wanted = new Set(found);
  for (const [from, to] of [["from", "to"], ["to", "from"]]) {
    let fresh = new Set(found);
    while (fresh.size) {
      const next = new Set(edges.filter((edge) => fresh.has(edge[from]) && !wanted.has(edge[to])).map((edge) => edge[to]));
      for (const id of next) wanted.add(id);
      fresh = next;
    }
  }
  return wanted;
}
