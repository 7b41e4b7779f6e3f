// The window onto a large flow map: how large the map is drawn, and which part of it is seen. Numbers only. Without a zoom the
// whole map is drawn as wide as there is room; with one there is a window of its own, whose part is moved by dragging, by
// keys, and to whichever node has the focus.

const STEP = 1.4;
const LEAST = 0.2;
const MOST = 4;
const MARGIN = 24;
/** Part of the window that a key moves it by. */
const STRIDE = 0.25;

const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Zoom {
  constructor() {
    this.scale = null;
    this.x = 0;
    this.y = 0;
    this.layout = null;
    this.high = 0;
    this.dragged = null;
  }

  get on() {
    return this.scale !== null;
  }

  /** The part that is seen, in the units of the map. */
  part() {
    return { x: this.x, y: this.y, width: this.layout.width / this.scale, height: this.high / this.scale };
  }

  /** `layout`: what is drawn now; `high`: pixels that a window may be high. */
  show(layout, high) {
    this.layout = layout;
    this.high = Math.min(high, Math.max(60, layout.height));
    if (this.on) this.keepInside();
  }

  /** One step nearer (1) or farther (-1), around a point of the map, or the middle. */
  step(way, at = null) {
    if (!this.layout) return;
    if (!this.on) Object.assign(this, { scale: 1, x: 0, y: 0 });
    const before = this.part();
    const [px, py] = at ?? [before.x + before.width / 2, before.y + before.height / 2];
    this.scale = Math.min(MOST, Math.max(LEAST, this.scale * STEP ** way));
    const after = this.part();
    this.x = px - ((px - before.x) / before.width) * after.width;
    this.y = py - ((py - before.y) / before.height) * after.height;
    this.keepInside();
  }

  /** All of it in one window. */
  fit() {
    if (!this.layout) return;
    this.scale = Math.min(1, Math.max(LEAST, this.high / Math.max(60, this.layout.height)));
    Object.assign(this, { x: 0, y: 0 });
    this.keepInside();
  }

  reset() {
    Object.assign(this, { scale: null, x: 0, y: 0, dragged: null });
  }

  /** Move the window by this part of itself. */
  move(dx, dy) {
    const part = this.part();
    this.x += dx * part.width;
    this.y += dy * part.height;
    this.keepInside();
  }

  /** Move it as little as needed to see a place: {x, y, width, height}. */
  reveal(place) {
    if (!this.on || !place) return;
    const part = this.part();
    // Of a place that is larger than the window its beginning is seen.
    const along = (from, size, start, length) => (start - MARGIN < from || length + 2 * MARGIN > size ? start - MARGIN : start + length + MARGIN > from + size ? start + length + MARGIN - size : from);
    this.x = along(this.x, part.width, place.x, place.width);
    this.y = along(this.y, part.height, place.y, place.height);
    this.keepInside();
  }

  /** A map smaller than its window stands in the middle of its width, and at the top. */
  keepInside() {
    const { width, height } = this.part();
    const most = { x: this.layout.width - width, y: Math.max(60, this.layout.height) - height };
    this.x = most.x < 0 ? most.x / 2 : Math.min(most.x, Math.max(0, this.x));
    this.y = most.y < 0 ? 0 : Math.min(most.y, Math.max(0, this.y));
  }

  /** Whether a key meant the window. */
  key(event) {
    if (event.key === "+" || event.key === "=") this.step(1);
    else if (event.key === "-") this.step(-1);
    else if (event.key === "0") this.reset();
    else if (event.shiftKey && event.key in WAYS && this.on) this.move(...WAYS[event.key].map((way) => way * STRIDE));
    else return false;
    return true;
  }

  // Dragging: a short one is a click.

  grab(event) {
    if (this.on && event.button === 0) this.dragged = { at: [event.clientX, event.clientY], far: false };
  }

  drag(event, svg) {
    if (!this.dragged) return false;
    const [x, y] = this.dragged.at;
    if (!this.dragged.far && Math.hypot(event.clientX - x, event.clientY - y) < 5) return false;
    if (!this.dragged.far) svg.setPointerCapture?.(event.pointerId);
    const wide = svg.clientWidth || 1;
    const unit = this.part().width / wide;
    this.x -= (event.clientX - x) * unit;
    this.y -= (event.clientY - y) * unit;
    this.dragged = { at: [event.clientX, event.clientY], far: true };
    this.keepInside();
    return true;
  }

  /** Whether it was more than a click. */
  drop() {
    const far = this.dragged?.far ?? false;
    this.dragged = null;
    return far;
  }
}
