/**
 * Prompt hash, digest of a decision's options, payload digest, opening and output commitment (SPEC.md sections 5 and 8).
 * Packed ids are u32le bytes.
 */

import { deriveKey, hash, keyedHash } from "./blake3.js";
import { join, same, u64le, utf8 } from "./bytes.js";
import { encode } from "./cbor.js";
import { SchemaError } from "./errors.js";

/** @param {Uint8Array} bytes @param {number} size @param {string} what @returns {Uint8Array} */
function sized(bytes, size, what) {
  if (bytes.length !== size) throw new SchemaError(`${what}: expected ${size} bytes, got ${bytes.length}`);
  return bytes;
}

/** @param {Uint8Array} packed @returns {Uint8Array} */
function whole(packed) {
  if (packed.length % 4) throw new SchemaError(`packed ids: expected a multiple of 4 bytes, got ${packed.length}`);
  return packed;
}

/** @param {Uint8Array} material @param {Uint8Array} [nonce] 32 bytes */
function salted(material, nonce) {
  return nonce === undefined ? hash(material) : keyedHash(sized(nonce, 32, "nonce"), material);
}

/** @param {string} prompt rendered @param {Uint8Array} [nonce] @returns {Uint8Array} 32 bytes */
export function promptHashOfText(prompt, nonce) {
  return salted(join(Uint8Array.of(0), utf8(prompt)), nonce);
}

/** @param {Uint8Array} packed @param {Uint8Array} [nonce] @returns {Uint8Array} 32 bytes */
export function promptHashOfIds(packed, nonce) {
  return salted(join(Uint8Array.of(1), whole(packed)), nonce);
}

/**
 * What a request has in `decision`.
 *
 * @param {any} options at least two texts, each once, none empty
 * @param {Uint8Array} [nonce] 32 bytes
 * @returns {Uint8Array} 32 bytes
 * @throws {SchemaError}
 */
export function decisionDigest(options, nonce) {
  const texts = Array.isArray(options) && options.length > 1 && options.every((one) => typeof one === "string" && one);
  if (!texts) throw new SchemaError("options: expected at least two texts, none empty");
  if (new Set(options).size !== options.length) throw new SchemaError("options: one is there twice");
  return salted(join(Uint8Array.of(2), encode(options)), nonce);
}

/** @param {Uint8Array} packed @returns {Uint8Array} 32 bytes */
export function payloadDigest(packed) {
  return deriveKey("mesh/1 payload", whole(packed));
}

/** @param {Uint8Array} seed 32 bytes @param {Uint8Array} requestId @param {Uint8Array} serveId @returns {Uint8Array} */
export function opening(seed, requestId, serveId) {
  const key = deriveKey("mesh/1 opening-key", sized(seed, 32, "seed"));
  return keyedHash(key, join(sized(requestId, 32, "request id"), sized(serveId, 16, "serve id")));
}

/**
 * @param {Uint8Array} open the opening, 32 bytes
 * @param {Uint8Array} requestId 32 bytes
 * @param {Uint8Array} payload its digest, 32 bytes
 * @param {Uint8Array} output packed
 * @returns {Uint8Array} 32 bytes
 */
export function commitment(open, requestId, payload, output) {
  return deriveKey(
    "mesh/1 output-commitment",
    join(
      sized(open, 32, "opening"),
      sized(requestId, 32, "request id"),
      sized(payload, 32, "payload digest"),
      u64le(whole(output).length / 4),
      output,
    ),
  );
}

/** @param {Uint8Array} expected @param {Uint8Array} open @param {Uint8Array} requestId @param {Uint8Array} payload its
 *  digest @param {Uint8Array} output packed @returns {boolean} */
export function opens(expected, open, requestId, payload, output) {
  return same(commitment(open, requestId, payload, output), expected);
}
