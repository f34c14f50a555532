/** The reference engine: ids from a SplitMix64 stream, no weights (SPEC.md section 17). */

import { SchemaError } from "./errors.js";
import { COUNT_MAX } from "./limits.js";

const U64 = (1n << 64n) - 1n;
const VOCABULARY = 32000n;

/** @param {Uint8Array} promptHash 32 bytes @param {number} maxTokens @returns {bigint} the stream's start state */
function startState(promptHash, maxTokens) {
  if (promptHash.length !== 32) throw new SchemaError(`prompt hash: expected 32 bytes, got ${promptHash.length}`);
  if (!Number.isInteger(maxTokens) || maxTokens < 1 || maxTokens > COUNT_MAX) {
    throw new SchemaError(`max_tokens: expected 1 to ${COUNT_MAX}, got ${maxTokens}`);
  }
  const view = new DataView(promptHash.buffer, promptHash.byteOffset, promptHash.byteLength);
  return view.getBigUint64(0, true) ^ (BigInt(maxTokens) << 1n);
}

/** @param {Uint8Array} promptHash @param {number} maxTokens @returns {number[]} exactly maxTokens ids */
export function referenceTokens(promptHash, maxTokens) {
  let state = startState(promptHash, maxTokens);
  const tokens = [];
  for (let i = 0; i < maxTokens; i++) {
    state = (state + 0x9e3779b97f4a7c15n) & U64;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & U64;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & U64;
    tokens.push(Number((z ^ (z >> 31n)) % VOCABULARY));
  }
  return tokens;
}

/**
 * @param {readonly [Uint8Array, number][]} serves prompt hash and max_tokens, one after another on a cold engine
 * @returns {number[]} the cache_hit_tokens of each
 */
export function referenceCache(serves) {
  const seen = new Set();
  return serves.map(([promptHash, maxTokens]) => {
    const state = startState(promptHash, maxTokens);
    const hit = seen.has(state);
    seen.add(state);
    return hit ? maxTokens : 0;
  });
}
