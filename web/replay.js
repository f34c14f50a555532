/**
 * The decision table of replay (SPEC.md section 15) as a pure function: what the engine makes is given.
 *
 * @typedef {object} Decoding what an engine makes of the payload, alone
 * @property {Uint8Array} tokens packed
 * @property {"stop"|"length"} finish
 * @property {number} [accepted]
 * @property {readonly bigint[]} [margins_u] per id
 *
 * @typedef {object} Replayer
 * @property {string} backend_id
 * @property {string} recipe_id
 * @property {boolean} deterministic for this request
 * @property {Map<string, any>} settings
 * @property {Uint8Array} [weights_digest]
 * @property {Uint8Array} [blueprint_id]
 * @property {readonly Uint8Array[]} [encodings] of the disclosed prompt; absent without a tokenizer
 * @property {Decoding|{failed: true}} a
 * @property {Decoding|{failed: true}} b
 *
 * @typedef {{verdict: "verified", row: number, how: "decode", prompt: "checked"|"unchecked",
 *            output: "matches"|"differs"|"not-given", ending?: "cut"}} VerifiedReplay
 * @typedef {{verdict: "diverged", row: number, field: string}
 *          |{verdict: "diverged", row: number, at: number, served?: number, replayed?: number, marginU?: bigint}} Diverged
 * @typedef {{verdict: "not-replayable", row: number, reason: string, field?: string}} NotReplayable
 */

import { same, unpackIds } from "./bytes.js";
import { opens, payloadDigest, promptHashOfIds, promptHashOfText } from "./commitment.js";
import { contentId } from "./ids.js";

/**
 * @param {any} receipt out of a verified envelope
 * @param {any} disclosure as parseDisclosure gives it; null where there is none
 * @param {Replayer} replayer
 * @returns {VerifiedReplay|Diverged|NotReplayable}
 */
export function decide(receipt, disclosure, replayer) {
  const { outcome } = receipt;
  const requestId = disclosure && contentId("request", disclosure.request);
  const payload = disclosure && payloadDigest(disclosure.payload);
  const opened = (/** @type {Uint8Array|undefined} */ ids) =>
    ids !== undefined &&
    receipt.output_commitment !== undefined &&
    opens(receipt.output_commitment, disclosure.opening, requestId, payload, ids);
  const given = Boolean(disclosure) && opened(disclosure.output);

  const foreign = disclosure && otherRequest(receipt, disclosure, requestId, given);
  if (foreign) return notReplayable(1, "other-request", foreign);
  if (!["stop", "length", "cancelled"].includes(outcome.finish)) return notReplayable(2, "incomplete-serve");
  if (receipt.output_commitment === undefined) return notReplayable(3, "no-commitment");
  if (!disclosure) return notReplayable(4, "no-opening");
  if (given) {
    const field = falseClaim(receipt, disclosure, disclosure.output);
    if (field) return { verdict: "diverged", row: 5, field };
  }
  const other = otherEngine(receipt.engine, replayer);
  if (other) return notReplayable(6, other);
  if (!receipt.engine.deterministic) return notReplayable(7, "not-claimed");
  if (!replayer.deterministic) return notReplayable(7, "engine-samples");

  const cut = outcome.finish === "cancelled" ? outcome.tokens_out : undefined;
  const a = finished(replayer.a, disclosure.request.max_tokens, cut);
  if (!a) return notReplayable(9, "engine-failed");
  const reproduced = opened(a.tokens);
  if (!reproduced && !given) return notReplayable(9, "unattributed");
  const field = reproduced ? falseClaim(receipt, disclosure, a.tokens) ?? otherEnding(outcome, a, cut) : null;
  if (reproduced && !field) {
    return {
      verdict: "verified",
      row: 10,
      how: "decode",
      prompt: promptChecked(disclosure, replayer) ? "checked" : "unchecked",
      output: disclosure.output === undefined ? "not-given" : given ? "matches" : "differs",
      ...(cut === undefined ? {} : { ending: "cut" }),
    };
  }
  const b = finished(replayer.b, disclosure.request.max_tokens, cut);
  if (!b) return notReplayable(11, "engine-failed");
  if (!sameDecoding(a, b, cut)) return notReplayable(11, "unstable");
  if (field) return { verdict: "diverged", row: 12, field };
  if (!receipt.engine.weights_digest && !receipt.engine.backend_id.startsWith("reference/")) {
    return notReplayable(13, "unattributed");
  }
  return firstDifference(unpackIds(disclosure.output), unpackIds(a.tokens), a.margins_u ?? []);
}

/** @param {number} row @param {string} reason @param {string} [field] @returns {NotReplayable} */
function notReplayable(row, reason, field) {
  return { verdict: "not-replayable", row, reason, ...(field ? { field } : {}) };
}

