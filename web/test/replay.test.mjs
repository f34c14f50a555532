import assert from "node:assert/strict";
import { test } from "node:test";

import {
  commitment,
  contentId,
  decide,
  decode,
  encode,
  packIds,
  parseDisclosure,
  parseReplayer,
  payloadDigest,
  promptHashOfIds,
  promptHashOfText,
} from "../index.js";
import { line } from "../verdict.js";
import { random, receipt as fields, request as requestFields } from "./support.mjs";

const OPENING = new Uint8Array(32).fill(5);
const ID = new Uint8Array(32).fill(6);
const PROMPT = packIds([104, 105]);
const SERVE = new Uint8Array(16).fill(7);

/** A serve of [1, 2, 3, 4] and a replayer that makes the same; every part may be changed. */
function scene({ served = [1, 2, 3, 4], request = {}, receipt = {}, engine = {}, outcome = {}, disclosure = {}, a, b,
  replayer = {}, committed } = {}) {
  const asked = requestFields({ prompt_hash: promptHashOfText("hi"), ...request });
  const requestId = contentId("request", encode(asked));
  const settings = { engine: "reference" };
  const decoding = { tokens: packIds(served), finish: "length", accepted: 4 };
  const base = fields();
  return decide(
    {
      ...base,
      serve_id: SERVE,
      request_id: requestId,
      prompt_hash: asked.prompt_hash,
      max_tokens: asked.max_tokens,
      engine: { ...base.engine, settings_digest: contentId("settings", settings), ...engine },
      outcome: { finish: "length", counted_by: "both", tokens_in: 2, tokens_out: served.length, tokens_accepted: 4, ...outcome },
      output_commitment: commitment(OPENING, requestId, payloadDigest(PROMPT), packIds(committed ?? served)),
      ...receipt,
    },
    disclosure &&
      parseDisclosure(
        encode({ serve_id: SERVE, request: asked, payload: PROMPT, opening: OPENING, settings, output: packIds(served), ...disclosure }),
      ),
    parseReplayer(
      encode({
        backend_id: base.engine.backend_id,
        recipe_id: "reference",
        deterministic: true,
        settings,
        a: a?.failed ? a : { ...decoding, ...a },
        b: b?.failed ? b : { ...decoding, ...a, ...b },
        ...replayer,
      }),
    ),
  );
}

