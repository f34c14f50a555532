import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Shake } from "../keccak.js";
import { KEY_BYTES, SIGNATURE_BYTES, verifies } from "../mldsa.js";

const kept = (name) => new Uint8Array(readFileSync(new URL(`../../conformance/signed/${name}.bin`, import.meta.url)));
// A list that nothing was revoked on is signed over all before its signatures: Ed25519, then ML-DSA-65.
const list = kept("list");
const key = kept("roots").subarray(32);
const signature = list.subarray(list.length - SIGNATURE_BYTES);
const content = list.subarray(0, list.length - SIGNATURE_BYTES - 64);
const message = new Uint8Array([...new TextEncoder().encode("mesh blueprint revocations v1\0"), ...content]);

test("SHAKE gives what OpenSSL gives, at and around the ends of its blocks", () => {
  for (const length of [0, 1, 7, 135, 136, 137, 167, 168, 169, 1000]) {
    const data = Uint8Array.from({ length }, (_, i) => i * 7);
    for (const strength of [128, 256]) {
      const theirs = createHash(`shake${strength}`, { outputLength: 400 }).update(data).digest("hex");
      const shake = new Shake(strength, data.subarray(0, length >> 1), data.subarray(length >> 1));
      const ours = Buffer.concat([shake.take(1), shake.take(399)]).toString("hex");
      assert.equal(ours, theirs, `${strength} ${length}`);
    }
  }
});

test("a signature of ML-DSA-65 that another library made holds, and for nothing else", () => {
  assert.equal(key.length, KEY_BYTES);
  assert.ok(verifies(key, signature, message));
  assert.ok(!verifies(key, signature, message.subarray(1)));
  assert.ok(!verifies(key, signature.subarray(1), message));
  assert.ok(!verifies(key.subarray(1), signature, message));
  for (const at of [0, 47, 48, 1000, 3247]) {
    const other = Uint8Array.from(signature, (byte, i) => byte ^ (i === at ? 1 : 0));
    assert.ok(!verifies(key, other, message), String(at));
  }
});

test("hints have one spelling", () => {
  const hints = 48 + 5 * 640;
  const ends = [...signature.subarray(hints + 55)];
  const changed = (change) => {
    const other = Uint8Array.from(signature);
    change(other);
    return other;
  };
  const first = ends.findIndex((end, row) => end - (ends[row - 1] ?? 0) > 1); // a row of two and more
  const at = hints + (ends[first - 1] ?? 0);
  for (const other of [
    changed((it) => ([it[at], it[at + 1]] = [it[at + 1], it[at]])),
    changed((it) => (it[at + 1] = it[at])),
    changed((it) => (it[hints + 55 + 5] = 56)),
    changed((it) => (it[hints + 55] = it[hints + 56] + 1)),
    changed((it) => (it[hints + 54] = 1)),
  ]) assert.ok(!verifies(key, other, message));
  assert.ok(ends[5] < 55, "this signature leaves places empty, which have to be 0");
});

test("a response out of its bound is refused", () => {
  const other = Uint8Array.from(signature);
  other.fill(0, 48, 51); // the first number is 2^19 then
  assert.ok(!verifies(key, other, message));
});
