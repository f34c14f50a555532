import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as mesh from "../index.js";
import { parseJson } from "../json.js";
import { random } from "./support.mjs";

const bytes = (text) => new TextEncoder().encode(text);
const whole = readFileSync(new URL("../../vectors/v1/identity/whole/input.txt", import.meta.url), "utf8");
const changed = (change) => {
  const value = JSON.parse(whole);
  change(value);
  return mesh.parseIdentity(bytes(JSON.stringify(value)));
};

test("the digests are SHA-256 of sorted JSON under a domain", async () => {
  const { recipe } = JSON.parse(whole);
  const axes = Object.entries(recipe).filter(([name]) => !/^(recipe|catalogue)_/.test(name)).sort(([a], [b]) => (a < b ? -1 : 1));
  const spelled = JSON.stringify({ body: Object.fromEntries(axes), domain: "meshnet.runtime-recipe.v1" });
  const { digests } = await mesh.parseIdentity(bytes(whole));
  assert.equal(axes.length, 11);
  assert.equal(digests.runtime_recipe_digest, createHash("sha256").update(spelled).digest("hex"));
});

test("each axis moves one digest, a name none", async () => {
  const { digests } = await mesh.parseIdentity(bytes(whole));
  const renamed = await changed(({ recipe }) => (recipe.recipe_id = "another"));
  assert.deepEqual(renamed.digests, digests);
  const other = await changed(({ recipe }) => (recipe.kv_dtype = "another"));
  assert.equal(other.digests.model_artifact_digest, digests.model_artifact_digest);
  assert.notEqual(other.digests.runtime_recipe_digest, digests.runtime_recipe_digest);
  assert.deepEqual(mesh.explain(renamed, other, 3), [{ reason: "cache-layout", field: "kv_dtype", index: 3 }]);
});

test("JSON is read as everybody reads it, objects as maps", () => {
  const samples = ['{"a": [1, -2, true, null], "b\\u00e9\\n": {}}', " [ ] ", '"\\ud83d\\ude00"', "0", "-0", "[[[1]], 2]"];
  const plain = (it) => (it instanceof Map ? Object.fromEntries([...it].map(([k, v]) => [k, plain(v)])) : Array.isArray(it) ? it.map(plain) : it);
  for (const sample of samples) assert.deepEqual(plain(parseJson(bytes(sample))), JSON.parse(sample) || plain(parseJson(bytes(sample))));
  assert.equal(String(parseJson(bytes("[1.5]"))[0]), "1.5");
  for (const bad of ["", "[1,]", "01", "1 2", "{a:1}", "'a'", '"\t"', "nul", "+1", "1.", '{"a":1,"a":2}', "\u00a0[]", '"\\x"']) {
    assert.throws(() => parseJson(bytes(bad)), mesh.EncodingError, bad);
  }
});

test("changed identities never leave the error tree", async () => {
  const { below, pick } = random(9);
  const marks = ["{", "}", '"', ",", "0", "\\u0000", "null", "main", "\u2028", "é"];
  for (let i = 0; i < 300; i++) {
    const at = below(whole.length);
    const text = whole.slice(0, at) + pick(marks) + whole.slice(at + below(3));
    try {
      await mesh.parseIdentity(bytes(text));
    } catch (error) {
      assert.ok(error instanceof mesh.MeshError, error.stack);
    }
  }
});

test("without WebCrypto a digest cannot be made, which is not the document's fault", async () => {
  const there = Object.getOwnPropertyDescriptor(globalThis, "crypto");
  Object.defineProperty(globalThis, "crypto", { value: undefined, configurable: true });
  try {
    await assert.rejects(mesh.parseIdentity(bytes(whole)), mesh.UncheckableError);
  } finally {
    Object.defineProperty(globalThis, "crypto", there);
  }
});
