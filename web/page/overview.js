/** The first view: how it is now, what the newest receipts add up to, and the newest of them. */

import { TimeChart, bars, patterns } from "./charts.js";
import { el, set } from "./dom.js";
import { ReceiptList } from "./list.js";
import { briefJoules, counted, grouped, integer, perToken, scaled } from "./numbers.js";
import { Power } from "./power.js";

const WINDOWS = /** @type {const} */ ([[120, "2 min"], [900, "15 min"], [3600, "1 h"], [86400, "24 h"], [604800, "7 days"]]);
const BASES = ["measured", "allocated", "modelled"];
const REFRESH_MS = 10000;
const LEAST_MS = 4000; // sums cost the gateway more than a look at its newest receipts
const SHOWN = 8;
const LATEST = 8;

export class Overview {
  title = "Overview";

  /** @param {import("./main.js").House} house */
  constructor(house) {
    this.api = house.api;
    this.guard = house.guard;
    this.refreshed = 0;
    this.power = new Power();
    this.window = 900;
    this.tiles = el("dl", { class: "tiles" });
    this.throughput = new TimeChart({ title: "Throughput", unit: "tok/s", none: "No serve ended in this time." });
    this.watts = new TimeChart({ title: "Power", unit: "W", none: "No meter gave a figure in this time." });
    set(this.throughput.note, "Tokens of output. A serve counts evenly from its beginning to its end, once it is sealed.");
    this.models = el("div");
    this.callers = el("div");
    this.caveat = el("p", { class: "note" });
    this.list = new ReceiptList(house, LATEST);
    this.element = el(
      "div",
      {},
      patterns(),
      el(
        "div",
        { class: "head" },
        el("h1", { tabindex: "-1" }, "Overview"),
        this.#windows(),
      ),
      this.tiles,
      el("div", { class: "pair" }, this.throughput.element, this.watts.element),
      el(
        "div",
        { class: "pair" },
        el("section", { class: "card" }, el("h2", {}, "Energy by model"), this.models),
        el("section", { class: "card" }, el("h2", {}, "Energy by caller"), this.callers),
      ),
      this.caveat,
      el("div", { class: "head" }, el("h2", {}, "Newest receipts"), el("a", { href: "#/receipts" }, "All of them, and search")),
      this.list.element,
    );
  }

