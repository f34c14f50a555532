import assert from "node:assert/strict";
import { test } from "node:test";

import {
  MeshError,
  Trust,
  bare,
  contentIdText,
  decode,
  encode,
  fromHex,
  parseSteward,
  stewardText,
  toHex,
  verifyEnvelope,
} from "../index.js";
import { read } from "../cbor.js";
import { checkpoint, join18, random, receipt, seal, signer, steward, worked, workedIds } from "./support.mjs";

const trust = new Trust([steward.public]);

async function faultOf(bytes, { trusted = trust, type = "receipt" } = {}) {
  try {
    await verifyEnvelope(bytes, trusted, type);
    return "none";
  } catch (error) {
    assert.ok(error instanceof MeshError, String(error));
    return error.errorClass;
  }
}

function parts(bytes) {
  return read(bytes).value.content;
}

test("the worked envelope verifies and has its id", async () => {
  const known = new Trust([parseSteward(workedIds.steward)]);
  const { value, id, type } = await verifyEnvelope(worked, known, "receipt");
  assert.equal(type, "receipt");
  assert.equal(contentIdText(id), workedIds.receipt);
  assert.equal(contentIdText(value.request_id), workedIds.request);
  assert.deepEqual(bare(worked), worked);
});

test("an envelope that nobody changed verifies, as either type", async () => {
  assert.equal(await faultOf(seal("receipt", receipt())), "none");
  assert.equal(await faultOf(seal("checkpoint", checkpoint()), { type: "checkpoint" }), "none");
  assert.equal((await verifyEnvelope(seal("checkpoint", checkpoint()), trust)).type, "checkpoint");
});

test("receipts of a log in the unprotected header change no verdict and are taken out", async () => {
  const plain = seal("receipt", receipt());
  const noted = seal("receipt", receipt(), { unprotected: new Map([[394, [Uint8Array.of(1)]]]) });
  assert.equal(await faultOf(noted), "none");
  assert.deepEqual(bare(noted), plain);
});

