// The body of a message as text, as JSON with its structure, or byte by byte. Whatever it holds is shown as text.

import { h } from "./dom.js";
import * as format from "./format.js";

const HEX_BYTES_MAX = 16_384;
const JSON_CHARS_MAX = 200_000;

/** What a body looks like in each view, as described once: a page is drawn each second, and a large body takes long. */
const described = new WeakMap();

function shown(body, view, describe) {
  if (!described.has(body)) described.set(body, {});
  const views = described.get(body);
  views[view] ??= h("span", { key: view }, describe());
  return views[view];
}

/** `body`: {encoding: "text" | "base64", text | data, bytes_total, truncated}; `wanted`: a view, or null for the fitting one. */
export function bodyView(body, wanted, onview) {
  const text = body.encoding === "base64" ? null : (body.text ?? "");
  const tree = treeOf(body, text);
  const views = [text !== null && "text", tree !== undefined && "JSON", "hex"].filter(Boolean);
  const view = views.includes(wanted) ? wanted : tree !== undefined ? "JSON" : views[0];
  return h(
    "div",
    { class: "section" },
    h(
      "div",
      { class: "row" },
      h("h3", {}, "Body"),
      h("span", { class: ["muted", "small"] }, format.size(body.bytes_total), body.truncated ? ", only its beginning is shown" : ""),
      h("span", { class: ["choice", "end"], role: "group", "aria-label": "How the body is shown" }, views.map((name) => h("button", { key: name, type: "button", "aria-pressed": name === view ? "true" : "false", onclick: () => onview(name) }, name))),
    ),
    h("pre", { class: ["bodyview", view === "hex" && "hex"], tabindex: 0, "aria-label": "Body" }, shown(body, view, () => (view === "hex" ? hex(bytesOf(body)) : view === "JSON" ? colored(tree) : text || h("span", { class: "muted" }, "empty")))),
  );
}

const trees = new WeakMap();

/** undefined: it is no JSON. */
function treeOf(body, text) {
  if (!trees.has(body)) trees.set(body, text === null ? undefined : parsed(text, body.truncated));
  return trees.get(body);
}

function parsed(text, truncated) {
  if (truncated || text.length > JSON_CHARS_MAX || !/^\s*[{[]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    // Looks like JSON, but is not: the view is left out.
    return undefined;
  }
}

/** Indented, with a class per kind of token. */
function colored(tree) {
  const tokens = JSON.stringify(tree, null, 2).split(/("(?:[^"\\]|\\.)*"(?:\s*:)?|\btrue\b|\bfalse\b|\bnull\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/);
  return tokens.map((token, at) => {
    if (at % 2 === 0) return token;
    if (token.endsWith(":")) return h("span", { class: "json-key" }, token);
    if (token.startsWith('"')) return h("span", { class: "json-text" }, token);
    return h("span", { class: /^[tfn]/.test(token) ? "json-word" : "json-number" }, token);
  });
}

function bytesOf(body) {
  if (body.encoding === "base64") return Uint8Array.from(atob(body.data ?? ""), (char) => char.charCodeAt(0));
  return new TextEncoder().encode(body.text ?? "");
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES_MAX); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const pairs = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = `${pairs.slice(0, 8).join(" ")}  ${pairs.slice(8).join(" ")}`.padEnd(49);
    const right = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left} ${right}`);
  }
  if (bytes.length > HEX_BYTES_MAX) lines.push(`… and ${format.size(bytes.length - HEX_BYTES_MAX)} more`);
  return lines.join("\n") || "empty";
}
