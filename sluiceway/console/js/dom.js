// A page is described anew at each update, and the difference is made in the document: focus, selection and scroll
// places stay. Text is only ever put in as text nodes, attributes as attributes; there is no way to put in markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "rect", "circle", "line", "text", "title", "polygon", "polyline"]);
const PROPERTIES = new Set(["value", "checked", "disabled", "indeterminate", "selected"]);

/**
 * Describe an element. `props`: attributes; `class` may be a list (false ones are left out); `on…` are functions;
 * `key` tells siblings apart; `ref` is called with the element once it exists. Children: texts, numbers, elements,
 * lists; null, undefined and booleans are left out.
 */
export function h(tag, props, ...children) {
  const { key, ref, ...rest } = props ?? {};
  // As a text, so that the same classes are the same the next time.
  if (Array.isArray(rest.class)) rest.class = rest.class.filter(Boolean).join(" ");
  return { tag, key, ref, props: rest, children: flat(children), svg: SVG_TAGS.has(tag) && tag !== "title" };
}

/** Make the document below `root` like these descriptions. */
export function render(root, ...children) {
  patchChildren(root, root.described ?? [], flat(children), false);
  root.described = flat(children);
}

function flat(children) {
  const out = [];
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || typeof child === "boolean") continue;
    out.push(typeof child === "object" ? child : { text: String(child) });
  }
  return out;
}

function same(a, b) {
  return a.tag === b.tag && a.key === b.key;
}

function patchChildren(parent, before, after, svg) {
  const old = [...parent.childNodes];
  const byKey = new Map();
  before.forEach((child, at) => {
    if (child.key !== undefined) byKey.set(`${child.tag} ${child.key}`, at);
  });
  const taken = new Set();
  let plain = 0;
  const wanted = after.map((child) => {
    let at;
    if (child.key !== undefined) {
      at = byKey.get(`${child.tag} ${child.key}`);
    } else {
      // Those without a key are matched in their order.
      for (let i = plain; i < before.length; i++) {
        if (before[i].key === undefined && !taken.has(i) && same(before[i], child)) {
          at = i;
          plain = i + 1;
          break;
        }
      }
    }
    if (at === undefined || taken.has(at) || !old[at]) return create(child, svg);
    taken.add(at);
    patch(old[at], before[at], child);
    return old[at];
  });
  before.forEach((_, at) => {
    if (!taken.has(at)) old[at]?.remove();
  });
  wanted.forEach((node, at) => {
    if (parent.childNodes[at] !== node) parent.insertBefore(node, parent.childNodes[at] ?? null);
  });
}

function create(child, svg) {
  if (child.tag === undefined) return document.createTextNode(child.text);
  const inSvg = child.svg || (svg && child.tag === "title");
  const node = inSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  for (const [name, value] of Object.entries(child.props)) put(node, name, value, undefined);
  patchChildren(node, [], child.children, inSvg);
  // A select knows its value only once it has its options.
  if (child.tag === "select" && child.props.value !== undefined) node.value = child.props.value;
  if (child.ref) child.ref(node);
  return node;
}

function patch(node, before, after) {
  if (before === after) return;  // described once, and kept
  if (after.tag === undefined) {
    if (before.text !== after.text) node.textContent = after.text;
    return;
  }
  for (const name of Object.keys(before.props)) {
    if (!(name in after.props)) put(node, name, undefined, before.props[name]);
  }
  for (const [name, value] of Object.entries(after.props)) {
    if (value !== before.props[name]) put(node, name, value, before.props[name]);
  }
  patchChildren(node, before.children, after.children, node.namespaceURI === SVG);
}

function put(node, name, value, before) {
  if (name.startsWith("on")) {
    const event = name.slice(2);
    if (typeof before === "function") node.removeEventListener(event, before);
    if (typeof value === "function") node.addEventListener(event, value);
    return;
  }
  if (PROPERTIES.has(name) && name in node) {
    node[name] = value ?? (name === "value" ? "" : false);
    return;
  }
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}