test("each fault has its class", async () => {
  const good = seal("receipt", receipt());
  const [header, unprotected, payload, signature] = parts(good);
  const other = signer(new Uint8Array(32).fill(8));
  const changedSignature = signature.slice();
  changedSignature[3] ^= 1;
  const headers = (changes) => seal("receipt", receipt(), { headers: changes });
  const with_ = (map) => seal("receipt", receipt(), { unprotected: map });
  const raw = (bytes) => join18(bytes, unprotected, payload, signature);
  const claims = (map) => headers({ 15: map });
  const issuer = stewardText(steward.public);
  const faults = [
    ["structure", new Uint8Array(0)],
    ["structure", good.subarray(1)],
    ["structure", Uint8Array.of(0xd1, ...good.subarray(1))],
    ["structure", Uint8Array.of(0xd2, ...good)],
    ["structure", good.subarray(0, good.length - 1)],
    ["structure", join18(header, [], payload, signature)],
    ["structure", join18(header, unprotected, "x", signature)],
    ["structure", join18(header, unprotected, new Uint8Array(32769), signature)],
    ["structure", join18(header, unprotected, payload, signature.subarray(1))],
    ["structure", raw(new Uint8Array(0))],
    ["structure", raw(Uint8Array.of(0x80))],
    ["structure", raw(new Uint8Array(2049))],
    ["structure", raw(fromHex("a201000100"))],
    ["structure", raw(fromHex("a161ff00"))],
    ["structure", raw(fromHex("a101c000"))],
    ["structure", join18(header, new Map([[394, Array(1).fill(Uint8Array.of(0))], [5, new Uint8Array(65536)]]), payload, signature)],
    ["canonical", Uint8Array.of(...good, 0)],
    ["canonical", Uint8Array.of(0xd2, 0x98, 4, ...good.subarray(2))],
    ["canonical", Uint8Array.of(0xd8, 18, ...good.subarray(1))],
    ["canonical", Uint8Array.of(0xd2, 0x9f, ...good.subarray(2), 0xff)],
    ["canonical", raw(Uint8Array.of(...header, 0))],
    ["canonical", raw(Uint8Array.of(0xb8, 4, ...header.subarray(1)))],
    ["canonical", raw(fromHex("a203000100"))],
    ["canonical", raw(fromHex("bf0100ff"))],
    ["header", raw(fromHex("a0"))],
    ["header", raw(fromHex("a101f6"))],
    ["header", raw(fromHex("a16161f93c00"))],
    ["header", headers({ 1: -8 })],
    ["header", headers({ 3: "application/cose" })],
    ["header", headers({ 3: "application/mesh-checkpoint+cbor" })],
    ["header", headers({ 4: steward.public.subarray(1) })],
    ["header", headers({ 15: "x" })],
    ["header", headers({ 15: undefined })],
    ["header", claims(new Map([[1, issuer]]))],
    ["header", claims(new Map([[1, issuer.toUpperCase()], [2, "reference"]]))],
    ["header", claims(new Map([[1, stewardText(other.public)], [2, "reference"]]))],
    ["header", claims(new Map([[1, issuer], [2, 1]]))],
    ["header", claims(new Map([[1, issuer], [2, "reference"], [6, 1]]))],
    ["header", with_(new Map([[395, 1]]))],
    ["header", with_(new Map([[394, []]]))],
    ["header", with_(new Map([[394, ["x"]]]))],
    ["header", with_(new Map([[394, [Uint8Array.of(1)]], [4, 0]]))],
    ["header", with_(new Map([["394", [Uint8Array.of(1)]]]))],
    ["trust", seal("receipt", receipt({ steward: other.public }), { by: other })],
    ["signature", join18(header, unprotected, payload, changedSignature)],
    ["signature", join18(header, unprotected, Uint8Array.of(...payload, 0), signature)],
    ["payload", seal("receipt", receipt({ steward: other.public }))],
    ["payload", seal("receipt", receipt(), { subject: "another" })],
    ["payload", seal("receipt", receipt({ v: "mesh/2" }))],
    ["payload", seal("receipt", {}, { subject: "reference", payload: new Uint8Array(0) })],
    ["payload", seal("receipt", {}, { subject: "reference", payload: Uint8Array.of(...encode(receipt()), 0) })],
  ];
  for (const [expected, bytes] of faults) assert.equal(await faultOf(bytes), expected, toHex(bytes).slice(0, 300));
  assert.equal(await faultOf(good, { type: "checkpoint" }), "header");
  assert.equal(await faultOf(seal("checkpoint", checkpoint(), { subject: "x" }), { type: "checkpoint" }), "payload");
});

test("the window of a key is looked at last", async () => {
  const line = (window) => Trust.parse(`${stewardText(steward.public)} ${window}`);
  const good = seal("receipt", receipt({ ended_ns: 1790000000000000000n }));
  const at = "2026-09-21T14:13:20Z";
  const after = "2026-09-21T14:13:21Z";
  assert.equal(await faultOf(good, { trusted: line(`from=${at}`) }), "none");
  assert.equal(await faultOf(good, { trusted: line(`until=${after}`) }), "none");
  assert.equal(await faultOf(good, { trusted: line(`until=${at}`) }), "trust");
  assert.equal(await faultOf(good, { trusted: line(`from=${after}`) }), "trust");
  const bad = seal("receipt", receipt({ v: "x" }));
  assert.equal(await faultOf(bad, { trusted: line(`until=${at}`) }), "payload");
});

test("no change of one bit of an envelope verifies", async () => {
  const rng = random(9);
  for (let i = 0; i < 300; i++) {
    const bytes = worked.slice();
    bytes[rng.below(bytes.length)] ^= 1 << rng.below(8);
    assert.notEqual(await faultOf(bytes), "none");
  }
});

test("the payload inside the envelope is canonical and the same on every path", () => {
  const payload = parts(worked)[2];
  assert.deepEqual(encode(decode(payload)), payload);
});
