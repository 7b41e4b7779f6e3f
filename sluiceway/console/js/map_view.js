// The flow map as part of a page: keeps the layout from update to update, follows chains, and shows what is picked in a
// panel beside it. Used by the overview and by the page of the map.

import { ask, ApiError } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { STATES, mark } from "./glyphs.js";
import { drawn } from "./map_drawing.js";
import { chosen, GROUP, grouped } from "./map_choice.js";
import { first, towards } from "./map_keys.js";
import { laidOut, NARROW } from "./map_layout.js";
import { LASTING_SECONDS } from "./overview_facts.js";
import { called, trimmed } from "./map_names.js";
import { panel } from "./map_panel.js";
import { Zoom } from "./map_zoom.js";

const ARROWS = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home"]);

/** Nodes that are asked for, of which some are shown: with their paths. */
const FEW = 150;
const MANY = 500;

let views_count = 0;

export class MapView {
  /** `context.redraw()` draws the page again, `context.soon()` asks again at once. */
  constructor(context, limit) {
    this.context = context;
    this.limit = limit;
    this.map = null;
    this.answer = null;
    /** Only nodes with this in their name, and their paths. */
    this.q = "";
    /** Groups that are open, and nodes that stay for a while. */
    this.open = new Set();
    this.stay = new Map();
    this.chain = null;
    this.picked = null;
    this.focused = null;
    this.layout = null;
    this.zoom = new Zoom();
    this.element = null;
    this.width = 0;
    /** The last pointer that was down moved the window: its click picks nothing. */
    this.wasDragged = false;
    this.events = this.listeners();
    /** Of its box: that of another page is never taken for it, and so is watched. */
    this.boxKey = `map ${views_count++}`;
    this.watcher = new ResizeObserver((entries) => {
      const width = Math.floor(entries[0].contentRect.width);
      if (Math.abs(width - this.width) > 1) {
        this.width = width;
        context.redraw();
      }
    });
  }

  close() {
    this.watcher.disconnect();
  }

  async load() {
    const [map, chain] = await Promise.all([ask("/map", { limit: this.limit <= 30 && !this.q ? FEW : MANY }), this.picked ? this.loadChain(this.picked) : null]);
    this.answer = trimmed(map);
    this.choose();
    if (this.picked && chain && chain.id === this.picked) this.chain = chain;
  }

  /** Of the last answer what is shown. */
  choose() {
    if (!this.answer) return;
    const all = this.answer.nodes.length > this.limit && !this.q ? grouped(this.answer, this.open) : this.answer;
    this.map = chosen(all, { limit: this.limit, stay: this.stay, now: performance.now() / 1000, q: this.q });
  }

  /** Show only what has this in its name, and its paths. */
  filter(q) {
    this.q = q;
    this.stay.clear();
    this.layout = null;
    this.choose();
    this.context.redraw();
    this.context.soon();
  }

  /** Open a group, or (null) close all. */
  openGroup(id) {
    if (id === null) this.open.clear();
    else this.open.add(id);
    this.stay.clear();
    this.layout = null;
    this.choose();
    this.context.redraw();
  }

  async loadChain(id) {
    try {
      return { ...(await ask("/chains", { id })), id };
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return { id, gone: true, steps: [], words: "", remedy: "" };
      throw error;
    }
  }

  /** Open the panel of a node. */
  async pick(id) {
    if (id.startsWith(GROUP)) return this.openGroup(id);
    this.picked = id;
    this.focused = id;
    this.chain = null;
    this.context.redraw();
    this.context.soon();
  }

  dismiss() {
    const id = this.picked;
    this.picked = null;
    this.chain = null;
    this.context.redraw();
    this.focusOn(id);
  }

  focusOn(id) {
    const found = [...(this.element?.querySelectorAll(".node") ?? [])].find((node) => node.dataset.id === id);
    if (!found) return;
    this.focused = id;
    for (const other of this.element.querySelectorAll(".node")) other.setAttribute("tabindex", other === found ? "0" : "-1");
    found.focus({ preventScroll: this.zoom.on });
    this.reveal(id);
  }

  /** Move the window, if there is one, to a node. */
  reveal(id) {
    if (!this.zoom.on) return;
    this.zoom.reveal(this.layout?.nodes.get(id));
    this.context.redraw();
  }

  /** Enter on what is open already goes on to what it waits for. */
  follow(id) {
    const steps = this.chain?.steps ?? [];
    const at = steps.findIndex((step) => step.id === id);
    const onward = this.picked === null ? null : steps.slice(at + 1).find((step) => step.id !== id);
    if (this.picked !== null && at >= 0 && onward) {
      this.focusOn(onward.id);
    } else if (this.picked !== id && at < 0) {
      this.pick(id);
    }
  }

