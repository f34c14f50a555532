import assert from "node:assert/strict";
import { test } from "node:test";

import { SequenceError, checkAgainst, checkRun, checkWhole, contentId } from "../index.js";
import { random, signer, steward } from "./support.mjs";

const other = signer(new Uint8Array(32));

/** As verifyEnvelope gives them. */
function run(length, { from = 0, by = steward, salt = "" } = {}) {
  const out = [];
  for (let i = 0; i < length; i++) {
    const seq = BigInt(from + i);
    const value = { steward: by.public, seq, ...(seq > 0n ? { prev: out.at(-1)?.id ?? new Uint8Array(32) } : {}) };
    out.push({ type: "receipt", value, id: contentId("receipt", { ...value, salt }) });
  }
  return out;
}

const checkpoint = (count, head, by = steward) => ({
  type: "checkpoint",
  value: { steward: by.public, count: BigInt(count), head },
});

test("a whole run holds, and so does one that begins later", () => {
  checkRun(run(5));
  checkRun(run(3, { from: 7 }));
  checkRun([]);
});

test("a gap, a fork, a repeat, another steward and a wrong prev are faults", () => {
  const receipts = run(5);
  const forked = run(5, { salt: "x" });
  const wrongPrev = { ...receipts[3], value: { ...receipts[3].value, prev: new Uint8Array(32) } };
  const bad = [
    receipts.toSpliced(2, 1),
    [...receipts, forked[4]],
    [...receipts.slice(0, 3), receipts[2]],
    [receipts[0], run(2, { by: other })[1]],
    [...receipts.slice(0, 3), wrongPrev, receipts[4]],
    receipts.toReversed(),
  ];
  for (const each of bad) assert.throws(() => checkRun(each), SequenceError);
});

test("a checkpoint holds a sequence to its count and head", () => {
  const receipts = run(4);
  checkAgainst(checkpoint(0), receipts);
  checkAgainst(checkpoint(3, receipts[2].id), receipts);
  assert.throws(() => checkAgainst(checkpoint(5, receipts[3].id), receipts), SequenceError);
  assert.throws(() => checkAgainst(checkpoint(4, receipts[2].id), receipts), SequenceError);
});

test("whole sequences of several stewards hold in any order", () => {
  const rng = random(11);
  const mine = run(6);
  const all = [...mine, ...run(3, { by: other }), checkpoint(6, mine[5].id), checkpoint(0, undefined, other)];
  for (let i = 0; i < 50; i++) {
    const shuffled = all.slice();
    for (let at = shuffled.length - 1; at > 0; at--) {
      const to = rng.below(at + 1);
      [shuffled[at], shuffled[to]] = [shuffled[to], shuffled[at]];
    }
    assert.equal(checkWhole(shuffled), 9);
    const missing = shuffled.indexOf(mine[rng.below(6)]);
    assert.throws(() => checkWhole(shuffled.toSpliced(missing, 1)), SequenceError);
  }
  assert.throws(() => checkWhole(run(2, { from: 1 })), SequenceError);
  assert.throws(() => checkWhole([checkpoint(1, new Uint8Array(32), other), ...mine]), SequenceError);
});
