import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

import { worked, workedIds } from "./support.mjs";

const CLIENT = fileURLToPath(new URL("../client.mjs", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "mesh-client-"));
after(() => rmSync(folder, { recursive: true }));

writeFileSync(join(folder, "envelope.cbor"), worked);
writeFileSync(join(folder, "trust.txt"), `${workedIds.steward}\n`);

function ask(...words) {
  const { status, stdout } = spawnSync(process.execPath, [CLIENT, ...words], { cwd: folder, encoding: "utf8" });
  return [status, stdout];
}

test("the client accepts with a line, rejects with a class and does not pass for either otherwise", () => {
  assert.deepEqual(ask("envelope", "receipt", "envelope.cbor", "trust.txt"), [0, `${workedIds.receipt}\n`]);
  assert.deepEqual(ask("envelope", "checkpoint", "envelope.cbor", "trust.txt"), [10, "reject header\n"]);
  assert.deepEqual(ask("decode", "envelope.cbor"), [10, "reject encoding\n"]);
  assert.deepEqual(ask("features"), [0, "reference\nreplay\ngrant\nidentity\nblueprint\naudit\nlaunch\n"]);
  assert.deepEqual(ask("sequence", "trust.txt", "envelope.cbor"), [0, "1\n"]);
  assert.deepEqual(ask("identity", "trust.txt"), [10, "reject encoding\n"]);
  assert.deepEqual(ask("decode", "missing"), [1, ""]);
  assert.deepEqual(ask("nonsense"), [2, ""]);
  assert.deepEqual(ask(), [2, ""]);
});
