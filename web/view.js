/**
 * The JSON view of a value (SPEC.md section 3): for people, never to be hashed or signed.
 */

import { toHex } from "./bytes.js";
import { contentIdText, serveIdText, stewardText } from "./ids.js";

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

/** @param {import("./envelope.js").Verified} verified @returns {Record<string, any>} what a gateway answers */
export function sealedView({ type, value, id }) {
  return { view_of: "application/cose", [`${type}_id`]: contentIdText(id), [type]: view(value) };
}

/** @param {Uint8Array} digest @param {Map<string, any>} settings @returns {Record<string, any>} */
export function settingsView(digest, settings) {
  return { view_of: "application/cbor", digest: contentIdText(digest), settings: view(settings) };
}

/** @param {any} it what `view` gives @returns {string} in the one spelling of RFC 8785 */
export function spelled(it) {
  if (Array.isArray(it)) return `[${it.map(spelled).join(",")}]`;
  if (typeof it !== "object") return JSON.stringify(it);
  // Plain sort() compares UTF-16 units, which is the order there.
  const members = Object.keys(it).sort().map((key) => `${JSON.stringify(key)}:${spelled(it[key])}`);
  return `{${members.join(",")}}`;
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
  return contentIdText(bytes);
}
