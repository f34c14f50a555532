import assert from "node:assert/strict";
import { test } from "node:test";

import { SequenceError, checkSequence, contentId } from "../index.js";
import { random, signer, steward } from "./support.mjs";

const other = signer(new Uint8Array(32));

/** As verifyEnvelope gives them. */
function run(length, { from = 0, by = steward, salt = "" } = {}) {
  const out = [];
  for (let i = 0; i < length; i++) {
    const seq = BigInt(from + i);
    const value = { steward: by.public, seq, serve_id: new Uint8Array(16).fill(Number(seq)), ...(seq > 0n ? { prev: out.at(-1)?.id ?? new Uint8Array(32) } : {}) };
    out.push({ type: "receipt", value, id: contentId("receipt", { ...value, salt }) });
  }
  return out;
}

const checkpoint = (count, head, by = steward) => ({
  type: "checkpoint",
  value: { steward: by.public, count: BigInt(count), head },
});

test("a whole run holds, and so does one that begins later", () => {
  checkSequence(run(5));
  checkSequence(run(3, { from: 7 }));
  checkSequence([]);
});

test("a gap, a fork, a repeat, another steward and a wrong prev are faults", () => {
  const receipts = run(5);
  const forked = run(5, { salt: "x" });
  const wrongPrev = { ...receipts[3], value: { ...receipts[3].value, prev: new Uint8Array(32) } };
  const served = { ...receipts[4], value: { ...receipts[4].value, serve_id: receipts[1].value.serve_id } };
  const bad = [
    receipts.toSpliced(4, 1, served),
    receipts.toSpliced(2, 1),
    [...receipts, forked[4]],
    [...receipts.slice(0, 3), receipts[2]],
    [receipts[0], run(2, { by: other })[1]],
    [...receipts.slice(0, 3), wrongPrev, receipts[4]],
    receipts.toReversed(),
  ];
  for (const each of bad) assert.throws(() => checkSequence(each), SequenceError);
});

test("a checkpoint holds a run to its count and head", () => {
  const receipts = run(4);
  const later = run(2, { from: 4 });
  later[0].value.prev = receipts[3].id;
  assert.equal(checkSequence([checkpoint(0), ...receipts]), 4);
  assert.equal(checkSequence([receipts[0], checkpoint(3, receipts[2].id), ...receipts.slice(1)]), 4);
  assert.equal(checkSequence([...later, checkpoint(4, receipts[3].id), checkpoint(2, receipts[0].id)]), 2);
  assert.equal(checkSequence([...later, checkpoint(0)]), 2);
  const bad = [
    [...receipts, checkpoint(5, receipts[3].id)],
    [...receipts, checkpoint(4, receipts[2].id)],
    [...receipts, checkpoint(0, undefined, other)],
    [checkpoint(1, receipts[0].id)],
    [...later, checkpoint(6, receipts[0].id)],
  ];
  for (const each of bad) assert.throws(() => checkSequence(each), SequenceError);
});

test("no order of a run but its own holds", () => {
  const rng = random(11);
  const receipts = run(6);
  for (let i = 0; i < 50; i++) {
    const shuffled = receipts.slice();
    for (let at = shuffled.length - 1; at > 0; at--) {
      const to = rng.below(at + 1);
      [shuffled[at], shuffled[to]] = [shuffled[to], shuffled[at]];
    }
    if (shuffled.every((each, at) => each === receipts[at])) continue;
    assert.throws(() => checkSequence(shuffled), SequenceError);
  }
});
