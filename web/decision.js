/**
 * Whether a grant admits a serve (SPEC.md section 16, Decision): every caveat of every block is held against the frame.
 *
 * @typedef {object} Refusal
 * @property {number} block counted from 0
 * @property {string} caveat its name, or `revoked`
 */

import { toHex } from "./bytes.js";
import { CAVEATS, TOTALS } from "./caveats.js";
import { decode } from "./cbor.js";
import { EncodingError, RevocationsError, TrustError } from "./errors.js";
import { parseContentId, stewardText } from "./ids.js";
import { PAYLOAD_BYTES } from "./limits.js";
import { backendId, byCodePoints, closed, count, digest, fidelity, name, positiveCount, uint63 } from "./shape.js";

const LEEWAY_NS = 2000000000n;

const frameOf = closed({
  steward: digest,
  recipe_id: name,
  backend_id: backendId,
  fidelity,
  prompt_tokens: count,
  max_tokens: positiveCount,
  now_ns: uint63,
  "?weights_digest": digest,
  "?blueprint_id": digest,
  "?runtime_recipe_digest": digest,
  "?est_uj": uint63,
});

/** @param {Uint8Array} bytes @throws EncodingError, SchemaError */
export function parseFrame(bytes) {
  const value = decode(bytes, { limit: PAYLOAD_BYTES });
  if (!(value instanceof Map)) throw new EncodingError("frame: expected a map");
  return frameOf(value, "frame");
}

/** @param {Uint8Array} bytes of a list of revoked blocks @returns {Set<string>} their ids in hex */
export function parseRevoked(bytes) {
  const ids = new Set();
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    for (const line of text.split("\n")) {
      const word = line.replace(/#.*$/s, "").replace(/^[ \t\r]+|[ \t\r]+$/g, "");
      if (word) ids.add(toHex(parseContentId(word)));
    }
  } catch {
    throw new RevocationsError("revocation list: expected one b3:<64 lower-case hex> a line");
  }
  return ids;
}

/**
 * @param {import("./grant.js").Chain} chain that was verified
 * @param {any} frame
 * @param {{issuers: import("./trust.js").Trust, revoked?: Set<string>, used?: (blockId: Uint8Array, total: string) =>
 *   bigint, leewayNs?: bigint}} terms `used`: what is settled and reserved of a total
 * @returns {Refusal[]} in the order in which they are named; none: admitted
 * @throws {TrustError} where the issuer is not trusted now
 */
export function decideGrant(chain, frame, { issuers, revoked = new Set(), used = () => 0n, leewayNs = LEEWAY_NS }) {
  if (!issuers.covers(chain.issuer, frame.now_ns)) {
    throw new TrustError(`grant: issuer ${stewardText(chain.issuer)} is not trusted at ${frame.now_ns}`);
  }
  /** @type {Refusal[]} */
  const refusals = [];
  chain.blocks.forEach(({ id, value }, block) => {
    if (revoked.has(toHex(id))) refusals.push({ block, caveat: "revoked" });
    for (const caveat of [...value.caveats.keys()].sort(byCodePoints)) {
      const stated = value.caveats.get(caveat);
      const known = CAVEATS.get(caveat);
      const offered = known?.offered(frame);
      let holds = known !== undefined && offered !== undefined && known.holds(stated, offered, leewayNs);
      if (holds && Object.hasOwn(TOTALS, caveat)) holds = offered + used(id, caveat) <= stated;
      if (!holds) refusals.push({ block, caveat });
    }
  });
  return refusals;
}
