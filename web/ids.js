/** Content ids and the text forms of ids (SPEC.md section 4). */

import { deriveKey } from "./blake3.js";
import { fromHex, toHex } from "./bytes.js";
import { encode } from "./cbor.js";
import { SchemaError } from "./errors.js";

const KINDS = new Set([
  "receipt",
  "request",
  "weights",
  "settings",
  "launch",
  "route",
  "grant-block",
  "checkpoint",
  "head",
]);

/**
 * @param {string} kind
 * @param {Uint8Array|object} value canonical bytes, or a value to be encoded
 * @returns {Uint8Array} 32 bytes
 */
export function contentId(kind, value) {
  if (!KINDS.has(kind)) throw new SchemaError(`content id: unknown kind ${JSON.stringify(kind)}`);
  return deriveKey(`mesh/1 ${kind}`, value instanceof Uint8Array ? value : encode(value));
}

/** @param {Uint8Array} id 32 bytes @returns {string} `b3:<64 hex>` */
export function contentIdText(id) {
  return `b3:${toHex(id)}`;
}

/** @param {Uint8Array} key 32 bytes @returns {string} `ed25519:<64 hex>` */
export function stewardText(key) {
  return `ed25519:${toHex(key)}`;
}

/** @param {Uint8Array} id 16 bytes @returns {string} 8-4-4-4-12 */
export function serveIdText(id) {
  return toHex(id).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** @param {string} text @param {RegExp} form @param {string} what @returns {string} */
function matched(text, form, what) {
  if (!form.test(text)) throw new SchemaError(`${what}: expected ${form.source}, got ${JSON.stringify(text)}`);
  return text;
}

/** @param {string} text @returns {Uint8Array} 32 bytes */
export function parseContentId(text) {
  return fromHex(matched(text, /^b3:[0-9a-f]{64}$/, "content id").slice(3));
}

/** @param {string} text @returns {Uint8Array} 32 bytes */
export function parseSteward(text) {
  return fromHex(matched(text, /^ed25519:[0-9a-f]{64}$/, "steward").slice(8));
}

/** @param {string} text @returns {Uint8Array} 16 bytes */
export function parseServeId(text) {
  const form = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
  return fromHex(matched(text, form, "serve id").replaceAll("-", ""));
}