/** Row 1. @param {any} receipt @param {any} disclosure @param {Uint8Array} requestId @param {boolean} given */
function otherRequest(receipt, disclosure, requestId, given) {
  const { request, prompt } = disclosure;
  if (!same(requestId, receipt.request_id)) return "request";
  if (prompt !== undefined && !same(promptHashOfText(prompt, request.nonce), request.prompt_hash)) return "prompt";
  if (given) return null;
  if (!same(disclosure.serve_id, receipt.serve_id)) return "serve_id";
  return disclosure.payload.length / 4 !== request.prompt_tokens ? "payload" : null;
}

/**
 * Rows 5 and 12: the first claim of the receipt that ids which open its commitment show to be false.
 * @param {any} receipt @param {any} disclosure @param {Uint8Array} ids packed @returns {string|null}
 */
function falseClaim({ outcome, engine, max_tokens, prompt_hash }, { request, payload }, ids) {
  const made = ids.length / 4;
  const prompt = payload.length / 4;
  // A count that is absent claims nothing.
  const differs = (/** @type {number|undefined} */ claimed, /** @type {number} */ is) => (claimed ?? is) !== is;
  if (differs(outcome.tokens_out, made)) return "tokens_out";
  if (differs(outcome.tokens_in, prompt)) return "tokens_in";
  if (outcome.finish === "length" && made !== request.max_tokens) return "finish";
  if (max_tokens !== request.max_tokens) return "max_tokens";
  if (!same(prompt_hash, request.prompt_hash)) return "prompt_hash";
  if (request.prompt_tokens !== prompt) return "prompt_tokens";
  if ((outcome.tokens_accepted ?? 0) > made) return "tokens_accepted";
  if ((outcome.tokens_delivered ?? 0) > made) return "tokens_delivered";
  if (outcome.weights_digest && !same(outcome.weights_digest, engine.weights_digest)) return "weights_digest";
  return null;
}

/** Row 6. @param {any} engine the receipt's @param {Replayer} replayer @returns {string|null} */
function otherEngine(engine, replayer) {
  if (engine.backend_id !== replayer.backend_id) return "other-backend";
  if (engine.recipe_id !== replayer.recipe_id) return "other-recipe";
  if (!same(engine.weights_digest, replayer.weights_digest)) return "other-weights";
  if (!same(engine.blueprint_id, replayer.blueprint_id)) return "other-blueprint";
  if (!same(engine.settings_digest, contentId("settings", replayer.settings))) return "other-settings";
  return null;
}

/**
 * @param {Decoding|{failed: true}} decoding @param {number} maxTokens @param {number} [cut] ids, of a cancelled serve
 * @returns {Decoding|null} null where it failed
 */
function finished(decoding, maxTokens, cut) {
  if ("failed" in decoding) return null;
  if (cut !== undefined) return { ...decoding, tokens: decoding.tokens.subarray(0, 4 * cut) };
  return decoding.finish === "length" && decoding.tokens.length / 4 !== maxTokens ? null : decoding;
}

/** Row 12. @param {any} outcome @param {Decoding} a @param {number} [cut] @returns {string|null} */
function otherEnding(outcome, a, cut) {
  if (cut !== undefined) return null;
  if (outcome.finish !== a.finish) return "finish";
  const claimed = outcome.tokens_accepted;
  return claimed !== undefined && a.accepted !== undefined && claimed !== a.accepted ? "tokens_accepted" : null;
}

/** @param {Decoding} a @param {Decoding} b @param {number} [cut] @returns {boolean} */
function sameDecoding(a, b, cut) {
  if (!same(a.tokens, b.tokens)) return false;
  return cut !== undefined || (a.finish === b.finish && a.accepted === b.accepted);
}

/** @param {any} disclosure @param {Replayer} replayer @returns {boolean} the payload is what the prompt's hash is of */
function promptChecked({ request, payload, prompt }, { encodings }) {
  if (prompt === undefined) return same(promptHashOfIds(payload, request.nonce), request.prompt_hash);
  // Row 1 held the text to its hash; an engine without a tokenizer can say no more.
  return encodings === undefined || encodings.some((each) => same(each, payload));
}

/** Rows 14 and 15. @param {Uint32Array} served @param {Uint32Array} replayed @param {readonly bigint[]} margins */
function firstDifference(served, replayed, margins) {
  let at = 0;
  while (at < served.length && at < replayed.length && served[at] === replayed[at]) at++;
  const marginU = margins[at];
  if (marginU === 0n) return notReplayable(14, "tie");
  return /** @type {Diverged} */ ({
    verdict: "diverged",
    row: 15,
    at,
    served: served[at],
    replayed: replayed[at],
    marginU,
  });
}
