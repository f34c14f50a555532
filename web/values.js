/**
 * The values of vectors/mesh.cddl: from canonical bytes to frozen objects, or an error. Fields have the names of the
 * CDDL; absent ones are not there. `uint63` fields are bigints, counts and ids numbers, byte strings Uint8Arrays.
 */

import { decode, encode } from "./cbor.js";
import { EncodingError } from "./errors.js";
import { DISCLOSURE_BYTES, PAYLOAD_BYTES, SEED_MAX, SETTINGS_BYTES } from "./limits.js";
import {
  ascending,
  backendId,
  byCodePoints,
  bytes,
  closed,
  count,
  differs,
  digest,
  fidelity,
  flag,
  id16,
  integer,
  label,
  list,
  map,
  mapOf,
  must,
  name,
  oneOf,
  packedIds,
  penalty,
  positiveCount,
  rule,
  text,
  textLike,
  textOfBytes,
  token,
  tokenId,
  tuple,
  uint63,
} from "./shape.js";

const sampling = closed(
  {
    temperature_u: integer(0, 100000000),
    top_p_u: integer(0, 1000000),
    top_k: tokenId,
    min_p_u: integer(0, 1000000),
    frequency_penalty_u: penalty,
    presence_penalty_u: penalty,
    repetition_penalty_u: integer(1, 100000000),
    logit_bias: list(tuple(tokenId, penalty), 0, 1024),
    seed: integer(0, SEED_MAX),
    stop: list(textOfBytes(1, 1024), 0, 16),
    stop_ids: list(tokenId, 0, 256),
    ignore_eos: flag,
    "?grammar": digest,
  },
  (it, path) => {
    must(it.temperature_u > 0 || it.seed === 0, `${path}.seed`, "expected 0 where the temperature is 0");
    ascending(it.logit_bias, (a, b) => a[0] - b[0], `${path}.logit_bias`);
    ascending(it.stop_ids, (a, b) => a - b, `${path}.stop_ids`);
    must(new Set(it.stop).size === it.stop.length, `${path}.stop`, "a string occurs twice");
  },
);

const request = closed({
  prompt_hash: digest,
  prompt_tokens: count,
  max_tokens: positiveCount,
  fidelity_floor: fidelity,
  sampling,
  "?joule_ceiling_uj": uint63,
  "?model": name,
  "?decision": digest,
  "?nonce": digest,
});

const outcome = closed(
  {
    finish: oneOf("stop", "length", "cancelled", "engine-error", "interrupted", "refused"),
    counted_by: oneOf("engine", "gateway", "both", "none"),
    "?tokens_in": count,
    "?tokens_out": count,
    "?tokens_accepted": count,
    "?tokens_delivered": count,
    "?cache_hit_tokens": count,
    "?spec_proposed": count,
    "?spec_accepted": count,
    "?decision": uint63,
    "?delivered_fidelity": fidelity,
    "?weights_digest": digest,
    "?precision": label,
    "?reason": token,
  },
  (it, path) => {
    must(it.counted_by !== "none" || it.tokens_out === undefined, path, "tokens_out, and nobody counted it");
    must((it.spec_accepted ?? 0) <= (it.spec_proposed ?? 0), path, "spec_accepted is above spec_proposed");
  },
);

const source = closed({ domain: name, method: name, uj: uint63, resolution_ns: uint63 });

const energy = closed(
  {
    basis: oneOf("measured", "allocated", "modelled", "unresolved", "absent"),
    sources: list(source, 0, 64),
    "?span_ns": uint63,
    "?uj": uint63,
    "?rule": rule,
    "?window_uj": uint63,
    "?peak_sharers": integer(1, 2147483648),
    "?covered_ns": uint63,
    "?epoch": id16,
    "?reason": token,
  },
  (it, path) => {
    const figure = it.basis !== "unresolved" && it.basis !== "absent";
    must((it.uj !== undefined) === figure, `${path}.uj`, `does not go with basis ${it.basis}`);
    must((it.reason === undefined) === figure, `${path}.reason`, `does not go with basis ${it.basis}`);
    must(it.sources.length > 0 === figure, `${path}.sources`, `do not go with basis ${it.basis}`);
    ascending(it.sources, (a, b) => byCodePoints(a.domain, b.domain), `${path}.sources`);
    if (figure) {
      const sum = it.sources.reduce((/** @type {bigint} */ total, /** @type {any} */ each) => total + each.uj, 0n);
      if (sum !== it.uj) differs(`${path}.uj`, `the sum of the sources, ${sum}`, it.uj);
    }
    const shared = [it.rule, it.window_uj, it.peak_sharers].filter((each) => each !== undefined).length;
    must(shared === 0 || shared === 3, path, "rule, window_uj and peak_sharers come together");
    must(it.span_ns !== undefined || it.basis === "absent", `${path}.span_ns`, "is absent");
    must((it.covered_ns ?? 0n) <= (it.span_ns ?? 0n), `${path}.covered_ns`, "is above span_ns");
  },
);

const engine = closed({
  backend_id: backendId,
  recipe_id: name,
  fidelity,
  deterministic: flag,
  settings_digest: digest,
  process: id16,
  "?weights_digest": digest,
  "?template_digest": digest,
  "?blueprint_id": digest,
  "?model_artifact_digest": digest,
  "?runtime_recipe_digest": digest,
  "?route_digest": digest,
  "?launch_digest": digest,
});

