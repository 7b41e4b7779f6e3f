// What the nodes of the map are called: people know a connection by its client-id or user, not by its address.

/** Kind and name, with the client's own name where it has one: `connection web-3`. */
export function called(node) {
  if (!node.label || node.label === node.name || !node.title.endsWith(node.name)) return node.title;
  return node.title.slice(0, node.title.length - node.name.length) + node.label;
}

/** The map without connections that only consume and go their way: their subscriptions are there already. */
export function trimmed(map) {
  const linked = new Set(map.edges.flatMap((edge) => (edge.from === edge.to ? [] : [edge.from, edge.to])));
  const nodes = map.nodes.filter((node) => node.kind !== "connection" || linked.has(node.id) || node.state !== "open");
  const left = map.nodes.length - nodes.length;
  return { ...map, nodes, omitted: { ...map.omitted, nodes_count: (map.omitted?.nodes_count ?? 0) + left } };
}

/** What is worth a line of what it says of itself: not what it has none of. */
export function facts(node) {
  const said = (node.facts_words || "").split(", ");
  const shown = node.kind === "connection" ? said.filter((fact) => !/^0 /.test(fact)) : said;
  if (node.kind === "connection" && node.label && node.label !== node.name) shown.push(node.name);
  return shown.join(", ");
}
