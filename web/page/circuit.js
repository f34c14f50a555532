/**
 * A circuit in space, to be turned, filtered and coloured. The same module draws what a gateway serves under and what is
 * in a file of its own; it asks nobody for anything.
 *
 * @typedef {object} Drawing columns, one entry for each node or edge
 * @property {string} name
 * @property {string} id
 * @property {string} signed who signed it, or that nobody did
 * @property {string[]} facts lines about the whole
 * @property {string[]} blocks
 * @property {string[]} kinds
 * @property {string[]} formats
 * @property {string[]} families
 * @property {{names: string[], kind: number[], format: number[], computes: number[], family: number[], kernel: string[], block: number[],
 *   weights: string[]}} nodes
 * @property {{start: number[], end: number[], format: number[], width: number[]}} edges
 */

import { placed } from "./cards.js";
import { el, put, say, set } from "./dom.js";
import { Camera, Screen, frame } from "./space.js";

/** Far enough apart for eyes that see red and green alike, on a light ground and on a dark one. */
const COLOURS = [
  "#0f766e", "#c2410c", "#3b6fb6", "#b7791f", "#7c3aed", "#be185d", "#4d7c0f", "#0891b2", "#92400e", "#6b7280",
  "#dc2626", "#1d4ed8", "#a21caf", "#15803d", "#ca8a04", "#475569",
];
/** What a picture may take while it moves, in milliseconds: fewer edges are drawn until it does. */
const SMOOTH_MS = [12, 36];
const FEWEST = 500;
const SETTLE_MS = 120;
const WAYS = [
  { key: "kind", label: "layer kind", words: "kinds" },
  { key: "format", label: "precision", words: "formats" },
  { key: "family", label: "kernel family", words: "families" },
];

