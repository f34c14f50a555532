/** What the tests share: seeded randomness, the worked receipt of SPEC.md, a signer. */

import { readFileSync } from "node:fs";
import { createPrivateKey, createPublicKey, sign } from "node:crypto";

import { contentId, encode, fromHex, stewardText } from "../index.js";

/** A generator with a fixed seed, so that a failure comes again. */
export function random(seed) {
  let state = seed >>> 0;
  const below = (limit) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) % limit;
  };
  return {
    below,
    bytes: (size) => Uint8Array.from({ length: size }, () => below(256)),
    pick: (items) => items[below(items.length)],
  };
}

const SPEC = readFileSync(new URL("../../SPEC.md", import.meta.url), "utf8");

export const worked = fromHex(/```hex\n([0-9a-f\n]+)```/.exec(SPEC)[1].replaceAll("\n", ""));
export const workedIds = {
  receipt: /receipt id \| `(b3:[0-9a-f]{64})`/.exec(SPEC)[1],
  request: /request id \| `(b3:[0-9a-f]{64})`/.exec(SPEC)[1],
  payload: /payload digest \| `([0-9a-f]{64})`/.exec(SPEC)[1],
  opening: /opening \| `([0-9a-f]{64})`/.exec(SPEC)[1],
  steward: /steward \| `(ed25519:[0-9a-f]{64})`/.exec(SPEC)[1],
};

/** A signer from a seed of 32 bytes. */
export function signer(seed) {
  const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]);
  const key = createPrivateKey({ key: der, format: "der", type: "pkcs8" });
  const raw = createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32);
  return { public: new Uint8Array(raw), sign: (message) => new Uint8Array(sign(null, message, key)) };
}

export const seed = Uint8Array.from({ length: 32 }, (_, i) => i);
export const steward = signer(seed);

/** A sealed value; every part may be replaced. */
export function seal(type, value, { by = steward, subject, headers = {}, unprotected = new Map(), payload } = {}) {
  const body = payload ?? encode(value);
  const header = encode(
    new Map(
      [
        [1, -19],
        [3, `application/mesh-${type}+cbor`],
        [4, by.public],
        [15, new Map([[1, stewardText(by.public)], [2, subject ?? value.engine?.recipe_id ?? "checkpoint"]])],
      ].map(([label, item]) => [label, label in headers ? headers[label] : item]),
    ),
  );
  const signature = by.sign(encode(["Signature1", header, new Uint8Array(0), body]));
  return join18(header, unprotected, body, signature);
}

export function join18(header, unprotected, body, signature) {
  return Uint8Array.of(0xd2, ...encode([header, unprotected, body, signature]));
}

const filled = (size, byte) => new Uint8Array(size).fill(byte);

/** A valid receipt as plain fields, to be changed. */
export function receipt(changes = {}) {
  return {
    v: "mesh/1",
    steward: steward.public,
    seq: 0,
    serve_id: filled(16, 7),
    request_id: filled(32, 1),
    prompt_hash: filled(32, 2),
    max_tokens: 4,
    started_ns: 1790000000000000000n,
    ended_ns: 1790000000001000000n,
    engine: {
      backend_id: "reference/1/none/none/none/none",
      recipe_id: "reference",
      fidelity: 0,
      deterministic: true,
      settings_digest: contentId("settings", { engine: "reference" }),
      process: filled(16, 3),
    },
    outcome: { finish: "length", counted_by: "both", tokens_in: 2, tokens_out: 4 },
    energy: { basis: "absent", reason: "no-meter", sources: [], span_ns: 1000000 },
    output_commitment: filled(32, 4),
    ...changes,
  };
}

export function checkpoint(changes = {}) {
  return { v: "mesh/1", steward: steward.public, at_ns: 1790000000001000000n, count: 0, domains: [], ...changes };
}

export function request(changes = {}, sampling = {}) {
  return {
    prompt_hash: filled(32, 2),
    prompt_tokens: 2,
    max_tokens: 4,
    fidelity_floor: 0,
    sampling: {
      temperature_u: 0,
      top_p_u: 1000000,
      top_k: 0,
      min_p_u: 0,
      frequency_penalty_u: 0,
      presence_penalty_u: 0,
      repetition_penalty_u: 1000000,
      logit_bias: [],
      seed: 0,
      stop: [],
      stop_ids: [],
      ignore_eos: false,
      ...sampling,
    },
    ...changes,
  };
}