  #windows() {
    return el(
      "fieldset",
      { class: "windows" },
      el("legend", { class: "unseen" }, "Over the last"),
      ...WINDOWS.map(([seconds, label]) =>
        el(
          "label",
          {},
          el("input", {
            type: "radio", name: "window", value: seconds, checked: seconds === this.window,
            on: { change: () => { this.window = seconds; this.guard(this.refresh()); } },
          }),
          el("span", {}, label),
        ),
      ),
    );
  }

  async show() {
    await Promise.all([this.refresh(), this.list.load({})]);
  }

  /** @param {any} live every other second */
  async tick(live) {
    this.live = live;
    this.power.add(live, Number(integer(live.at_ns) / 1000000n) - 3600000);
    this.#now();
    const grown = this.list.count !== undefined && live.receipts > this.list.count;
    // time goes on without receipts too
    if (Date.now() - this.refreshed > (grown ? LEAST_MS : REFRESH_MS)) await this.refresh();
    else this.#draw();
    if (grown) await this.list.renew();
  }

  async refresh() {
    const { window } = this;
    this.refreshed = Date.now();
    const told = await this.api.json("mesh/v1/summary", { window_s: window });
    if (window !== this.window) return; // another was chosen meanwhile
    this.told = told;
    set(this.models, ...this.#groups(told.by_model, told.by_model_left_out, "model"));
    set(this.callers, ...this.#groups(told.by_caller, told.by_caller_left_out, "caller"));
    set(
      this.caveat,
      "Sums are as this gateway adds its receipts up; each receipt is checked here.",
      told.complete ? "" : ` They begin at number ${grouped(told.from_seq)}: older ones were not added.`,
    );
    this.#now();
    this.#draw();
  }

  #now() {
    const { live, told } = this;
    /** @type {[string, string, string][]} */
    const tiles = [];
    if (live) {
      const sum = (/** @type {string} */ what) => live.backends.reduce((/** @type {number} */ n, /** @type {any} */ it) => n + it[what], 0);
      tiles.push(["Running", grouped(sum("running")), `of ${counted(sum("slots"), "slot")}, ${grouped(sum("waiting"))} waiting`]);
      tiles.push(["Power now", this.power.now === undefined ? "not known" : scaled(this.power.now, "W"), meterWords(live.meters)]);
    }
    if (told) {
      const { total } = told;
      tiles.push(["Tokens out", total.tokens_out === undefined ? (total.serves ? "not counted" : "none") : grouped(total.tokens_out), `in ${counted(total.serves, "serve")} of ${windowWords(this.window)}`]);
      tiles.push(["Per token", total.tokens ? scaled(Number(integer(total.token_uj)) / 1e6 / total.tokens, "J") : "not known", total.tokens ? "accepted tokens of serves with a figure" : "no serve with a figure"]);
    }
    if (live) tiles.push(["Receipts", grouped(live.receipts), "in the ledger"]);
    set(this.tiles, ...tiles.map(([label, value, more]) => el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, el("strong", {}, value), el("span", {}, more)))));
  }

  #draw() {
    const { told } = this;
    if (!told) return;
    const from = Number(integer(told.from_ns) / 1000000n);
    const step = told.step_s * 1000;
    const until = from + told.series.length * step;
    const points = (/** @type {string} */ field) => told.series.map((/** @type {any} */ it, /** @type {number} */ i) => ({ at: from + i * step, value: it[field] }));
    const nothing = told.total.serves === 0;
    this.throughput.show([{ points: nothing ? [] : points("tokens_per_s"), step, kind: "area", label: "tokens out" }], from, until);
    const metered = this.power.points.filter(({ at }) => at >= from && at <= until + step);
    this.watts.show(
      [
        { points: points("watts"), step, kind: "area", label: "of the serves, by their receipts" },
        ...(metered.some(({ value }) => value !== undefined) ? [{ points: metered, kind: /** @type {const} */ ("line"), label: "of the meters, since this page was opened" }] : []),
      ],
      from,
      Math.max(until, metered.at(-1)?.at ?? 0),
    );
    const without = (told.total.bases.absent ?? 0) + (told.total.bases.unresolved ?? 0);
    this.watts.note.textContent = without ? `${counted(without, "serve")} of ${grouped(told.total.serves)} without a figure: not in here.` : "";
  }

  /** @param {any[]} groups @param {number|undefined} leftOut @param {string} what */
  #groups(groups, leftOut, what) {
    if (!groups.length) return [el("p", { class: "empty" }, "No serve ended in this time.")];
    const rest = groups.length - SHOWN + (leftOut ?? 0);
    return [
      bars(groups.slice(0, SHOWN).map(line)),
      this.#key(groups),
      rest > 0 ? el("p", { class: "note" }, `and ${counted(rest, what)} that spent less`) : null,
    ];
  }

  /** @param {any[]} groups */
  #key(groups) {
    const there = BASES.filter((basis) => groups.some(({ uj }) => basis in uj));
    return there.length ? el("p", { class: "legend" }, ...there.map((basis) => el("span", { class: `key ${basis}` }, basis))) : null;
  }
}

/** @param {any} group @returns {{name: string, parts: {basis: string, value: number}[], value: string, more: string}} */
function line({ name, serves, bases, uj, tokens, token_uj }) {
  const parts = BASES.filter((basis) => basis in uj).map((basis) => ({ basis, value: Number(uj[basis]) }));
  const without = (bases.absent ?? 0) + (bases.unresolved ?? 0);
  const sum = BASES.reduce((total, basis) => total + integer(uj[basis] ?? 0), 0n);
  const more = [counted(serves, "serve")];
  if (tokens) more.push(`${perToken(integer(token_uj), tokens)} J per token`);
  if (without && without < serves) more.push(`${grouped(without)} without a figure`);
  return { name, parts, value: parts.length ? briefJoules(sum) : "no figure", more: more.join(", ") };
}

/** @param {any[]} meters */
function meterWords(meters) {
  if (!meters.length) return "no meter";
  const failed = meters.filter(({ uj }) => uj === undefined);
  if (failed.length) return `${failed.length} of ${counted(meters.length, "meter")} cannot be read`;
  const modelled = meters.filter((meter) => meter.modelled).length;
  if (!modelled) return `${counted(meters.length, "meter")}, measured`;
  return modelled === meters.length ? `${counted(meters.length, "meter")}, modelled: an estimate` : `${counted(meters.length, "meter")}, ${modelled} of them modelled`;
}

/** @param {number} seconds */
const windowWords = (seconds) => `the last ${WINDOWS.find(([each]) => each === seconds)?.[1]}`;