const receipt = closed(
  {
    v: oneOf("mesh/1"),
    steward: bytes(32),
    seq: uint63,
    serve_id: id16,
    request_id: digest,
    prompt_hash: digest,
    max_tokens: positiveCount,
    started_ns: uint63,
    ended_ns: uint63,
    engine,
    outcome,
    energy,
    "?prev": digest,
    "?grant_id": digest,
    "?output_commitment": digest,
  },
  (it, path) => {
    must((it.prev === undefined) === (it.seq === 0n), `${path}.prev`, "expected exactly where seq is above 0");
    if (it.output_commitment !== undefined) {
      must(it.outcome.tokens_out !== undefined, `${path}.output_commitment`, "without tokens_out");
      must(it.outcome.finish !== "refused", `${path}.output_commitment`, "of a refused serve");
    }
    must((it.outcome.tokens_out ?? 0) <= it.max_tokens, `${path}.outcome.tokens_out`, "is above max_tokens");
    must(
      (it.outcome.delivered_fidelity ?? 0) <= it.engine.fidelity,
      `${path}.outcome.delivered_fidelity`,
      "is above the engine's fidelity",
    );
  },
);

const domainTotals = closed({
  domain: name,
  first_uj: uint63,
  last_uj: uint63,
  idle_uj: uint63,
  unattributed_uj: uint63,
  open_uj: uint63,
});

const checkpoint = closed(
  {
    v: oneOf("mesh/1"),
    steward: bytes(32),
    at_ns: uint63,
    count: uint63,
    domains: list(domainTotals, 0, 64),
    "?head": digest,
    "?epoch": id16,
    "?epoch_seq": uint63,
  },
  (it, path) => {
    must((it.head === undefined) === (it.count === 0n), `${path}.head`, "expected exactly where count is above 0");
    must((it.epoch === undefined) === (it.epoch_seq === undefined), path, "epoch and epoch_seq come together");
    must(it.domains.length === 0 || it.epoch !== undefined, `${path}.domains`, "without an epoch");
    ascending(it.domains, (a, b) => byCodePoints(a.domain, b.domain), `${path}.domains`);
  },
);

const launchRank = closed({
  rank: uint63,
  node: name,
  argv: list(text, 1, Infinity),
  environment: mapOf(textLike(/^[A-Za-z_][A-Za-z0-9_]*$/), text),
  found: mapOf(name, text),
});

const someText = textOfBytes(1, PAYLOAD_BYTES);

const launch = closed(
  {
    v: oneOf("mesh/1"),
    signer: bytes(32),
    launched_ns: uint63,
    run: name,
    recipe: name,
    engine: token,
    model: someText,
    recipe_digest: digest,
    config_digests: list(digest, 0, Infinity),
    allowed_levers: list(someText, 0, Infinity),
    pinned_files: mapOf(someText, textLike(/^(?:sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40})$/)),
    ranks: list(launchRank, 1, 64),
    "?engine_version": someText,
    "?model_revision": someText,
    "?image": someText,
  },
  (it, path) => {
    it.ranks.forEach((/** @type {any} */ each, /** @type {number} */ i) =>
      must(each.rank === BigInt(i), `${path}.ranks[${i}].rank`, `expected ${i}`),
    );
  },
);

/** Left as it was decoded: what is in it is the engine's own affair. @type {import("./shape.js").Type} */
const settings = (value, path) => {
  const size = encode(map(value, path)).length;
  return size <= SETTINGS_BYTES ? value : differs(path, `at most ${SETTINGS_BYTES} bytes`, size);
};

const disclosure = closed({
  serve_id: id16,
  request,
  payload: packedIds,
  opening: digest,
  settings,
  "?output": packedIds,
  "?prompt": text,
});

const weights = closed({ files: list(tuple(text, digest), 1, Infinity) }, (it, path) => {
  ascending(it.files, (a, b) => byCodePoints(a[0], b[0]), `${path}.files`);
});

/** @param {import("./shape.js").Type} type @param {string} what @param {number} limit bytes */
const parser = (type, what, limit) => (/** @type {Uint8Array} */ input) => {
  const value = decode(input, { limit });
  // "A canonical map" is one step: what is no map at all is a fault of encoding, not of shape.
  if (!(value instanceof Map)) throw new EncodingError(`${what}: expected a map`);
  return type(value, what);
};

// Each takes bytes and throws EncodingError or SchemaError.
export const parseRequest = parser(request, "request", PAYLOAD_BYTES);
export const parseOutcome = parser(outcome, "outcome", PAYLOAD_BYTES);
export const parseEnergy = parser(energy, "energy", PAYLOAD_BYTES);
export const parseReceipt = parser(receipt, "receipt", PAYLOAD_BYTES);
export const parseCheckpoint = parser(checkpoint, "checkpoint", PAYLOAD_BYTES);
export const parseLaunch = parser(launch, "launch record", PAYLOAD_BYTES);
export const parseSettings = parser(settings, "settings", SETTINGS_BYTES);
export const parseWeights = parser(weights, "weights", SETTINGS_BYTES);
export const parseDisclosure = parser(disclosure, "disclosure", DISCLOSURE_BYTES);
