import assert from "node:assert/strict";
import { test } from "node:test";

import { MeshError, Trust, TrustFileError, stewardText } from "../index.js";
import { random, signer, steward } from "./support.mjs";

const KEY = stewardText(steward.public);

test("a trust file has keys, windows and words for people", () => {
  const other = stewardText(signer(new Uint8Array(32)).public);
  const trust = Trust.parse(`# keys\n\n  ${KEY}   from=2026-01-01T00:00:00Z until=2026-02-01T00:00:00Z # first\r\n${other}#x\n${KEY} from=2027-01-01T00:00:00Z`);
  assert.equal(trust.size, 2);
  assert.deepEqual(trust.stewards(), [KEY, other]);
  const ns = (time) => BigInt(Date.parse(time)) * 1000000n;
  assert.equal(trust.covers(steward.public, ns("2026-01-01T00:00:00Z")), true);
  assert.equal(trust.covers(steward.public, ns("2026-01-01T00:00:00Z") - 1n), false);
  assert.equal(trust.covers(steward.public, ns("2026-02-01T00:00:00Z") - 1n), true);
  assert.equal(trust.covers(steward.public, ns("2026-02-01T00:00:00Z")), false);
  assert.equal(trust.covers(steward.public, ns("2028-01-01T00:00:00Z")), true);
  assert.equal(trust.covers(new Uint8Array(32), 0n), false);
});

test("a trust file that cannot be followed is refused", () => {
  const lines = ["", "# nothing", KEY.toUpperCase(), KEY.slice(0, -1), KEY.slice(8), `${KEY} ${KEY}`, `${KEY} for=ever`,
    `${KEY} from=2026-01-01`, `${KEY} from=2026-01-01T00:00:00`, `${KEY} from=2026-01-01T00:00:00+00:00`,
    `${KEY} from=2026-02-30T00:00:00Z`, `${KEY} from=2026-01-01T24:00:00Z`, `${KEY} from=2026-01-01T00:00:60Z`,
    `${KEY} from=2026-01-01T00:00:00.5Z`, `${KEY} from=2026-01-01t00:00:00z`, `${KEY} from=`,
    `${KEY} from=1969-12-31T23:59:59Z`, `${KEY} until=2262-04-11T23:47:17Z`,
    `${KEY} from=2026-01-01T00:00:00Z from=2026-01-01T00:00:00Z`,
    `${KEY} from=2026-01-01T00:00:00Z until=2026-01-01T00:00:00Z`,
    `${KEY} from=2026-01-02T00:00:00Z until=2026-01-01T00:00:00Z`,
    `ed25519:01${"00".repeat(31)}`, `ed25519:${"ff".repeat(32)}`, `ed25519:02${"00".repeat(31)}`, `\ufeff${KEY}`];
  for (const line of lines) assert.throws(() => Trust.parse(line), TrustFileError, line);
  assert.throws(() => Trust.parse(Uint8Array.of(0xff)), TrustFileError);
  assert.throws(() => Trust.parse(new Uint8Array(1048577).fill(0x0a)), TrustFileError);
});

test("changed trust files never leave the error tree", () => {
  const rng = random(10);
  const good = new TextEncoder().encode(`${KEY} from=2026-01-01T00:00:00Z until=2026-02-01T00:00:00Z # x\n`);
  for (let i = 0; i < 3000; i++) {
    const bytes = good.slice();
    bytes[rng.below(bytes.length)] = rng.below(128);
    try {
      Trust.parse(bytes);
    } catch (error) {
      assert.ok(error instanceof MeshError, String(error));
    }
  }
});
