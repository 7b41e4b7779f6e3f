// The address after the # says which page, and what of it: `#/messages?name=/queue/orders`. Names of destinations are
// always in the query, encoded, never part of the path.

/** The page and its query in the address. */
export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { page: path || "overview", query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** An address to link to. */
export function to(page, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") words.set(name, value);
  }
  const said = words.toString();
  return `#/${page}${said ? `?${said}` : ""}`;
}

export function go(page, query) {
  location.hash = to(page, query);
}

/** Change the query of this page without a step in the browser's history. */
export function adjust(changes) {
  const { page, query } = here();
  history.replaceState(null, "", to(page, { ...query, ...changes }));
}