  key(event, id) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (!this.layout?.narrow && this.zoom.key(event)) {
      this.context.redraw();
    } else if (ARROWS.has(event.key)) {
      const onward = towards(this.layout, id, event.key);
      if (onward) this.focusOn(onward);
    } else if (event.key === "Enter" || event.key === " ") {
      this.follow(id);
    } else if (event.key === "Escape" && this.picked) {
      this.dismiss();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** A key anywhere on the page. */
  pageKey(event) {
    if (event.key === "Escape" && this.picked) this.dismiss();
  }

  draw() {
    const steps = this.chain?.steps ?? [];
    const lit = this.picked ? (steps.length ? steps.map((step) => step.id) : [this.picked]) : [];
    return h("div", { key: this.boxKey, class: ["map-box", this.picked && "has-panel"] }, this.card(lit), this.picked && this.side());
  }

  /** What a step of a chain, or a bottleneck, is called: as in the map. */
  nameOf(step) {
    const node = this.map?.nodes.find((one) => one.id === step.id);
    return node ? called(node) : step.title;
  }

  /** Those whom others wait for and who wait for nobody themselves: not for a moment, as in any busy broker. */
  culprits() {
    const waits = this.map.edges.filter((edge) => edge.kind !== "flow" && edge.from !== edge.to);
    const waiting = new Set(waits.map((edge) => edge.from));
    return new Set(this.map.nodes.filter((node) => node.senders_seconds >= LASTING_SECONDS && !waiting.has(node.id)).map((node) => node.id));
  }

  card(lit) {
    return h(
      "section",
      { class: "card", "aria-label": "Flow map" },
      h(
        "header",
        {},
        h("h2", {}, "What is blocked by what"),
        h("span", { class: "hint" }, "Open a node to follow what it waits for"),
        h(
          "span",
          { class: "end" },
          this.zooming(),
          this.open.size > 0 && h("button", { class: ["button", "tiny"], type: "button", onclick: () => this.openGroup(null) }, "Close groups"),
          h("input", { class: "search", type: "search", value: this.q, placeholder: "Find in the map", "aria-label": "Find in the map", oninput: (event) => this.filter(event.target.value) }),
        ),
      ),
      h(
        "div",
        {
          class: "map",
          ref: (element) => {
            this.element = element;
            // A page that was an error in between has another one; the old one would be seen as 0 wide.
            this.watcher.disconnect();
            this.watcher.observe(element);
          },
        },
        this.map && this.width > 0 ? this.canvas(lit) : h("p", { class: "empty" }, "Drawing the map …"),
      ),
      this.foot(),
    );
  }

  /** Buttons; a phone's list needs none. They are there as soon as the map is, or it would move under a click. */
  zooming() {
    if (this.width < NARROW) return null;
    const button = (sign, words, act, disabled = false) =>
      h("button", { type: "button", "aria-label": words, title: words, disabled, onclick: () => (act(), this.context.redraw()) }, sign);
    return h(
      "span",
      { class: ["choice", "zoom"], role: "group", "aria-label": "Size of the map" },
      button("−", "Zoom out", () => this.zoom.step(-1)),
      button("+", "Zoom in", () => this.zoom.step(1)),
      button("Fit", "Show all of the map", () => this.zoom.fit()),
      button("1:1", "Show the map as wide as the page", () => this.zoom.reset(), !this.zoom.on),
    );
  }

  /** Ctrl and the wheel, which is a pinch on a touch pad too, zoom where the pointer is. */
  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = event.currentTarget.getBoundingClientRect();
    const part = this.zoom.on ? this.zoom.part() : { x: 0, y: 0, width: this.layout.width, height: this.layout.height };
    const at = [part.x + ((event.clientX - box.left) / box.width) * part.width, part.y + ((event.clientY - box.top) / box.height) * part.height];
    this.zoom.step(event.deltaY < 0 ? 1 : -1, at);
    this.context.redraw();
  }

  canvas(lit) {
    if (!this.map.nodes.length && this.q) return h("p", { class: "empty" }, `Nothing on the map has «${this.q}» in its name.`);
    if (!this.map.nodes.length) return h("p", { class: "empty" }, "Nothing is connected yet, and there are no destinations. They show up here by themselves.");
    this.layout = laidOut(this.map, this.width, this.layout?.narrow === this.width < NARROW ? this.layout : null);
    if (!this.focused || !this.layout.nodes.has(this.focused)) this.focused = first(this.layout);
    if (this.layout.narrow) this.zoom.reset();
    this.zoom.show(this.layout, Math.round(Math.min(innerHeight * 0.75, 760)));
    return drawn(this.layout, {
      part: this.zoom.on ? this.zoom.part() : null,
      events: this.layout.narrow ? {} : this.events,
      picked: this.picked,
      lit,
      culprits: this.culprits(),
      focusable: this.focused,
      onpick: (id) => !this.wasDragged && this.pick(id),
      onkey: (event, id) => this.key(event, id),
      onfocus: (id) => {
        this.reveal(id);
        if (this.focused === id) return;
        this.focused = id;
        this.context.redraw();
      },
    });
  }

  /** Of the canvas. */
  listeners() {
    return {
      onwheel: (event) => this.wheel(event),
      onpointerdown: (event) => {
        this.wasDragged = false;
        this.zoom.grab(event);
      },
      onpointermove: (event) => this.zoom.drag(event, event.currentTarget) && this.context.redraw(),
      onpointerup: () => {
        this.wasDragged = this.zoom.drop();
      },
      onpointercancel: () => this.zoom.drop(),
    };
  }

  foot() {
    const tally = this.map?.omitted?.nodes_count ?? 0;
    const edge = (kind, width) => h("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" }, h("path", { class: ["edge", ...kind.split(" ")], d: "M1 6h28", "stroke-width": width }));
    return h(
      "footer",
      { class: "map-foot" },
      STATES.map((state) => h("span", { key: state, class: ["sample", `is-${state}`] }, mark(state), state)),
      h("span", { class: "sample" }, edge("flow", 5), "flow, wider is faster"),
      h("span", { class: "sample" }, edge("block", 2), "waits, since when"),
      tally > 0 && h("span", { class: "end" }, `and ${format.count(tally)} more that are not blocked`),
    );
  }

  side() {
    return panel({
      node: this.layout?.nodes.get(this.picked)?.node ?? this.map?.nodes.find((node) => node.id === this.picked) ?? null,
      chain: this.chain,
      context: this.context,
      nameOf: (step) => this.nameOf(step),
      onclose: () => this.dismiss(),
      onstep: (id) => this.focusOn(id),
    });
  }
}
