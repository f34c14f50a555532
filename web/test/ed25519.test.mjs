import assert from "node:assert/strict";
import { test } from "node:test";

import { SignatureError, fromHex } from "../index.js";
import { keyFault, point, verify } from "../ed25519.js";
import { random, signer } from "./support.mjs";

const P = 2n ** 255n - 19n;
const ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;

function little(value) {
  return Uint8Array.from({ length: 32 }, (_, i) => Number((value >> BigInt(8 * i)) & 255n));
}

function signed(value) {
  const bytes = little(value);
  bytes[31] |= 0x80;
  return bytes;
}

const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n;
const mod = (value) => ((value % P) + P) % P;

function inverse(value) {
  let result = 1n;
  for (let base = mod(value), exponent = P - 2n; exponent; exponent >>= 1n, base = mod(base * base)) {
    if (exponent & 1n) result = mod(result * base);
  }
  return result;
}

// Points as x/z, y/z: one inverse at the end, and not two for each addition.
function add([x, y, z], [u, v, w]) {
  const [a, c, d] = [mod(z * w), mod(x * u), mod(y * v)];
  const e = mod(D * c * d);
  const [f, g] = [a * a - e, a * a + e];
  return [mod(a * f * ((x + y) * (u + v) - c - d)), mod(a * g * (c + d)), mod(f * g)];
}

function multiple(times, [u, v]) {
  let result = [0n, 1n, 1n];
  for (let at = [u, v, 1n]; times; times >>= 1n, at = add(at, at)) if (times & 1n) result = add(result, at);
  const [x, y, z] = result;
  return [mod(x * inverse(z)), mod(y * inverse(z))];
}

test("ed25519 refuses each of the eight points of small order", () => {
  const found = new Set();
  // The order of the prime subgroup takes any point to one of the eight.
  for (let y = 2n; y < 60n; y++) {
    const at = point(little(y));
    if (!at) continue;
    const [x, small] = multiple(ORDER, at);
    const key = little(small);
    if (x & 1n) key[31] |= 0x80;
    found.add(`${x} ${small}`);
    assert.equal(keyFault(key), "of small order");
  }
  assert.equal(found.size, 8);
});

test("ed25519 refuses a key that is no canonical point", () => {
  for (let above = 0n; above < 19n; above++) {
    assert.equal(keyFault(little(P + above)), "not the canonical encoding of a point");
    assert.equal(keyFault(signed(P + above)), "not the canonical encoding of a point");
  }
  assert.equal(point(little(2n)), null, "no x goes with this y");
  assert.equal(point(signed(1n)), null, "x is 0, and its sign is set");
  assert.notEqual(keyFault(new Uint8Array(31)), null);
});

test("ed25519 verifies what another implementation signed, and nothing else", async () => {
  const rng = random(6);
  for (let i = 0; i < 20; i++) {
    const key = signer(rng.bytes(32));
    const message = rng.bytes(rng.below(200));
    const signature = key.sign(message);
    await verify(key.public, signature, message);
    for (const [at, bytes] of [[0, signature], [1, key.public], [2, message]]) {
      if (!bytes.length) continue;
      const changed = bytes.slice();
      changed[rng.below(bytes.length)] ^= 1 << rng.below(8);
      const parts = [signature, key.public, message].with(at, changed);
      await assert.rejects(verify(parts[1], parts[0], parts[2]), SignatureError);
    }
  }
});

test("ed25519 refuses an s that is not below the group order", async () => {
  const key = signer(random(7).bytes(32));
  const message = Uint8Array.of(1);
  const signature = key.sign(message);
  const s = signature.slice(32).reduceRight((value, byte) => (value << 8n) | BigInt(byte), 0n);
  signature.set(little(s + ORDER), 32);
  await assert.rejects(verify(key.public, signature, message), /below the group order/);
});

// Made by hand: key, signature over "hi", and what makes it special.
const KEY = "7767a3242dc9b58bbc68488c1265cc6cc5f26c6f3c88a5d55e901b0734dca572";
const TORSIONED_KEY = "6a84d583f06569edb3f5ed77df65544b27d6948b4f0b2cb76f33dd8413b20719";
const HI = new TextEncoder().encode("hi");

test("ed25519 refuses an r of small order, which holds the equation", async () => {
  const signature = fromHex(
    "0100000000000000000000000000000000000000000000000000000000000000" +
      "afefb4594b283cfb2dec7eaccd55f18aa83feb4a5a3fb47e13cec3698211ee05",
  );
  await assert.rejects(verify(fromHex(KEY), signature, HI), /small order/);
});

test("ed25519 takes the equation without cofactor", async () => {
  const onlyWithCofactor = fromHex(
    "1c354c4c7a6de4bcb4fd275f391333dd9bf17d38b41332753f60cf56d5ef4fcc" +
      "ae28e041437bf50df3635caa4d4877c44acd1186e243dead2974c7ebfe216503",
  );
  await assert.rejects(verify(fromHex(KEY), onlyWithCofactor, HI), /does not hold/);
  const torsionedKey = fromHex(
    "51c0cb66db48f781e9022b55fd93b35def1eb15b372070982767ed4bd08ab435" +
      "56cd536c1844ec95d42a1d8e7aff0ea7e81e3330cd3d9b4d939b26a151d83505",
  );
  await verify(fromHex(TORSIONED_KEY), torsionedKey, HI);
});
