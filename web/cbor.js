/**
 * Canonical CBOR (SPEC.md section 3): one encoding for each value, all else refused.
 *
 * In JavaScript a map is a Map, an integer a number where it is safe and else a bigint, bytes a Uint8Array.
 *
 * @typedef {number|bigint|string|boolean|Uint8Array|Array<any>|Map<any, any>|Foreign} Value
 */

import { compare, join, toHex, utf8 } from "./bytes.js";
import { EncodingError, SchemaError } from "./errors.js";
import { ITEMS, NESTING } from "./limits.js";

const INT_MIN = -(2n ** 63n);
const UINT_MAX = 2n ** 64n - 1n;

/** An item that is well-formed CBOR and not of this format: a tag, a float, null, another simple value. */
export class Foreign {
  /** @param {number} major @param {number|bigint} argument @param {Value} [content] of a tag */
  constructor(major, argument, content) {
    this.major = major;
    this.argument = argument;
    this.content = content;
    Object.freeze(this);
  }
}

/**
 * Read the one canonical encoding of a value.
 *
 * @param {Uint8Array} bytes
 * @param {{limit?: number, items?: number}} [limits] most bytes; most items
 * @returns {Value}
 * @throws {EncodingError} for every other input
 */
export function decode(bytes, { limit = Infinity, items = ITEMS } = {}) {
  if (bytes.length > limit) throw new EncodingError(`input: expected at most ${limit} bytes, got ${bytes.length}`);
  const reader = new Reader(bytes, items, (fault) => {
    throw new EncodingError(fault);
  });
  const value = reader.item(0);
  reader.end();
  return value;
}

/**
 * Read CBOR in any spelling, with a tag outside and keys of any type, as an envelope has them, and tell what is not
 * canonical. What follows the item is such a fault too.
 *
 * @param {Uint8Array} bytes
 * @returns {{value: Value, fault: string|null}} the first fault against canonical form, if there is one
 * @throws {EncodingError} where the input does not start with a whole item, or repeats a key, or has a tag within
 */
export function read(bytes) {
  /** @type {string|null} */
  let first = null;
  const reader = new Reader(bytes, ITEMS, (fault) => {
    first ??= fault;
  });
  reader.lax = true;
  const value = reader.item(0);
  reader.end();
  return { value, fault: first };
}

const INDEFINITE = 31;

/** RFC 8949 section 4.2.1. @param {number} info 25, 26 or 27 @param {number|bigint} bits @returns {boolean} */
function shortest(info, bits) {
  if (info === 25) return (Number(bits) & 0x7fff) <= 0x7c00 || bits === 0x7e00;
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, BigInt(bits) << (info === 26 ? 32n : 0n));
  const value = info === 26 ? view.getFloat32(0) : view.getFloat64(0);
  if (!Number.isFinite(value) || value === 0) return false;
  // Half floats are multiples of 2^-24, of eleven binary digits, up to 65504.
  const unit = 2 ** Math.max(Math.floor(Math.log2(Math.abs(value))) - 10, -24);
  const half = Number.isInteger(value / unit) && Math.abs(value) <= 65504;
  return !half && (info === 26 || Math.fround(value) !== value);
}

