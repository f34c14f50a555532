import assert from "node:assert/strict";
import { test } from "node:test";

import { EncodingError, MeshError, SchemaError, decode, encode, fromHex, toHex } from "../index.js";
import { read } from "../cbor.js";
import { random, worked } from "./support.mjs";

const VALUES = [
  ["00", 0],
  ["17", 23],
  ["1818", 24],
  ["18ff", 255],
  ["190100", 256],
  ["1a00010000", 65536],
  ["1b0000000100000000", 2 ** 32],
  ["1b001fffffffffffff", Number.MAX_SAFE_INTEGER],
  ["1b0020000000000000", 2n ** 53n],
  ["1bffffffffffffffff", 2n ** 64n - 1n],
  ["20", -1],
  ["3b001ffffffffffffe", Number.MIN_SAFE_INTEGER],
  ["3b7fffffffffffffff", -(2n ** 63n)],
  ["40", new Uint8Array(0)],
  ["4201ff", Uint8Array.of(1, 255)],
  ["60", ""],
  ["62c3bc", "ü"],
  ["63efbbbf", "\ufeff"],
  ["64f0908591", "\u{10151}"],
  ["80", []],
  ["8201820203", [1, [2, 3]]],
  ["a0", new Map()],
  ["a2616101626161f5", new Map([["a", 1], ["aa", true]])],
  ["a1695f5f70726f746f5f5f01", new Map([["__proto__", 1]])],
  ["f4", false],
];

const REFUSED = {
  "nothing": "",
  "trailing bytes": "0000",
  "one byte where none is needed": "1817",
  "two bytes for one": "1900ff",
  "four bytes for two": "1a0000ffff",
  "eight bytes for four": "1b00000000ffffffff",
  "a wide length": "580100",
  "a wide text length": "780161",
  "a wide array length": "980100",
  "a wide map length": "b801616100",
  "a negative below -2^63": "3b8000000000000000",
  "a wide negative": "3800",
  "indefinite bytes": "5f4100ff",
  "indefinite text": "7f6161ff",
  "an indefinite array": "9f00ff",
  "an indefinite map": "bf616100ff",
  "a break alone": "ff",
  "reserved heads": "1c",
  "a tag": "c000",
  "null": "f6",
  "undefined": "f7",
  "a half float": "f93c00",
  "a float": "fa3f800000",
  "a double": "fb3ff0000000000000",
  "another simple value": "e0",
  "true in two bytes": "f815",
  "a cut string": "4201",
  "a cut array": "8201",
  "a cut map": "a16161",
  "a cut head": "19ff",
  "a length near 2^64": "5bffffffffffffffff",
  "an array length near 2^64": "9bffffffffffffffff",
  "a repeated key": "a2616100616101",
  "keys out of order": "a2616200616100",
  "a long key before a short one": "a262616100616200",
  "an integer key": "a10000",
  "a byte string key": "a1416100",
  "a boolean key": "a1f500",
  "text that is not utf-8": "61ff",
  "an overlong form": "62c080",
  "a surrogate": "63eda080",
  "a code point above the last": "64f4908080",
  "a cut character": "61c3",
  "seventeen arrays": "81".repeat(17) + "00",
  "seventeen empty": "81".repeat(16) + "80",
};

test("decode and encode agree on every form of value", () => {
  for (const [hex, value] of VALUES) {
    assert.deepEqual(decode(fromHex(hex)), value, hex);
    assert.equal(toHex(encode(value)), hex);
  }
});

test("decode refuses every other spelling and type", () => {
  for (const [what, hex] of Object.entries(REFUSED)) {
    assert.throws(() => decode(fromHex(hex)), EncodingError, what);
  }
});

test("decode takes sixteen arrays inside one another and a limit as it is", () => {
  decode(fromHex("81".repeat(15) + "80"));
  decode(fromHex("81".repeat(16) + "00"));
  decode(fromHex("4100"), { limit: 2 });
  assert.throws(() => decode(fromHex("4100"), { limit: 1 }), EncodingError);
});

