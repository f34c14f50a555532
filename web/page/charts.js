/**
 * Charts in SVG. A value that is not known leaves a gap; it is never drawn as 0.
 *
 * @typedef {{at: number, value?: number}} Point `at` Unix milliseconds
 * @typedef {{points: Point[], step?: number, kind: "area"|"line", label: string}} Series `step` milliseconds that a point holds for
 */

import { el, name, set, svg } from "./dom.js";
import { clock, scaled } from "./numbers.js";

const HEIGHT = 190;
const MARGIN = { top: 12, right: 12, bottom: 24, left: 54 };
const MINUTE = 60000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880].map((minutes) => minutes * MINUTE);

/** @param {number} most @returns {number[]} about four round values from 0 up, the last at `most` or above */
export function ticks(most) {
  if (!(most > 0)) return [0, 1];
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999999) ?? 10);
  const count = Math.ceil(most / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** @param {number} from @param {number} until @param {number} room how many fit @returns {number[]} round times */
export function timeTicks(from, until, room) {
  const step = STEPS.find((each) => (until - from) / each <= room) ?? STEPS[STEPS.length - 1];
  const found = [];
  for (let at = Math.ceil(from / step) * step; at < until; at += step) found.push(at);
  return found;
}

/** @param {Point[]} points @returns {Point[][]} the runs of them that have a value */
export function runs(points) {
  /** @type {Point[][]} */
  const found = [];
  let open = false;
  for (const point of points) {
    if (point.value === undefined) open = false;
    else if (open) found[found.length - 1].push(point);
    else {
      found.push([point]);
      open = true;
    }
  }
  return found;
}

/** Values over time, to be read with the pointer or, when it has the focus, with the arrow keys. */
export class TimeChart {
  /** @param {{title: string, unit: string, none: string}} options `none` is said where there is no value at all */
  constructor({ title, unit, none }) {
    this.title = title;
    this.unit = unit;
    this.none = none;
    this.now = el("output", { class: "reading" });
    this.canvas = svg("svg", { class: "plot", role: "img", tabindex: "0", height: HEIGHT });
    this.legend = el("p", { class: "legend" });
    this.note = el("p", { class: "note" });
    this.element = el(
      "figure",
      { class: "card chart" },
      el("figcaption", {}, el("h2", {}, title), this.now),
      this.canvas,
      this.legend,
      this.note,
    );
    /** @type {Series[]} */
    this.series = [];
    this.from = 0;
    this.until = 1;
    /** @type {number|null} */
    this.cursor = null;
    this.width = 0;
    new ResizeObserver(() => this.#draw()).observe(this.element);
    this.canvas.addEventListener("pointermove", (event) => this.#point(/** @type {PointerEvent} */ (event)));
    this.canvas.addEventListener("pointerleave", () => this.#move(null));
    this.canvas.addEventListener("blur", () => this.#move(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(/** @type {KeyboardEvent} */ (event)));
  }

  /** @param {Series[]} series the first is what is read out first @param {number} from @param {number} until milliseconds */
  show(series, from, until) {
    this.series = series;
    this.from = from;
    this.until = until;
    this.#draw(true);
  }

  /** @param {number} at */
  #x(at) {
    return MARGIN.left + ((at - this.from) / (this.until - this.from)) * (this.width - MARGIN.left - MARGIN.right);
  }

  #draw(changed = false) {
    const width = this.canvas.clientWidth || this.element.clientWidth;
    if (!width || (!changed && width === this.width)) return;
    this.width = width;
    const values = this.series.flatMap(({ points }) => points.flatMap(({ value }) => (value === undefined ? [] : [value])));
    const marks = ticks(Math.max(0, ...values));
    const top = marks[marks.length - 1];
    const y = (/** @type {number} */ value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const times = timeTicks(this.from, this.until, Math.max(2, Math.floor(width / 90)));
    const days = this.until - this.from > 1440 * MINUTE;
    set(
      this.canvas,
      ...marks.map((mark) => svg("line", { class: mark === 0 ? "axis" : "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(mark), y2: y(mark) })),
      ...(values.length ? marks : []).map((mark) => svg("text", { class: "tick", x: MARGIN.left - 8, y: y(mark) + 4, "text-anchor": "end" }, scaled(mark, this.unit))),
      ...times.map((at) => svg("text", { class: "tick", x: this.#x(at), y: HEIGHT - 6, "text-anchor": "middle" }, clock(at, days))),
      ...this.series.flatMap((each, i) => this.#shapes(each, i, y)),
      values.length === 0 && svg("text", { class: "nothing", x: (width + MARGIN.left - MARGIN.right) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, this.none),
    );
    this.y = y;
    this.hair = svg("g", { class: "hair", "aria-hidden": "true" });
    this.canvas.append(this.hair);
    set(this.legend, ...(this.series.length > 1 ? this.series.map(({ label }, i) => el("span", { class: `key s${i}` }, label)) : []));
    this.canvas.setAttribute("aria-label", `${this.title}: ${values.length ? `${this.#last()}, at most ${scaled(Math.max(...values), this.unit)}. Arrow keys read single values.` : this.none}`);
    this.#move(this.cursor);
  }

  /** @param {Series} series @param {number} i @param {(value: number) => number} y @returns {SVGElement[]} */
  #shapes({ points, step = 0, kind }, i, y) {
    return runs(points).flatMap((run) => {
      // a step holds until the next one begins
      const corners = run.flatMap(({ at, value = 0 }) => (step ? [[at, value], [at + step, value]] : [[at, value]]));
      const line = corners.map(([at, value], n) => `${n ? "L" : "M"}${this.#x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const shapes = [svg("path", { class: `line s${i}`, d: line })];
      if (kind === "area") {
        const [first, last] = [corners[0][0], corners[corners.length - 1][0]];
        shapes.unshift(svg("path", { class: `area s${i}`, d: `${line}L${this.#x(last).toFixed(1)} ${y(0)}L${this.#x(first).toFixed(1)} ${y(0)}Z` }));
      }
      return shapes;
    });
  }

  /** @returns {string} */
  #last() {
    const last = this.series[0]?.points.findLast(({ value }) => value !== undefined);
    return last ? `last ${scaled(last.value ?? 0, this.unit)}` : "nothing yet";
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const points = this.series[0]?.points ?? [];
    const at = event.clientX - this.canvas.getBoundingClientRect().left;
    const share = (at - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
    const found = Math.floor(share * points.length);
    this.#move(found >= 0 && found < points.length ? found : null);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const last = (this.series[0]?.points.length ?? 0) - 1;
    /** @type {Record<string, number>} */
    const to = { ArrowLeft: (this.cursor ?? last + 1) - 1, ArrowRight: (this.cursor ?? -1) + 1, Home: 0, End: last };
    if (event.key === "Escape") this.#move(null);
    else if (event.key in to && last >= 0) this.#move(Math.max(0, Math.min(last, to[event.key])));
    else return;
    event.preventDefault();
  }

  /** @param {number|null} cursor which point of the first series is read */
  #move(cursor) {
    const [series] = this.series;
    const point = cursor === null ? undefined : series?.points[cursor];
    this.cursor = point ? cursor : null;
    if (!this.hair) return;
    this.hair.replaceChildren();
    if (!point) {
      this.now.textContent = "";
      return;
    }
    const x = this.#x(point.at + (series.step ?? 0) / 2);
    this.hair.append(svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    if (point.value !== undefined && this.y) this.hair.append(svg("circle", { cx: x, cy: this.y(point.value), r: 3.5 }));
    const value = point.value === undefined ? "not known" : scaled(point.value, this.unit);
    this.now.textContent = `${clock(point.at, this.until - this.from > 1440 * MINUTE)} UTC: ${value}`;
  }
}

/**
 * Lines with a bar each, cut by the basis of what it adds up.
 * @param {{name: string, parts: {basis: string, value: number}[], value: string, more: string}[]} lines `parts` empty:
 *   not known
 * @returns {HTMLElement}
 */
export function bars(lines) {
  const most = Math.max(0, ...lines.map(({ parts }) => parts.reduce((sum, { value }) => sum + value, 0)));
  return el(
    "ul",
    { class: "bars" },
    ...lines.map((line) => {
      let at = 0;
      const rects = line.parts.map(({ basis, value }) => {
        const width = most ? (100 * value) / most : 0;
        const rect = svg("rect", { class: basis, x: `${at}%`, y: 0, width: `${width}%`, height: 12 }, svg("title", {}, basis));
        at += width;
        return rect;
      });
      return el(
        "li",
        {},
        el("span", { class: "what" }, name(line.name)),
        el("span", { class: "value" }, line.value),
        svg("svg", { class: "bar", height: 12, "aria-hidden": "true" }, svg("rect", { class: "bed", x: 0, y: 0, width: "100%", height: 12 }), ...rects),
        el("span", { class: "more" }, line.more),
      );
    }),
  );
}

/** The patterns that bars of an estimate have, once in a page: a difference that needs no colour. */
export function patterns() {
  const stripes = (/** @type {string} */ basis) =>
    svg(
      "pattern",
      { id: `pattern-${basis}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { class: `ground ${basis}`, width: 6, height: 6 }),
      svg("line", { class: `stripe ${basis}`, x1: 0, x2: 0, y1: 0, y2: 6 }),
    );
  return svg("svg", { width: 0, height: 0, "aria-hidden": "true", class: "patterns" }, svg("defs", {}, stripes("modelled"), stripes("allocated")));
}
