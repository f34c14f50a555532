/**
 * Several envelopes side by side. Files need not be all that there is of a log: what is between them may be elsewhere,
 * which is no fault; a fork or a wrong predecessor is.
 *
 * @typedef {{steward: string, receipts: number, runs: number, fault: {errorClass: string, message: string}|null}} Together
 */

import { same, toHex } from "../bytes.js";
import { MeshError } from "../errors.js";
import { stewardText } from "../ids.js";
import { checkSequence } from "../sequence.js";

/** @typedef {import("../envelope.js").Verified} Verified */

/** @param {readonly Verified[]} held @returns {Together[]} of each steward with more than one receipt */
export function together(held) {
  const stewards = new Map(held.map(({ steward }) => [toHex(steward), steward]));
  return [...stewards.values()]
    .map((steward) => ofOne(steward, once(held.filter((it) => same(it.steward, steward)))))
    .filter(({ receipts }) => receipts > 1);
}

/** One file twice is one receipt. @param {readonly Verified[]} held @returns {Verified[]} */
function once(held) {
  return [...new Map(held.map((it) => [toHex(it.id), it])).values()];
}

/** @param {Uint8Array} steward @param {Verified[]} held @returns {Together} */
function ofOne(steward, held) {
  const receipts = held.filter(({ type }) => type === "receipt").toSorted((a, b) => Number(a.value.seq - b.value.seq));
  const checkpoints = held.filter(({ type }) => type === "checkpoint");
  const runs = split(receipts);
  const told = { steward: stewardText(steward), receipts: receipts.length, runs: runs.length };
  try {
    for (const run of runs) {
      const [first, last] = [run[0].value.seq, run[run.length - 1].value.seq];
      // a checkpoint says something of the run that its head is in
      checkSequence([...run, ...checkpoints.filter(({ value }) => value.count > first && value.count <= last + 1n)]);
    }
  } catch (error) {
    if (!(error instanceof MeshError)) throw error;
    return { ...told, fault: { errorClass: error.errorClass, message: error.message } };
  }
  return { ...told, fault: null };
}

/** @param {Verified[]} receipts by number @returns {Verified[][]} without a gap in each; one number twice stays together */
function split(receipts) {
  /** @type {Verified[][]} */
  const runs = [];
  for (const each of receipts) {
    const run = runs[runs.length - 1];
    if (run && each.value.seq <= run[run.length - 1].value.seq + 1n) run.push(each);
    else runs.push([each]);
  }
  return runs;
}