test("decode ends soon on a hostile count of items", () => {
  const bytes = new Uint8Array(5 + 400000).fill(0x80);
  bytes.set([0x9a, 0, 6, 0x1a, 0x80]);
  assert.throws(() => decode(bytes), EncodingError);
});

test("encode refuses what the format cannot hold", () => {
  for (const value of [null, undefined, 1.5, NaN, 2 ** 53, 2n ** 64n, -(2n ** 63n) - 1n, "\ud800", Symbol("x"), () => 0]) {
    assert.throws(() => encode([value]), SchemaError);
  }
  assert.throws(() => encode(Array(17).fill(0).reduce((inner) => [inner], 0)), SchemaError);
});

function randomValue(rng, depth) {
  switch (rng.below(depth > 4 ? 5 : 7)) {
    case 0:
      return rng.below(2) === 1;
    case 1:
      return rng.below(2 ** 32) >>> rng.below(32);
    case 2: {
      const wide = (BigInt(rng.below(2 ** 32)) << 32n) | BigInt(rng.below(2 ** 32));
      const value = rng.below(2) ? wide : -(wide >> 1n) - 1n;
      return value <= Number.MAX_SAFE_INTEGER && value >= Number.MIN_SAFE_INTEGER ? Number(value) : value;
    }
    case 3:
      return rng.bytes(rng.below(30));
    case 4:
      return String.fromCodePoint(...Array.from({ length: rng.below(30) }, () => rng.pick([65, 0, 0xe9, 0x20ac, 0x1f600])));
    case 5:
      return Array.from({ length: rng.below(5) }, () => randomValue(rng, depth + 1));
    default: {
      const keys = new Set(Array.from({ length: rng.below(5) }, () => "k".repeat(rng.below(40)) + rng.below(10)));
      return new Map([...keys].map((key) => [key, randomValue(rng, depth + 1)]));
    }
  }
}

test("random values come back as they were, with maps in any order", () => {
  const rng = random(20261130);
  for (let i = 0; i < 2000; i++) {
    const value = randomValue(rng, 0);
    const bytes = encode(value);
    const again = decode(bytes);
    assert.equal(toHex(encode(again)), toHex(bytes));
    if (value instanceof Map) assert.equal(toHex(encode(new Map([...value].reverse()))), toHex(bytes));
  }
});

test("whatever decode takes is the encoding of what it gives", () => {
  const rng = random(4);
  let taken = 0;
  for (let i = 0; i < 60000; i++) {
    const bytes = rng.bytes(1 + rng.below(9));
    try {
      const value = decode(bytes);
      assert.equal(toHex(encode(value)), toHex(bytes));
      taken++;
    } catch (error) {
      assert.ok(error instanceof EncodingError, String(error));
    }
  }
  assert.ok(taken > 1000, `${taken} taken`);
});

test("read tells a fault of spelling from one of structure", () => {
  assert.equal(read(fromHex("d280")).fault, null);
  for (const hex of ["d29800", "d28000", "d29fff", "bf0000ff", "a201000000", "a220001818f4"]) {
    assert.notEqual(read(fromHex(hex)).fault, null, hex);
  }
  assert.equal(read(fromHex("a21818002000")).fault, null, "bytewise order is not by length");
  assert.notEqual(read(fromHex("5f41004101ff")).fault, null);
  for (const hex of ["", "d2", "d2d280", "81c000", "a201000100", "a20100180100", "5f6161ff", "7f5f4100ffff", "1f", "7f61ffff"]) {
    assert.throws(() => read(fromHex(hex)), EncodingError, hex);
  }
});

test("changed bytes of an envelope never leave the error tree", () => {
  const rng = random(5);
  for (let i = 0; i < 5000; i++) {
    const bytes = worked.slice();
    for (let n = rng.below(4); n >= 0; n--) bytes[rng.below(bytes.length)] = rng.below(256);
    try {
      read(bytes.subarray(0, rng.below(4) ? bytes.length : rng.below(bytes.length)));
    } catch (error) {
      assert.ok(error instanceof MeshError, String(error));
    }
  }
});
