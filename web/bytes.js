/** Byte strings: hex, comparison, joining, little-endian packing. */

import { SchemaError } from "./errors.js";

/** @param {Uint8Array} bytes @returns {string} lower-case hex */
export function toHex(bytes) {
  let text = "";
  for (const byte of bytes) text += byte.toString(16).padStart(2, "0");
  return text;
}

/** @param {string} text lower-case hex of whole bytes @returns {Uint8Array} */
export function fromHex(text) {
  if (typeof text !== "string" || text.length % 2 || !/^[0-9a-f]*$/.test(text)) {
    throw new SchemaError("hex: expected lower-case hex digits in pairs");
  }
  const bytes = new Uint8Array(text.length / 2);
  for (let i = 0; i < bytes.length; i++) bytes[i] = parseInt(text.slice(2 * i, 2 * i + 2), 16);
  return bytes;
}

/** Bytewise order, a prefix first. @param {Uint8Array} a @param {Uint8Array} b @returns {number} */
export function compare(a, b) {
  const shared = Math.min(a.length, b.length);
  for (let i = 0; i < shared; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

/** @param {Uint8Array|undefined} a @param {Uint8Array|undefined} b @returns {boolean} both absent counts as equal */
export function same(a, b) {
  if (a === undefined || b === undefined) return a === b;
  return compare(a, b) === 0;
}

/** @param {...Uint8Array} parts @returns {Uint8Array} */
export function join(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {number} value below 2^53 @returns {Uint8Array} 8 bytes, little-endian */
export function u64le(value) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
}

/** @param {ArrayLike<number>} ids token ids below 2^32 @returns {Uint8Array} 4 bytes each, little-endian */
export function packIds(ids) {
  const bytes = new Uint8Array(4 * ids.length);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < ids.length; i++) {
    if (!Number.isInteger(ids[i]) || ids[i] < 0 || ids[i] > 0xffffffff) {
      throw new SchemaError(`token id: expected an integer below 2^32, got ${ids[i]}`);
    }
    view.setUint32(4 * i, ids[i], true);
  }
  return bytes;
}

/** @param {Uint8Array} bytes 4 bytes for each id, little-endian @returns {Uint32Array} */
export function unpackIds(bytes) {
  if (bytes.length % 4) throw new SchemaError(`packed ids: expected a multiple of 4 bytes, got ${bytes.length}`);
  const ids = new Uint32Array(bytes.length / 4);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let i = 0; i < ids.length; i++) ids[i] = view.getUint32(4 * i, true);
  return ids;
}

const encoder = new TextEncoder();

/** @param {string} text @returns {Uint8Array} UTF-8 */
export function utf8(text) {
  // TextEncoder would put U+FFFD in place of a lone surrogate, so that two texts had one encoding.
  if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text)) {
    throw new SchemaError("text: expected whole characters, got a lone surrogate");
  }
  return encoder.encode(text);
}
