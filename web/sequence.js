/** Runs of receipts, and checkpoints about them (SPEC.md section 13). */

import { same, toHex } from "./bytes.js";
import { SequenceError } from "./errors.js";
import { serveIdText, stewardText } from "./ids.js";

/** @typedef {import("./envelope.js").Verified} Verified */

/**
 * Verified envelopes of one steward: receipts in the order given, the first with any number, and checkpoints among them.
 *
 * @param {Iterable<Verified>} envelopes
 * @returns {number} of receipts
 * @throws {SequenceError}
 */
export function checkSequence(envelopes) {
  const all = [...envelopes];
  for (const { value } of all) {
    if (!same(value.steward, all[0].value.steward)) {
      throw new SequenceError(`steward: expected ${stewardText(all[0].value.steward)}, got ${stewardText(value.steward)}`);
    }
  }
  const receipts = all.filter(({ type }) => type === "receipt");
  checkRun(receipts);
  for (const each of all) if (each.type === "checkpoint") checkAgainst(each.value, receipts);
  return receipts.length;
}

/** @param {readonly Verified[]} receipts of one steward */
function checkRun(receipts) {
  /** @type {Map<bigint, Uint8Array>} */
  const seen = new Map();
  const serves = new Set();
  for (const [i, { value, id }] of receipts.entries()) {
    const { seq, prev, serve_id } = value;
    const other = seen.get(seq);
    if (other) throw new SequenceError(`receipt ${seq}: ${same(other, id) ? "occurs twice" : "a fork: two ids"}`);
    seen.set(seq, id);
    const serve = toHex(serve_id);
    if (serves.has(serve)) throw new SequenceError(`receipt ${seq}: serve ${serveIdText(serve_id)} has another receipt`);
    serves.add(serve);
    if (i === 0) continue;
    const before = receipts[i - 1];
    if (seq !== before.value.seq + 1n) throw new SequenceError(`receipt ${seq}: expected ${before.value.seq + 1n}`);
    if (!same(prev, before.id)) throw new SequenceError(`receipt ${seq}: prev is not the id of the receipt before`);
  }
}

/** @param {any} checkpoint @param {readonly Verified[]} receipts a run that holds */
function checkAgainst({ count, head }, receipts) {
  const first = receipts.length ? receipts[0].value.seq : 0n;
  const reached = first + BigInt(receipts.length);
  if (count > reached) throw new SequenceError(`checkpoint: expected ${count} receipts or more, got ${reached}`);
  // A run that begins after the checkpoint says nothing about it.
  if (count <= first) return;
  const { id } = receipts[Number(count - first) - 1];
  if (!same(id, head)) throw new SequenceError(`checkpoint: its head is not the receipt ${count - 1n}`);
}
