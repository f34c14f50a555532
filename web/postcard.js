/**
 * Postcard, strict (SPEC.md section 25): the one encoding of a value, and nothing else. A kind reads from a cursor; what
 * it reads is decided by the schema, never by the data.
 */

import { compare } from "./bytes.js";
import { PostcardError } from "./errors.js";

/** @typedef {{(reader: Reader, what: string): any, least: number}} Kind `least`: the fewest bytes that a value takes */

export class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get left() {
    return this.bytes.length - this.at;
  }

  /** @param {string} what @param {string} message @returns {PostcardError} */
  fault(what, message) {
    return new PostcardError(`postcard: ${what} at byte ${this.at}: ${message}`);
  }

  /** @param {number} count @param {string} what @returns {Uint8Array} */
  take(count, what) {
    if (count > this.left) throw this.fault(what, `${count} bytes expected, ${this.left} are left`);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  /** @param {number} bits @param {string} what @returns {bigint} */
  varint(bits, what) {
    let value = 0n;
    for (let shift = 0; ; shift += 7) {
      if (shift >= bits) throw this.fault(what, `a varint of more bytes than u${bits} has`);
      const [byte] = this.take(1, what);
      value |= BigInt(byte & 0x7f) << BigInt(shift);
      if (byte >= 0x80) continue;
      if (byte === 0 && shift > 0) throw this.fault(what, "a varint that is longer than it need be");
      if (value >> BigInt(bits)) throw this.fault(what, `${value}, expected less than 2^${bits}`);
      return value;
    }
  }

  /** @param {number} most @param {number} least bytes of each @param {string} what @returns {number} how many follow */
  count(most, least, what) {
    const value = this.varint(64, `length of ${what}`);
    if (value > BigInt(most)) throw this.fault(`length of ${what}`, `${value}, expected at most ${most}`);
    if (Number(value) * least > this.left) throw this.fault(`length of ${what}`, `${value} items, more than the bytes hold`);
    return Number(value);
  }
}

/** @param {number} least @param {(reader: Reader, what: string) => any} read @returns {Kind} */
const kind = (least, read) => Object.assign(read, { least });

/** As a number up to 2^53, above as a bigint. @param {number} bits @param {bigint} [most] @returns {Kind} */
export const unsigned = (bits, most = 2n ** BigInt(bits) - 1n) =>
  kind(1, (reader, what) => {
    const value = bits === 8 ? BigInt(reader.take(1, what)[0]) : reader.varint(bits, what);
    if (value > most) throw reader.fault(what, `${value}, expected at most ${most}`);
    return bits > 53 ? value : Number(value);
  });

/** @param {number} bits @returns {Kind} */
export const signed = (bits) =>
  kind(1, (reader, what) => {
    if (bits === 8) return BigInt.asIntN(8, BigInt(reader.take(1, what)[0]));
    const raw = reader.varint(bits, what);
    return raw & 1n ? -(raw >> 1n) - 1n : raw >> 1n;
  });

export const bool = kind(1, (reader, what) => {
  const [byte] = reader.take(1, what);
  if (byte > 1) throw reader.fault(what, `byte ${byte}, expected 0 or 1`);
  return byte === 1;
});

/** @param {number} most bytes @param {{empty?: boolean}} [may] @returns {Kind} */
export const text = (most, { empty = false } = {}) =>
  kind(1, (reader, what) => {
    const bytes = reader.take(reader.count(most, 1, what), what);
    if (!bytes.length && !empty) throw reader.fault(what, "empty, expected text");
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      throw reader.fault(what, "not UTF-8");
    }
  });

export const char = kind(2, (reader, what) => {
  const found = text(4)(reader, what);
  if ([...found].length !== 1) throw reader.fault(what, "several code points, expected one");
  return found;
});

/** @param {number} most @returns {Kind} */
export const bytes = (most) => kind(1, (reader, what) => reader.take(reader.count(most, 1, what), what));

/** @param {number} size @returns {Kind} */
export const fixed = (size) => kind(size, (reader, what) => reader.take(size, what));

/** An enum of variants without fields. @param {...string} names @returns {Kind} */
export const words = (...names) =>
  kind(1, (reader, what) => {
    const index = reader.varint(32, what);
    if (index >= BigInt(names.length)) throw reader.fault(what, `variant ${index}, expected less than ${names.length}`);
    return names[Number(index)];
  });

/** @param {string} expected @returns {Kind} */
export const constant = (expected) =>
  kind(1 + expected.length, (reader, what) => {
    const found = text(expected.length)(reader, what);
    if (found !== expected) throw reader.fault(what, `another text, expected ${expected}`);
    return found;
  });

/** @param {Kind} inner @returns {Kind} null where there is none */
export const option = (inner) => kind(1, (reader, what) => (bool(reader, what) ? inner(reader, what) : null));

/** @param {Kind} inner @param {number} most @returns {Kind} */
export const seq = (inner, most) =>
  kind(1, (reader, what) => {
    const count = reader.count(most, inner.least, what);
    const items = [];
    for (let i = 0; i < count; i++) items.push(inner(reader, `${what}[${i}]`));
    return items;
  });

/** Pairs, whose keys ascend by their bytes. @param {Kind} key @param {Kind} value @param {number} most @returns {Kind} */
export const map = (key, value, most) =>
  kind(1, (reader, what) => {
    const count = reader.count(most, key.least + value.least, what);
    const pairs = [];
    for (let i = 0, before = new Uint8Array(0); i < count; i++) {
      const start = reader.at;
      const found = key(reader, `key of ${what}`);
      const spelled = reader.bytes.subarray(start, reader.at);
      if (i && compare(before, spelled) >= 0) throw reader.fault(`key of ${what}`, "not above the key before it");
      pairs.push([found, value(reader, what)]);
      before = spelled;
    }
    return pairs;
  });

/** @param {...Kind} kinds @returns {Kind} an array */
export const tuple = (...kinds) =>
  kind(kinds.reduce((sum, each) => sum + each.least, 0), (reader, what) =>
    kinds.map((each, i) => each(reader, `${what}.${i}`)),
  );

/** @param {Record<string, Kind>} fields @returns {Kind} */
export const struct = (fields) => {
  const table = Object.entries(fields);
  return kind(table.reduce((sum, [, each]) => sum + each.least, 0), (reader, what) => {
    /** @type {Record<string, any>} */
    const value = {};
    for (const [name, each] of table) value[name] = each(reader, `${what}.${name}`);
    return value;
  });
};

/** @param {Record<string, Kind>} variants @returns {Kind} the fields of the one that it is, and its name in `is` */
export const either = (variants) => {
  const table = Object.entries(variants);
  const which = words(...table.map(([name]) => name));
  return kind(1, (reader, what) => {
    const name = which(reader, `variant of ${what}`);
    return { is: name, ...variants[name](reader, what) };
  });
};

/**
 * @param {Kind} of
 * @param {Uint8Array} data
 * @param {string} what it is called in a fault
 * @throws {PostcardError} for anything but the one encoding of a value
 */
export function read(of, data, what = "value") {
  const reader = new Reader(data);
  const value = of(reader, what);
  if (reader.left) throw reader.fault(what, `${reader.left} bytes follow it`);
  return value;
}
