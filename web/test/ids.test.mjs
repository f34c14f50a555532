import assert from "node:assert/strict";
import { test } from "node:test";

import {
  SchemaError,
  commitment,
  contentId,
  contentIdText,
  encode,
  fromHex,
  opening,
  packIds,
  parseContentId,
  parseReceipt,
  parseServeId,
  parseSteward,
  payloadDigest,
  promptHashOfText,
  referenceCache,
  referenceTokens,
  serveIdText,
  stewardText,
  toHex,
  unpackIds,
  view,
} from "../index.js";
import { read } from "../cbor.js";
import { random, receipt, seed, worked, workedIds } from "./support.mjs";

const value = parseReceipt(read(worked).value.content[2]);

test("the worked receipt's digests all follow from its seed, prompt and ids", () => {
  const nonce = new Uint8Array(32);
  assert.deepEqual(promptHashOfText("hi", nonce), value.prompt_hash);
  const payload = payloadDigest(packIds([104, 105]));
  assert.equal(toHex(payload), workedIds.payload);
  const open = opening(seed, parseContentId(workedIds.request), value.serve_id);
  assert.equal(toHex(open), workedIds.opening);
  const ids = referenceTokens(value.prompt_hash, value.max_tokens);
  assert.deepEqual(ids, [2401, 30756, 29543, 14630]);
  assert.deepEqual(commitment(open, value.request_id, payload, packIds(ids)), value.output_commitment);
});

test("text forms go there and back, and no other form is taken", () => {
  const rng = random(13);
  for (let i = 0; i < 50; i++) {
    const id = rng.bytes(32);
    const serve = rng.bytes(16);
    assert.deepEqual(parseContentId(contentIdText(id)), id);
    assert.deepEqual(parseSteward(stewardText(id)), id);
    assert.deepEqual(parseServeId(serveIdText(serve)), serve);
  }
  const hex = "a".repeat(64);
  for (const text of [hex, `b3:${hex} `, ` b3:${hex}`, `b3:${hex}\n`, `b3:${hex.toUpperCase()}`, `B3:${hex}`, `b3:${hex}a`, ""]) {
    assert.throws(() => parseContentId(text), SchemaError, text);
  }
  assert.throws(() => parseSteward(`b3:${hex}`), SchemaError);
  for (const text of ["a".repeat(32), "01a0c4506c00-7000-8000-000000000000", "01A0C450-6c00-7000-8000-000000000000"]) {
    assert.throws(() => parseServeId(text), SchemaError, text);
  }
});

test("an unknown kind and a payload context are no content ids", () => {
  for (const kind of ["payload", "opening-key", "output-commitment", "", "receipts"]) {
    assert.throws(() => contentId(kind, encode({})), SchemaError);
  }
});

test("packed ids go there and back", () => {
  assert.deepEqual([...unpackIds(packIds([0, 1, 2 ** 32 - 1]))], [0, 1, 2 ** 32 - 1]);
  for (const ids of [[-1], [2 ** 32], [1.5]]) assert.throws(() => packIds(ids), SchemaError);
  assert.throws(() => unpackIds(new Uint8Array(5)), SchemaError);
});

test("the reference engine counts a repeated start state as cached", () => {
  const hash = new Uint8Array(32);
  // 2 ^ (1 << 1) and 0 ^ (0 << 1) are one state only where the first byte says so.
  const twin = hash.slice();
  twin[0] = (4 << 1) ^ (5 << 1);
  assert.deepEqual(referenceCache([[hash, 4], [hash, 5], [hash, 4], [twin, 5]]), [0, 0, 4, 5]);
  for (const count of [0, 2 ** 31, NaN]) assert.throws(() => referenceTokens(hash, count), SchemaError);
});

test("the view shows ids in their text forms and big numbers as text", () => {
  const shown = view(value);
  assert.equal(shown.steward, workedIds.steward);
  assert.equal(shown.serve_id, "01a0c450-6c00-7000-8000-000000000000");
  assert.equal(shown.request_id, workedIds.request);
  assert.equal(shown.started_ns, "1790000000000000000");
  assert.equal(shown.seq, 0);
  assert.match(shown.output_commitment, /^[0-9a-f]{64}$/);
  assert.match(shown.engine.process, /^0{32}$/);
  assert.match(shown.engine.settings_digest, /^b3:/);
  assert.deepEqual(JSON.parse(JSON.stringify(shown)), shown);
  assert.equal(JSON.stringify(view(new Map([["__proto__", fromHex("00")]]))), '{"__proto__":"00"}');
  assert.equal(view(parseReceipt(encode(receipt()))).max_tokens, 4);
});