const CASES = [
  ["verified 10 decode prompt=unchecked output=matches", {}],
  ["verified 10 decode prompt=checked output=matches", { disclosure: { prompt: "hi" }, replayer: { encodings: [packIds([9]), PROMPT] } }],
  ["verified 10 decode prompt=checked output=matches", { disclosure: { prompt: "hi" } }],
  ["verified 10 decode prompt=unchecked output=matches", { disclosure: { prompt: "hi" }, replayer: { encodings: [] } }],
  ["verified 10 decode prompt=checked output=matches", { request: { prompt_hash: promptHashOfIds(PROMPT) } }],
  ["verified 10 decode prompt=unchecked output=not-given", { disclosure: { output: undefined } }],
  ["verified 10 decode prompt=unchecked output=differs", { disclosure: { output: packIds([1, 2, 3]) } }],
  ["verified 10 decode prompt=unchecked output=matches ending=cut",
    { served: [1, 2], outcome: { finish: "cancelled", tokens_accepted: undefined }, a: { tokens: packIds([1, 2, 3, 4]) } }],
  ["not-replayable 1 other-request field=request", { receipt: { request_id: ID } }],
  ["not-replayable 1 other-request field=prompt", { disclosure: { prompt: "ho" } }],
  ["not-replayable 1 other-request field=serve_id", { disclosure: { output: undefined, serve_id: new Uint8Array(16) } }],
  ["not-replayable 1 other-request field=payload", { disclosure: { output: undefined, payload: packIds([1]) } }],
  ["not-replayable 2 incomplete-serve", { outcome: { finish: "engine-error" } }],
  ["not-replayable 2 incomplete-serve", { outcome: { finish: "interrupted" }, disclosure: null }],
  ["not-replayable 3 no-commitment", { receipt: { output_commitment: undefined } }],
  ["not-replayable 3 no-commitment", { receipt: { output_commitment: undefined }, disclosure: null }],
  ["not-replayable 4 no-opening", { disclosure: null }],
  ["diverged 5 field=tokens_out", { outcome: { tokens_out: 3 } }],
  ["diverged 5 field=tokens_in", { outcome: { tokens_in: 3 } }],
  ["diverged 5 field=finish", { request: { max_tokens: 5 } }],
  ["diverged 5 field=max_tokens", { receipt: { max_tokens: 9 } }],
  ["diverged 5 field=prompt_hash", { receipt: { prompt_hash: ID } }],
  ["diverged 5 field=prompt_tokens", { request: { prompt_tokens: 3 } }],
  ["diverged 5 field=tokens_accepted", { outcome: { tokens_accepted: 5 } }],
  ["diverged 5 field=tokens_delivered", { outcome: { tokens_delivered: 5 } }],
  ["diverged 5 field=weights_digest", { outcome: { weights_digest: ID } }],
  ["not-replayable 6 other-backend", { replayer: { backend_id: "x/1/none/none/none/none", recipe_id: "x" } }],
  ["not-replayable 6 other-recipe", { replayer: { recipe_id: "x", weights_digest: ID } }],
  ["not-replayable 6 other-weights", { replayer: { weights_digest: ID, settings: {} } }],
  ["not-replayable 6 other-blueprint", { engine: { blueprint_id: ID }, replayer: { settings: {} } }],
  ["not-replayable 6 other-settings", { replayer: { settings: {}, deterministic: false } }],
  ["not-replayable 7 not-claimed", { engine: { deterministic: false }, replayer: { deterministic: false } }],
  ["not-replayable 7 engine-samples", { replayer: { deterministic: false } }],
  ["not-replayable 9 engine-failed", { a: { failed: true }, b: { failed: true } }],
  ["not-replayable 9 engine-failed", { a: { tokens: packIds([1, 2, 3]) } }],
  ["diverged 15 at=1 served=2 replayed=none margin_u=unknown",
    { served: [1, 2], outcome: { finish: "cancelled", tokens_accepted: undefined }, a: { tokens: packIds([1]), finish: "stop" } }],
  ["not-replayable 9 unattributed", { disclosure: { output: undefined }, a: { tokens: packIds([1, 2, 3, 5]) } }],
  ["not-replayable 11 engine-failed", { a: { finish: "stop" }, b: { failed: true } }],
  ["not-replayable 11 unstable", { a: { tokens: packIds([1, 2, 3, 5]) }, b: { tokens: packIds([1, 2, 3, 6]) } }],
  ["diverged 12 field=finish", { a: { finish: "stop" } }],
  ["diverged 12 field=tokens_accepted", { a: { accepted: 3 } }],
  ["diverged 12 field=tokens_out", { outcome: { tokens_out: 3 }, disclosure: { output: undefined } }],
  ["not-replayable 13 unattributed", {
    engine: { backend_id: "gguf/1/none/none/none/none" }, replayer: { backend_id: "gguf/1/none/none/none/none" }, a: { tokens: packIds([1, 2, 3, 5]) } }],
  ["not-replayable 14 tie", { a: { tokens: packIds([1, 2, 3, 5]), margins_u: [1, 1, 1, 0] } }],
  ["diverged 15 at=3 served=4 replayed=5 margin_u=7", { a: { tokens: packIds([1, 2, 3, 5]), margins_u: [0, 0, 0, 7] } }],
  ["diverged 15 at=0 served=1 replayed=5 margin_u=unknown", { a: { tokens: packIds([5, 2, 3, 5]) } }],
  ["diverged 15 at=2 served=3 replayed=none margin_u=unknown", { a: { tokens: packIds([1, 2]), finish: "stop" } }],
  ["diverged 15 at=3 served=none replayed=4 margin_u=unknown",
    { served: [1, 2, 3], outcome: { finish: "stop", tokens_accepted: 3 }, a: { tokens: packIds([1, 2, 3, 4]) } }],
];

test("each row of the table decides where it should", () => {
  for (const [expected, changes] of CASES) assert.equal(line(scene(changes)), expected, JSON.stringify(changes));
});

test("a random re-run is verified exactly where it opens the commitment", () => {
  const rng = random(12);
  for (let i = 0; i < 300; i++) {
    const served = Array.from({ length: 4 }, () => rng.below(3));
    const made = Array.from({ length: 4 }, () => rng.below(3));
    const verdict = scene({ served, a: { tokens: packIds(made) } });
    assert.equal(verdict.verdict, served.every((id, at) => id === made[at]) ? "verified" : "diverged");
    if (verdict.verdict === "diverged") assert.equal(verdict.at, served.findIndex((id, at) => id !== made[at]));
  }
});

test("a replayer that is no replayer is refused as schema or encoding", () => {
  for (const value of [{}, [], 1]) assert.throws(() => parseReplayer(encode(value)), { errorClass: "schema" });
  assert.throws(() => parseReplayer(new Uint8Array(0)), { errorClass: "encoding" });
  assert.equal(decode(encode(1)), 1);
});
