/** Runs of receipts (SPEC.md section 13). */

import { same, toHex } from "./bytes.js";
import { SequenceError } from "./errors.js";
import { stewardText } from "./ids.js";

/** @typedef {import("./envelope.js").Verified} Verified */

/**
 * Receipts of one steward, in the order given; the first may have any number.
 *
 * @param {readonly Verified[]} receipts
 * @throws {SequenceError}
 */
export function checkRun(receipts) {
  /** @type {Map<bigint, Uint8Array>} */
  const seen = new Map();
  for (const [i, { value, id }] of receipts.entries()) {
    const { seq, steward, prev } = value;
    const before = i > 0 ? receipts[i - 1] : null;
    if (before && !same(before.value.steward, steward)) {
      throw new SequenceError(`receipt ${seq}: expected steward ${stewardText(before.value.steward)}`);
    }
    const other = seen.get(seq);
    if (other) throw new SequenceError(`receipt ${seq}: ${same(other, id) ? "occurs twice" : "a fork: two ids"}`);
    seen.set(seq, id);
    if (!before) continue;
    if (seq !== before.value.seq + 1n) throw new SequenceError(`receipt ${seq}: expected ${before.value.seq + 1n}`);
    if (!same(prev, before.id)) throw new SequenceError(`receipt ${seq}: prev is not the id of the receipt before`);
  }
}

/**
 * A checkpoint against the whole sequence of its steward.
 *
 * @param {Verified} checkpoint
 * @param {readonly Verified[]} receipts in order, from 0
 * @throws {SequenceError}
 */
export function checkAgainst(checkpoint, receipts) {
  const { count, head } = checkpoint.value;
  if (count > receipts.length) {
    throw new SequenceError(`checkpoint: expected ${count} receipts or more, got ${receipts.length}`);
  }
  if (count > 0n && !same(receipts[Number(count) - 1].id, head)) {
    throw new SequenceError(`checkpoint: its head is not the receipt ${count - 1n}`);
  }
}

/**
 * Verified envelopes in any order: of each steward the whole sequence from 0.
 *
 * @param {Iterable<Verified>} envelopes
 * @returns {number} of receipts
 * @throws {SequenceError}
 */
export function checkWhole(envelopes) {
  /** @type {Map<string, {receipts: Verified[], checkpoints: Verified[]}>} */
  const stewards = new Map();
  let total = 0;
  for (const each of envelopes) {
    const steward = toHex(each.value.steward);
    if (!stewards.has(steward)) stewards.set(steward, { receipts: [], checkpoints: [] });
    const own = /** @type {{receipts: Verified[], checkpoints: Verified[]}} */ (stewards.get(steward));
    if (each.type === "receipt") {
      own.receipts.push(each);
      total += 1;
    } else own.checkpoints.push(each);
  }
  for (const { receipts, checkpoints } of stewards.values()) {
    receipts.sort((a, b) => (a.value.seq < b.value.seq ? -1 : a.value.seq > b.value.seq ? 1 : 0));
    if (receipts.length && receipts[0].value.seq !== 0n) {
      throw new SequenceError(`receipt ${receipts[0].value.seq}: expected 0 first`);
    }
    checkRun(receipts);
    for (const checkpoint of checkpoints) checkAgainst(checkpoint, receipts);
  }
  return total;
}
