/**
 * Power out of what the meters counted: a difference over the time between two readings, as the gateway's clock has it.
 *
 * @typedef {{domain: string, method: string, modelled: boolean, uj?: number|string, reason?: string, read_ns: number|string}} Meter
 * @typedef {{at_ns: string|number, epoch: string, meters: Meter[]}} Live
 */

import { integer } from "./numbers.js";

const SPAN_NS = 3000000000n; // shorter, and one reading of an idle meter is most of what is seen

export class Power {
  /** @type {Live[]} */
  #seen = [];
  /** Watts of all meters together, since the page was opened. @type {import("./charts.js").Point[]} */
  points = [];

  /** @param {Live} live @param {number} from milliseconds; what is older is dropped */
  add(live, from) {
    if (this.#seen.length && this.#seen[0].epoch !== live.epoch) this.#seen = [];
    this.#seen.push(live);
    while (this.#seen.length > 2 && integer(live.at_ns) - integer(this.#seen[1].at_ns) >= SPAN_NS) this.#seen.shift();
    const at = Number(integer(live.at_ns) / 1000000n);
    const watts = live.meters.length ? live.meters.map((meter) => this.#watts(meter)) : [undefined];
    // a sum with a part that is not known is not known
    const value = watts.reduce((sum, each) => (sum === undefined || each === undefined ? undefined : sum + each), 0);
    this.points.push({ at, value });
    this.points = this.points.filter((point) => point.at >= from);
  }

  /** @returns {number|undefined} watts now; undefined where it is not known */
  get now() {
    return this.points.at(-1)?.value;
  }

  /** @param {Meter} meter @returns {number|undefined} */
  #watts(meter) {
    const before = this.#seen[0].meters.find(({ domain }) => domain === meter.domain);
    if (before?.uj === undefined || meter.uj === undefined) return undefined;
    const ns = integer(meter.read_ns) - integer(before.read_ns);
    return ns > 0n ? (Number(integer(meter.uj) - integer(before.uj)) * 1000) / Number(ns) : undefined;
  }
}