class Reader {
  /** @param {Uint8Array} bytes @param {number} items @param {(fault: string) => void} noncanonical */
  constructor(bytes, items, noncanonical) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.left = items;
    this.noncanonical = noncanonical;
    this.lax = false;
    this.utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  }

  end() {
    if (this.at !== this.bytes.length) {
      this.noncanonical(`input: expected an end at byte ${this.at}, got ${this.bytes.length - this.at} more`);
    }
  }

  /** @param {number} length @returns {number} where the run starts */
  take(length) {
    if (length > this.bytes.length - this.at) throw new EncodingError(`input: cut short at byte ${this.bytes.length}`);
    this.at += length;
    return this.at - length;
  }

  /** @returns {[number, number, number|bigint]} major type, the five bits after it, the argument */
  head() {
    const start = this.at;
    const first = this.bytes[this.take(1)];
    const major = first >> 5;
    const info = first & 31;
    if (info < 24) return [major, info, info];
    if (info === INDEFINITE && major >= 2 && major <= 5) {
      this.noncanonical(`item at byte ${start}: indefinite length`);
      return [major, info, 0];
    }
    if (info > 27) throw new EncodingError(`item at byte ${start}: ill-formed head`);
    /** @type {number|bigint} */
    let argument;
    let least;
    if (info === 24) [argument, least] = [this.view.getUint8(this.take(1)), 24];
    else if (info === 25) [argument, least] = [this.view.getUint16(this.take(2)), 0x100];
    else if (info === 26) [argument, least] = [this.view.getUint32(this.take(4)), 0x10000];
    else [argument, least] = [this.view.getBigUint64(this.take(8)), 0x100000000n];
    // In major type 7 the argument is a float's bits or a simple value, for which "shorter" means something else.
    if (major !== 7 && argument < least) this.noncanonical(`item at byte ${start}: wider head than needed`);
    return [major, info, typeof argument === "bigint" ? narrow(argument) : argument];
  }

  /** @param {number} depth how many arrays and maps are open around the item @returns {Value} */
  item(depth) {
    if (this.left-- <= 0) throw new EncodingError("input: more items than any value of this format has");
    const start = this.at;
    const [major, info, argument] = this.head();
    switch (major) {
      case 0:
        return argument;
      case 1: {
        const value = -1n - BigInt(argument);
        if (value < INT_MIN) this.foreign(start, "an integer below -2^63");
        return narrow(value);
      }
      case 2:
        return this.string(2, info, argument);
      case 3:
        return this.text(this.string(3, info, argument), start);
      case 4: {
        this.nested(depth, start);
        const items = [];
        for (const _ of this.members(info, argument)) items.push(this.item(depth + 1));
        return items;
      }
      case 5:
        this.nested(depth, start);
        return this.map(this.members(info, argument), depth + 1);
      case 6:
        if (start !== 0 || !this.lax) throw new EncodingError(`item at byte ${start}: a tag`);
        return new Foreign(6, argument, this.item(depth));
      default:
        if (info === 20) return false;
        if (info === 21) return true;
        if (info === 24 && argument < 32) throw new EncodingError(`item at byte ${start}: ill-formed simple value`);
        if (info > 24 && !shortest(info, argument)) this.noncanonical(`item at byte ${start}: wider float than needed`);
        this.foreign(start, info > 24 ? "a float" : "a simple value other than true and false");
        return new Foreign(7, argument);
    }
  }

  /** One turn for each member of an array or pair of a map. @param {number} info @param {number|bigint} argument */
  *members(info, argument) {
    if (info !== INDEFINITE) {
      for (let left = this.length(argument); left > 0; left--) yield;
      return;
    }
    while (!this.broken()) yield;
  }

  /** @returns {boolean} the next byte is a break, which is taken */
  broken() {
    const next = this.bytes[this.take(1)] === 0xff;
    if (!next) this.at--;
    return next;
  }

  /** @param {number} major @param {number} info @param {number|bigint} argument @returns {Uint8Array} */
  string(major, info, argument) {
    if (info !== INDEFINITE) {
      const length = this.length(argument);
      const from = this.take(length);
      return this.bytes.slice(from, from + length);
    }
    const parts = [];
    while (!this.broken()) {
      const start = this.at;
      const [kind, width, length] = this.head();
      if (kind !== major || width === INDEFINITE) throw new EncodingError(`item at byte ${start}: ill-formed part`);
      const part = this.string(major, width, length);
      if (major === 3) this.text(part, start);
      parts.push(part);
    }
    return join(...parts);
  }

  /** @param {Iterable<void>} members @param {number} depth @returns {Map<any, any>} */
  map(members, depth) {
    const map = new Map();
    const seen = new Set();
    let last = null;
    for (const _ of members) {
      const from = this.at;
      const key = this.item(depth);
      if (typeof key !== "string") this.foreign(from, "a map key that is not text");
      const encoded = this.bytes.subarray(from, this.at);
      const identity = keyIdentity(key, encoded);
      if (seen.has(identity)) throw new EncodingError(`map key at byte ${from}: occurs twice`);
      seen.add(identity);
      if (last && compare(last, encoded) > 0) this.noncanonical(`map key at byte ${from}: out of order`);
      last = encoded;
      map.set(key, this.item(depth));
    }
    return map;
  }

  /** @param {Uint8Array} bytes @param {number} start @returns {string} */
  text(bytes, start) {
    try {
      return this.utf8.decode(bytes);
    } catch {
      throw new EncodingError(`text at byte ${start}: not valid UTF-8`);
    }
  }

  /** @param {number|bigint} argument @returns {number} no more than there are bytes left, so that no loop runs away */
  length(argument) {
    if (argument > this.bytes.length - this.at) throw new EncodingError(`input: cut short at byte ${this.bytes.length}`);
    return Number(argument);
  }

  /** @param {number} depth @param {number} start */
  nested(depth, start) {
    if (depth >= NESTING) throw new EncodingError(`item at byte ${start}: nested more than ${NESTING} deep`);
  }

  /** @param {number} start @param {string} what */
  foreign(start, what) {
    // In an envelope these stand as values and are refused by the step that looks at their place.
    if (!this.lax) throw new EncodingError(`item at byte ${start}: ${what}`);
  }
}

