/**
 * The shapes that vectors/mesh.cddl is made of. A type takes a decoded value and a path for messages, and gives the
 * value that the rest of the code sees, or throws a SchemaError.
 *
 * @typedef {(value: any, path: string) => any} Type
 */

import { compare, utf8 } from "./bytes.js";
import { SchemaError } from "./errors.js";
import { COUNT_MAX, TOKEN_MAX, UINT63_MAX } from "./limits.js";

/** @param {string} path @param {string} expected @param {any} got @returns {never} */
export function differs(path, expected, got) {
  const shown = got instanceof Uint8Array ? `${got.length} bytes` : got instanceof Map ? "a map" : String(got);
  throw new SchemaError(`${path}: expected ${expected}, got ${shown.slice(0, 80)}`);
}

/** @param {number|bigint} least @param {number|bigint} most @returns {Type} a number */
export const integer = (least, most) => (value, path) => {
  if (typeof value !== "number" && typeof value !== "bigint") differs(path, "an integer", value);
  if (value < least || value > most) differs(path, `${least} to ${most}`, value);
  return value;
};

const uint63Number = integer(0, UINT63_MAX);

/** Always a bigint, so that sums and comparisons are exact whatever the size. @type {Type} */
export const uint63 = (value, path) => BigInt(uint63Number(value, path));

export const count = integer(0, COUNT_MAX);
export const positiveCount = integer(1, COUNT_MAX);
export const tokenId = integer(0, TOKEN_MAX);
export const penalty = integer(-1000000000, 1000000000);
export const fidelity = integer(0, 3);

/** @type {Type} */
export const flag = (value, path) => (typeof value === "boolean" ? value : differs(path, "true or false", value));

/** @param {number} [size] @returns {Type} a Uint8Array */
export const bytes = (size) => (value, path) => {
  if (!(value instanceof Uint8Array)) differs(path, "a byte string", value);
  if (size !== undefined && value.length !== size) differs(path, `${size} bytes`, value);
  return value;
};

export const digest = bytes(32);
export const id16 = bytes(16);

/** Token ids, 4 bytes each. @type {Type} */
export const packedIds = (value, path) => {
  if (bytes()(value, path).length % 4) differs(path, "a multiple of 4 bytes", value);
  return value;
};

/** @type {Type} */
export const text = (value, path) => (typeof value === "string" ? value : differs(path, "text", value));

/** @param {RegExp} form whole text @returns {Type} */
export const textLike = (form) => (value, path) =>
  form.test(text(value, path)) ? value : differs(path, `text like ${form.source}`, JSON.stringify(value));

/** @param {number} least @param {number} most of UTF-8 @returns {Type} */
export const textOfBytes = (least, most) => (value, path) => {
  const size = utf8(text(value, path)).length;
  return size >= least && size <= most ? value : differs(path, `${least} to ${most} bytes of text`, size);
};

/** @param {...string} words @returns {Type} */
export const oneOf = (...words) => (value, path) =>
  words.includes(value) ? value : differs(path, words.join(" or "), value);

export const name = textLike(/^[^\p{Cc}\p{Zl}\p{Zp}]{1,256}$/u);
export const token = textLike(/^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$/);
export const label = textLike(/^[A-Za-z0-9._+-]{1,64}$/);
export const rule = textLike(/^[a-z0-9](?:[a-z0-9._-]{0,53}[a-z0-9])?\/[1-9][0-9]{0,3}$/);
export const backendId = textLike(/^(?:told:)?[A-Za-z0-9._+-]{1,64}(?:\/(?:told:)?[A-Za-z0-9._+-]{1,64}){5}$/);

/** @param {Type} item @param {number} least @param {number} most @returns {Type} */
export const list = (item, least, most) => (value, path) => {
  if (!Array.isArray(value)) differs(path, "an array", value);
  if (value.length < least || value.length > most) differs(path, `${least} to ${most} items`, value.length);
  return Object.freeze(value.map((/** @type {any} */ each, /** @type {number} */ i) => item(each, `${path}[${i}]`)));
};

/** @param {...Type} items @returns {Type} */
export const tuple = (...items) => (value, path) => {
  if (!Array.isArray(value) || value.length !== items.length) differs(path, `${items.length} items`, value);
  return Object.freeze(items.map((item, i) => item(value[i], `${path}[${i}]`)));
};

/**
 * A map that has its fields and no others; a name that starts with "?" is optional.
 * @param {Record<string, Type>} fields
 * @param {(value: any, path: string) => void} [also] what the fields have to do with each other
 * @returns {Type} a frozen object without the absent fields
 */
export const closed = (fields, also) => {
  const types = Object.entries(fields).map(([key, type]) => [key.replace("?", ""), type, key[0] !== "?"]);
  const known = new Set(types.map(([key]) => key));
  return (value, path) => {
    if (!(value instanceof Map)) differs(path, "a map", value);
    for (const key of value.keys()) if (!known.has(key)) differs(path, "no other field", JSON.stringify(key));
    /** @type {Record<string, any>} */
    const out = {};
    for (const [key, type, needed] of /** @type {[string, Type, boolean][]} */ (types)) {
      if (value.has(key)) out[key] = type(value.get(key), `${path}.${key}`);
      else if (needed) differs(path, `a field ${key}`, "none");
    }
    also?.(out, path);
    return Object.freeze(out);
  };
};

/** A map with any keys of a kind. @param {Type} key @param {Type} value @returns {Type} a frozen array of pairs */
export const mapOf = (key, value) => (given, path) => {
  if (!(given instanceof Map)) differs(path, "a map", given);
  const pairs = [...given].map(([k, v]) => Object.freeze([key(k, `${path} key`), value(v, `${path}.${k}`)]));
  return Object.freeze(pairs);
};

/** A map with whatever is in it. @type {Type} */
export const map = (value, path) => (value instanceof Map ? value : differs(path, "a map", value));

/** @param {readonly any[]} items @param {(a: any, b: any) => number} order @param {string} path */
export function ascending(items, order, path) {
  for (let i = 1; i < items.length; i++) {
    if (order(items[i - 1], items[i]) >= 0) differs(path, "ascending items, each once", `item ${i}`);
  }
}

/** By code points, which UTF-8 keeps and UTF-16 does not. @param {string} a @param {string} b @returns {number} */
export const byCodePoints = (a, b) => compare(utf8(a), utf8(b));

/** @param {boolean} holds @param {string} path @param {string} rule */
export function must(holds, path, rule) {
  if (!holds) throw new SchemaError(`${path}: ${rule}`);
}
