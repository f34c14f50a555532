/** Which receipts an audit replays (SPEC.md section 26). */

import { deriveKey, keyedHash } from "./blake3.js";
import { compare, join, u64le } from "./bytes.js";
import { SchemaError } from "./errors.js";

const SEED_LEAST = 16;
const SEED_MOST = 64;

/**
 * @param {Uint8Array} head the id of the last receipt that may be drawn, 32 bytes
 * @param {Uint8Array} seed 16 to 64 bytes that nobody knew when the head was named
 * @param {readonly (number|bigint)[]} seqs the numbers of the receipts at hand, each once
 * @param {number} size how many
 * @returns {(number|bigint)[]} those with the lowest ranks, ascending
 */
export function draw(head, seed, seqs, size) {
  if (head.length !== 32) throw new SchemaError(`head: expected 32 bytes, got ${head.length}`);
  if (seed.length < SEED_LEAST || seed.length > SEED_MOST) {
    throw new SchemaError(`seed: expected ${SEED_LEAST} to ${SEED_MOST} bytes, got ${seed.length}`);
  }
  const key = deriveKey("mesh/1 audit-draw", join(head, seed));
  return seqs
    .map((seq) => ({ seq, rank: keyedHash(key, u64le(seq)) }))
    .sort((a, b) => compare(a.rank, b.rank))
    .slice(0, size)
    .map(({ seq }) => seq)
    .sort((a, b) => (a < b ? -1 : 1));
}