/** @param {Value} key @param {Uint8Array} encoded @returns {string} equal for equal keys, however they are encoded */
function keyIdentity(key, encoded) {
  if (typeof key === "string") return `t${key}`;
  if (typeof key === "number" || typeof key === "bigint") return `i${key}`;
  if (key instanceof Uint8Array) return `b${toHex(key)}`;
  return `h${toHex(encoded)}`;
}

/** @param {bigint} value @returns {number|bigint} a number where that is exact */
function narrow(value) {
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
}

/**
 * Write the canonical encoding. A plain object is a map with text keys; a key whose value is undefined is absent.
 *
 * @param {any} value
 * @returns {Uint8Array}
 * @throws {SchemaError} for a value that this format cannot hold
 */
export function encode(value) {
  return write(value, 0);
}

/** @param {any} value @param {number} depth @returns {Uint8Array} */
function write(value, depth) {
  if (typeof value === "number" || typeof value === "bigint") return integer(value);
  if (typeof value === "boolean") return Uint8Array.of(value ? 0xf5 : 0xf4);
  if (typeof value === "string") {
    const bytes = utf8(value);
    return join(head(3, BigInt(bytes.length)), bytes);
  }
  if (value instanceof Uint8Array) return join(head(2, BigInt(value.length)), value);
  if (typeof value !== "object" || value === null || value instanceof Foreign) {
    throw new SchemaError(`value: expected what canonical CBOR holds, got ${value === null ? "null" : typeof value}`);
  }
  if (depth >= NESTING) throw new SchemaError(`value: nested more than ${NESTING} deep`);
  if (Array.isArray(value)) {
    return join(head(4, BigInt(value.length)), ...value.map((item) => write(item, depth + 1)));
  }
  const entries = [...(value instanceof Map ? value : Object.entries(value))]
    .filter(([, item]) => item !== undefined)
    .map(([key, item]) => [write(key, depth + 1), write(item, depth + 1)])
    .sort(([a], [b]) => compare(a, b));
  return join(head(5, BigInt(entries.length)), ...entries.flat());
}

/** @param {number|bigint} value @returns {Uint8Array} */
function integer(value) {
  if (typeof value === "number" && !Number.isSafeInteger(value)) {
    throw new SchemaError(`integer: expected a safe integer or a bigint, got ${value}`);
  }
  const whole = BigInt(value);
  if (whole < INT_MIN || whole > UINT_MAX) throw new SchemaError(`integer: expected -2^63 to 2^64-1, got ${whole}`);
  return whole < 0n ? head(1, -1n - whole) : head(0, whole);
}

/** @param {number} major @param {bigint} argument @returns {Uint8Array} the shortest head */
function head(major, argument) {
  const top = major << 5;
  if (argument < 24n) return Uint8Array.of(top | Number(argument));
  const width = argument < 0x100n ? 1 : argument < 0x10000n ? 2 : argument < 0x100000000n ? 4 : 8;
  const bytes = new Uint8Array(1 + width);
  bytes[0] = top | (24 + Math.log2(width));
  for (let i = width; i > 0; i--) {
    bytes[i] = Number(argument & 255n);
    argument >>= 8n;
  }
  return bytes;
}