export class CircuitView {
  /** @param {Drawing} drawing */
  constructor(drawing) {
    this.drawing = drawing;
    this.cloud = placed(drawing);
    this.count = drawing.nodes.names.length;
    this.screen = new Screen(this.count);
    this.camera = new Camera();
    this.seen = new Uint8Array(this.count).fill(1);
    this.way = WAYS[0];
    /** @type {Record<string, Set<number>>} what is left out, by way of colouring */
    this.left = { kind: new Set(), format: new Set(), family: new Set() };
    this.chosen = -1;
    this.words = "";
    this.layers = [0, Math.max(drawing.blocks.length - 1, 0)];
    this.moving = 0;
    this.asked = false;
    this.most = Math.max(drawing.edges.start.length, FEWEST);
    this.budget = Math.min(this.most, 8000);
    /** How many nodes are shown. */
    this.shown = 0;
    /** Milliseconds that the last picture took. */
    this.took = 0;
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": this.#about() });
    this.tip = el("p", { class: "tip", hidden: true });
    this.legend = el("div", { class: "legend" });
    this.panel = el("section", { class: "node", "aria-label": "Node" });
    this.element = el("div", { class: "circuit" }, this.#side(), el("div", { class: "stage" }, this.canvas, this.tip));
    this.#listen();
    this.#filter();
    frame(this.camera, this.cloud, this.seen);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  #about() {
    const { nodes, edges, blocks } = this.drawing;
    return `Circuit of ${this.drawing.name}: ${nodes.names.length} nodes, ${edges.start.length} edges, ${blocks.length} layers`;
  }

  #side() {
    const { drawing } = this;
    const ways = WAYS.map((way) =>
      el("label", {}, el("input", {
        type: "radio", name: "way", value: way.key, checked: way === this.way,
        on: { change: () => { this.way = way; this.#legend(); this.draw(); } },
      }), ` ${way.label}`));
    const search = el("input", {
      type: "search", id: "find", placeholder: "part of a name",
      on: { input: () => { this.words = search.value.toLowerCase(); this.#filter(); frame(this.camera, this.cloud, this.seen); this.draw(); } },
    });
    const ends = [0, 1].map((which) => el("input", {
      type: "number", min: 0, max: Math.max(drawing.blocks.length - 1, 0), value: this.layers[which],
      "aria-label": which ? "to layer" : "from layer",
      on: { change: (/** @type {any} */ event) => { this.layers[which] = Number(event.target.value); this.#filter(); frame(this.camera, this.cloud, this.seen); this.draw(); } },
    }));
    const views = [["Turned", -0.6, 0.35], ["Front", 0, 0], ["Side", 1.5707, 0], ["Top", 0, 1.55]].map(([word, yaw, pitch]) =>
      el("button", { type: "button", on: { click: () => this.look(Number(yaw), Number(pitch)) } }, String(word)));
    this.#legend();
    return el("aside", {},
      el("h1", {}, drawing.name),
      el("p", { class: "mark" }, drawing.signed),
      el("p", {}, el("code", { class: "id" }, drawing.id)),
      el("ul", { class: "facts" }, ...drawing.facts.map((fact) => el("li", {}, fact))),
      el("fieldset", {}, el("legend", {}, "Colour by"), ...ways),
      this.legend,
      el("p", {}, el("label", { for: "find" }, "Find "), search),
      el("p", {}, "Layers ", ends[0], " to ", ends[1]),
      el("p", { class: "views" }, ...views),
      this.panel,
      el("p", { class: "quiet" }, "Drag turns, shift and drag moves, the wheel goes nearer. With the keyboard: arrows, + and -, n and p for the next and previous node."));
  }

  #legend() {
    const { nodes } = this.drawing;
    const words = /** @type {any} */ (this.drawing)[this.way.words];
    const column = /** @type {any} */ (nodes)[this.way.key];
    const counts = words.map(() => 0);
    for (const which of column) if (which >= 0) counts[which] += 1;
    set(this.legend, ...words.map((/** @type {string} */ word, /** @type {number} */ which) => {
      if (!counts[which]) return null;
      const patch = el("span", { class: "patch" });
      patch.style.background = COLOURS[which % COLOURS.length];
      const box = el("input", {
        type: "checkbox", checked: !this.left[this.way.key].has(which),
        on: { change: () => {
          if (box.checked) this.left[this.way.key].delete(which);
          else this.left[this.way.key].add(which);
          this.#filter();
        } },
      });
      return el("label", {}, box, patch, ` ${word} `, el("span", { class: "quiet" }, counts[which]));
    }));
  }

  #filter() {
    const { nodes } = this.drawing;
    this.shown = 0;
    for (let i = 0; i < this.count; i += 1) {
      const block = nodes.block[i];
      const here = (block < 0 || (block >= this.layers[0] && block <= this.layers[1]))
        && !this.left.kind.has(nodes.kind[i]) && !this.left.format.has(nodes.format[i]) && !this.left.family.has(nodes.family[i])
        && (!this.words || nodes.names[i].toLowerCase().includes(this.words));
      this.seen[i] = here ? 1 : 0;
      this.shown += this.seen[i];
    }
    say(`${this.shown} nodes shown`);
    this.element?.setAttribute("data-shown", String(this.shown));
    this.draw();
  }

  /** @param {number} yaw @param {number} pitch */
  look(yaw, pitch) {
    this.camera.yaw = yaw;
    this.camera.pitch = pitch;
    frame(this.camera, this.cloud, this.seen);
    this.draw();
  }

  // --- what the reader does

  #listen() {
    const { canvas } = this;
    /** @type {Map<number, [number, number]>} */
    const fingers = new Map();
    let travelled = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      travelled = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const was = fingers.get(event.pointerId);
      if (!was) {
        this.#hover(event.offsetX, event.offsetY);
        return;
      }
      const [dx, dy] = [event.clientX - was[0], event.clientY - was[1]];
      travelled += Math.abs(dx) + Math.abs(dy);
      if (fingers.size === 2) {
        const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1] ?? was;
        const [before, now] = [Math.hypot(was[0] - other[0], was[1] - other[1]), Math.hypot(event.clientX - other[0], event.clientY - other[1])];
        this.camera.zoom(before / Math.max(now, 1));
      } else if (event.shiftKey || event.buttons === 2) this.camera.pan(dx / canvas.clientHeight, dy / canvas.clientHeight);
      else this.camera.orbit(-dx * 0.006, dy * 0.006);
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      this.#move();
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, (/** @type {any} */ event) => {
        fingers.delete(event.pointerId);
        if (end === "pointerup" && travelled < 4) this.choose(this.screen.at(event.offsetX, event.offsetY, this.seen, 14));
      });
    }
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.camera.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.0015))));
      this.#move();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const step = 0.12;
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowLeft: () => this.camera.orbit(-step, 0),
      ArrowRight: () => this.camera.orbit(step, 0),
      ArrowUp: () => this.camera.orbit(0, step),
      ArrowDown: () => this.camera.orbit(0, -step),
      "+": () => this.camera.zoom(0.85),
      "-": () => this.camera.zoom(1.18),
      n: () => this.choose(this.#next(1)),
      p: () => this.choose(this.#next(-1)),
      Escape: () => this.choose(-1),
    };
    if (!Object.hasOwn(acts, event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[event.key]();
    this.#move();
  }

  /** @param {number} step */
  #next(step) {
    for (let i = this.chosen + step; i >= 0 && i < this.count; i += step) if (this.seen[i]) return i;
    return this.chosen;
  }

  /** @param {number} x @param {number} y */
  #hover(x, y) {
    const node = this.screen.at(x, y, this.seen, 12);
    this.tip.hidden = node < 0;
    if (node < 0) return;
    set(this.tip, this.#told(node));
    this.tip.style.left = `${Math.min(x + 14, this.canvas.clientWidth - 240)}px`;
    this.tip.style.top = `${y + 14}px`;
  }

  /** @param {number} node */
  #told(node) {
    const { nodes, kinds, formats } = this.drawing;
    return `${nodes.names[node]}: ${kinds[nodes.kind[node]]}, computes in ${formats[nodes.computes[node]]}`;
  }

  /** Show all that is known of a node. @param {number} node -1: of none */
  choose(node) {
    this.chosen = node;
    const { nodes, edges, kinds, formats, families, blocks } = this.drawing;
    if (node < 0) {
      set(this.panel);
      this.draw();
      return;
    }
    const rows = [
      ["kind", kinds[nodes.kind[node]]],
      ["computes in", formats[nodes.computes[node]]],
      ["layer", nodes.block[node] < 0 ? "none" : blocks[nodes.block[node]]],
      ["kernel", nodes.kernel[node] || "none"],
      ["family", nodes.family[node] < 0 ? "none" : families[nodes.family[node]]],
      ["weights", nodes.weights[node] || "none"],
    ];
    set(this.panel, el("h2", {}, nodes.names[node]), el("dl", {}, ...rows.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)])));
    for (const [title, own, other] of [["From", edges.end, edges.start], ["To", edges.start, edges.end]]) {
      const list = el("ul", {});
      const column = /** @type {number[]} */ (own);
      for (let i = 0; i < column.length; i += 1) {
        if (column[i] !== node) continue;
        const at = /** @type {number[]} */ (other)[i];
        put(list, el("li", {}, el("button", { type: "button", class: "link", on: { click: () => this.choose(at) } }, nodes.names[at]), ` ${edges.width[i]} in ${formats[edges.format[i]]}`));
      }
      if (list.childElementCount) put(this.panel, el("h3", {}, String(title)), list);
    }
    this.panel.scrollIntoView({ block: "nearest" });
    say(this.#told(node));
    this.draw();
  }

  #move() {
    this.moving = performance.now();
    this.draw();
  }

  // --- the picture

  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      const began = performance.now();
      const moving = began - this.moving < SETTLE_MS;
      this.#paint(moving);
      this.took = performance.now() - began;
      this.element.setAttribute("data-took", this.took.toFixed(1));
      if (moving && this.took > SMOOTH_MS[1]) this.budget = Math.max(FEWEST, this.budget / 2);
      else if (moving && this.took < SMOOTH_MS[0]) this.budget = Math.min(this.most, this.budget * 1.5);
      if (moving) setTimeout(() => this.draw(), SETTLE_MS);
      else this.element.setAttribute("data-drawn", String(Number(this.element.getAttribute("data-drawn") ?? 0) + 1));
    });
  }

  /** @param {boolean} moving some nodes and edges are left out then, where there are many */
  #paint(moving) {
    const { canvas } = this;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.screen.project(this.cloud, this.camera, width, height);
    this.#paintEdges(pen, moving);
    this.#paintNodes(pen, width, height, moving);
  }

  /** @param {CanvasRenderingContext2D} pen @param {boolean} moving */
  #paintEdges(pen, moving) {
    const { edges, nodes } = this.drawing;
    const { seen, screen, chosen } = this;
    const count = edges.start.length;
    const step = this.#step(count, moving);
    const column = this.way.key === "format" ? edges.format : /** @type {any} */ (nodes)[this.way.key];
    /** @type {Map<number, Path2D>} */
    const paths = new Map();
    const near = new Path2D();
    for (let i = 0; i < count; i += step) {
      const [start, end] = [edges.start[i], edges.end[i]];
      if (!seen[start] || !seen[end] || screen.scale[start] === 0 || screen.scale[end] === 0) continue;
      const own = chosen >= 0 && (start === chosen || end === chosen);
      const colour = this.way.key === "format" ? edges.format[i] : column[end];
      let path = own ? near : paths.get(colour);
      if (!path) paths.set(colour, path = new Path2D());
      path.moveTo(screen.x[start], screen.y[start]);
      path.lineTo(screen.x[end], screen.y[end]);
    }
    pen.lineWidth = 1;
    pen.globalAlpha = count > 4000 ? 0.3 : 0.55;
    for (const [colour, path] of paths) {
      pen.strokeStyle = colour < 0 ? "#8a94a0" : COLOURS[colour % COLOURS.length];
      pen.stroke(path);
    }
    pen.globalAlpha = 1;
    if (chosen >= 0) {
      pen.lineWidth = 2.5;
      pen.strokeStyle = "#e11d48";
      pen.stroke(near);
    }
  }

  /** Every how many-th of so many is drawn: all, unless it moves and more are shown than can be drawn in time.
   * @param {number} count @param {boolean} moving @returns {number} */
  #step(count, moving) {
    return moving && this.shown > this.budget ? Math.max(1, Math.ceil(count / this.budget)) : 1;
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {boolean} moving */
  #paintNodes(pen, width, height, moving) {
    const { seen, screen, chosen } = this;
    const column = /** @type {any} */ (this.drawing.nodes)[this.way.key];
    /** @type {number[][]} */
    const groups = COLOURS.map(() => []);
    const step = this.#step(this.count, moving);
    for (let i = 0; i < this.count; i += step) {
      if (!seen[i] || screen.scale[i] === 0) continue;
      if (screen.x[i] < -20 || screen.y[i] < -20 || screen.x[i] > width + 20 || screen.y[i] > height + 20) continue;
      groups[Math.max(column[i], 0) % COLOURS.length].push(i);
    }
    groups.forEach((group, which) => {
      pen.fillStyle = COLOURS[which];
      for (const i of group) {
        const size = Math.max(1.5, Math.min(12, screen.scale[i] * 0.34));
        pen.fillRect(screen.x[i] - size / 2, screen.y[i] - size / 2, size, size);
      }
    });
    if (chosen >= 0 && screen.scale[chosen]) {
      pen.strokeStyle = "#e11d48";
      pen.lineWidth = 3;
      pen.strokeRect(screen.x[chosen] - 9, screen.y[chosen] - 9, 18, 18);
    }
  }
}
