/**
 * The JSON view of a value (SPEC.md section 3): for people, never to be hashed or signed.
 */

import { toHex } from "./bytes.js";
import { contentIdText, serveIdText, stewardText } from "./ids.js";

// Digests of identities, which are SHA-256.
const SHA256 = new Set(["model_artifact_digest", "runtime_recipe_digest", "recipe-in"]);
const HEX = new Set(["output_commitment", "opening", "nonce", "payload", "output"]);

/**
 * @param {any} value as the parsers give it
 * @param {string} [field] whose value it is
 * @returns {any} what JSON.stringify takes
 */
export function view(value, field = "") {
  if (value instanceof Uint8Array) return bytesView(value, field);
  if (typeof value === "bigint") {
    const small = value <= Number.MAX_SAFE_INTEGER && value >= Number.MIN_SAFE_INTEGER;
    return small ? Number(value) : value.toString();
  }
  if (Array.isArray(value)) return value.map((item) => view(item, field));
  if (value instanceof Map) return object([...value]);
  if (typeof value === "object" && value !== null) return object(Object.entries(value));
  return value;
}

/** @param {[string, any][]} entries @returns {Record<string, any>} */
function object(entries) {
  /** @type {Record<string, any>} */
  const out = {};
  for (const [key, item] of entries) {
    // A settings document may have any key; as a plain assignment this one would set the prototype.
    Object.defineProperty(out, key, { value: view(item, key), enumerable: true, configurable: true, writable: true });
  }
  return out;
}

/** @param {Uint8Array} bytes @param {string} field @returns {string} */
function bytesView(bytes, field) {
  if (field === "steward" && bytes.length === 32) return stewardText(bytes);
  if (field === "serve_id" && bytes.length === 16) return serveIdText(bytes);
  if (HEX.has(field) || bytes.length !== 32) return toHex(bytes);
  return SHA256.has(field) ? `sha256:${toHex(bytes)}` : contentIdText(bytes);
}
