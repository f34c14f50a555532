/**
 * The conformance client: one question per call, as conformance/PROTOCOL.md has it.
 *
 *     node client.mjs OP ARGUMENT...
 */

import { readFileSync } from "node:fs";

import { answer, isOperation } from "./operations.js";

const USAGE = 2;

const words = process.argv.slice(2);
if (isOperation(words[0] ?? "")) {
  const { code, line, why } = await answer(words, (name) => new Uint8Array(readFileSync(name)));
  if (why !== undefined) process.stderr.write(`${why}\n`);
  if (line !== undefined) process.stdout.write(`${line}\n`);
  process.exitCode = code;
} else {
  process.stderr.write("usage: node client.mjs OP ARGUMENT...\n");
  process.exitCode = USAGE;
}
