import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import * as mesh from "../index.js";
import { FAULTS } from "./faults.mjs";

const WEB = new URL("..", import.meta.url);
const modules = readdirSync(WEB).filter((name) => name.endsWith(".js"));
const source = (name) => readFileSync(new URL(name, WEB), "utf8");

test("a page can load every module: each imports alone and only its neighbours", async () => {
  for (const name of modules) {
    for (const [, from] of source(name).matchAll(/^(?:import|export)\b[^;]*? from "([^"]+)";/gms)) {
      assert.ok(modules.includes(from.replace("./", "")), `${name} imports ${from}`);
    }
    assert.doesNotMatch(source(name), /\bBuffer\b|\bprocess\.|\brequire\(/, name);
    await import(new URL(name, WEB).href);
  }
});

test("every error of an input has a class, and each is in the tree", () => {
  const errors = Object.entries(mesh).filter(([name]) => /Error$|^Moving/.test(name) && !["MeshError", "WrongError", "BlueprintError"].includes(name));
  const classes = errors.map(([, type]) => new type("x")).map((error) => {
    assert.ok(error instanceof mesh.MeshError && error.name);
    return error.errorClass;
  });
  assert.deepEqual(classes.toSorted(), ["", "", "body", "body-hash", "canonical", "chain", "container", "encoding", "expired",
    "fingerprint", "header", "kernel", "layers", "lineage", "moving-reference", "payload", "postcard", "revoked", "schema",
    "sequence", "signature", "signer", "structure", "trust", "trust-file"]);
});

test("every planted fault still has its place", () => {
  for (const [name, file, from, to] of FAULTS) {
    assert.equal(source(file).split(from).length, 2, name);
    assert.notEqual(from, to, name);
  }
});
