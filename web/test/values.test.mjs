import assert from "node:assert/strict";
import { test } from "node:test";

import {
  EncodingError,
  MeshError,
  SchemaError,
  decode,
  encode,
  parseCheckpoint,
  parseDisclosure,
  parseEnergy,
  parseOutcome,
  parseReceipt,
  parseRequest,
  parseSettings,
  parseWeights,
} from "../index.js";
import { checkpoint, random, receipt, request } from "./support.mjs";

const ID = new Uint8Array(32).fill(9);
const ID16 = new Uint8Array(16).fill(9);
const source = (domain, uj) => ({ domain, method: "recorded", uj, resolution_ns: 1 });
const ENERGY = { basis: "allocated", sources: [source("a", 1), source("b", 2)], span_ns: 10, uj: 3 };
const disclosure = (changes) => ({
  serve_id: ID16,
  request: request(),
  payload: new Uint8Array(8),
  opening: ID,
  settings: { any: [1, "x", { deep: true }] },
  ...changes,
});

/** For each parser: what it takes, and what it refuses, as changes of a good value. */
const TABLE = [
  [parseRequest, request, {
    accept: [{}, { nonce: ID }, { model: "m" }, { model: "ü".repeat(256) }, { model: "\u{1f600}".repeat(256) },
      { decision: ID }, { joule_ceiling_uj: 2n ** 63n - 1n }, { prompt_tokens: 0 }, { max_tokens: 2 ** 31 - 1 }],
    refuse: [{ nonce: new Uint8Array(31) }, { model: "" }, { model: "a\nb" }, { model: "a\u2028" }, { model: "a\u0085" },
      { model: "ü".repeat(257) }, { max_tokens: 0 }, { max_tokens: 2 ** 31 }, { prompt_tokens: -1 }, { other: 1 },
      { fidelity_floor: 4 }, { joule_ceiling_uj: 2n ** 63n }, { prompt_hash: undefined }, { prompt_hash: "x" },
      { sampling: {} }, { sampling: 1 }, { prompt_tokens: true }],
  }],
  [parseRequest, (sampling) => request({}, sampling), {
    accept: [{ temperature_u: 1, seed: 2 ** 32 - 2 }, { stop: ["b", "a", "\0"] }, { stop: ["é".repeat(512)] },
      { stop_ids: [1, 2] }, { logit_bias: [[1, -1000000000], [2, 1000000000]] }, { grammar: ID },
      { stop: Array.from({ length: 16 }, (_, i) => `s${i}`) }],
    refuse: [{ seed: 1 }, { temperature_u: 1, seed: 2 ** 32 - 1 }, { stop: ["a", "a"] }, { stop: [""] },
      { stop: ["é".repeat(513)] }, { stop: Array.from({ length: 17 }, (_, i) => `s${i}`) }, { stop_ids: [2, 1] },
      { stop_ids: [1, 1] }, { stop_ids: Array.from({ length: 257 }, (_, i) => i) }, { logit_bias: [[2, 0], [1, 0]] },
      { logit_bias: [[1, 0], [1, 0]] }, { logit_bias: [[1, 0, 0]] }, { logit_bias: [[1, 1000000001]] },
      { temperature_u: 100000001 }, { top_p_u: 1000001 }, { min_p_u: -1 }, { repetition_penalty_u: 0 },
      { top_k: 2 ** 32 }, { ignore_eos: 0 }, { ignore_eos: undefined }, { extra: 1 }],
  }],
  [parseOutcome, (it) => ({ finish: "stop", counted_by: "both", ...it }), {
    accept: [{}, { counted_by: "none" }, { tokens_out: 0 }, { spec_proposed: 2, spec_accepted: 2 }, { spec_accepted: 0 },
      { finish: "engine-error" }, { reason: "a" }, { reason: "a.b_c-9" }, { precision: "Q4_1" }, { tokens_accepted: 9 }],
    refuse: [{ finish: "done" }, { counted_by: "none", tokens_out: 0 }, { spec_accepted: 1 },
      { spec_proposed: 1, spec_accepted: 2 }, { reason: "A" }, { reason: "-a" }, { reason: "a-" }, { reason: "" },
      { reason: "a".repeat(65) }, { precision: "a b" }, { reason: "a\n" }, { delivered_fidelity: 4 }, { x: 1 }],
  }],
  [parseEnergy, (it) => ({ ...ENERGY, ...it }), {
    accept: [{}, { covered_ns: 10 }, { epoch: ID16 }, { rule: "equal/1", window_uj: 0, peak_sharers: 2147483648 },
      { sources: [source("\uffff", 1), source("\u{10000}", 2)] },
      { basis: "absent", sources: [], uj: undefined, span_ns: undefined, reason: "no-meter" },
      { basis: "unresolved", sources: [], uj: undefined, reason: "short" }],
    refuse: [{ uj: 4 }, { uj: undefined }, { reason: "x" }, { sources: [] , uj: 0 }, { sources: ENERGY.sources.toReversed() },
      { sources: [source("a", 1), source("a", 2)] }, { sources: [source("\u{10000}", 1), source("\uffff", 2)] },
      { span_ns: undefined }, { covered_ns: 11 }, { rule: "equal/1" }, { rule: "equal/1", window_uj: 1 },
      { rule: "equal/0", window_uj: 1, peak_sharers: 1 }, { rule: "equal", window_uj: 1, peak_sharers: 1 },
      { rule: "equal/1", window_uj: 1, peak_sharers: 0 }, { basis: "absent" }, { basis: "guessed" },
      { basis: "unresolved", sources: [], uj: undefined },
      { basis: "unresolved", sources: [], uj: undefined, reason: "short", span_ns: undefined },
      { basis: "absent", sources: [], uj: undefined, span_ns: undefined, reason: "a", covered_ns: 1 },
      { basis: "absent", uj: undefined, reason: "a" },
      { sources: Array.from({ length: 65 }, (_, i) => source(String(1000 + i), 0)), uj: 0 }],
  }],
  [parseReceipt, receipt, {
    accept: [{}, { seq: 1, prev: ID }, { output_commitment: undefined }, { grant_id: ID }, { ended_ns: 0 }],
    refuse: [{ v: "mesh/2" }, { prev: ID }, { seq: 1 }, { seq: 2n ** 63n, prev: ID }, { max_tokens: 3 }, { steward: ID16 },
      { outcome: { finish: "refused", counted_by: "gateway", tokens_out: 0 } },
      { outcome: { finish: "stop", counted_by: "none" } },
      { outcome: { finish: "stop", counted_by: "both", tokens_out: 1, delivered_fidelity: 1 } }, { extra: 0 }],
  }],
  [parseReceipt, (it) => receipt({ engine: { ...receipt().engine, ...it } }), {
    accept: [{ backend_id: "told:a/told:b/c/d/e/f" }, { weights_digest: ID }, { launch_digest: ID }],
    refuse: [{ backend_id: "a/b/c/d/e" }, { backend_id: "a/b/c/d/e/f/g" }, { backend_id: "a/b/c/d/e/f g" },
      { backend_id: "a/b/c/d/e/f\n" }, { backend_id: `${"a".repeat(65)}/b/c/d/e/f` }, { process: ID },
      { deterministic: 1 }, { fidelity: 4 }, { other: 1 }],
  }],
  [parseCheckpoint, checkpoint, {
    accept: [{}, { count: 1, head: ID }, { epoch: ID16, epoch_seq: 0 }],
    refuse: [{ head: ID }, { count: 1 }, { epoch: ID16 }, { epoch_seq: 0 }, { v: "mesh/0" },
      { domains: [{ domain: "a", first_uj: 0, last_uj: 0, idle_uj: 0, unattributed_uj: 0, open_uj: 0 }] }],
  }],
  [parseDisclosure, disclosure, {
    accept: [{}, { output: new Uint8Array(0) }, { prompt: "\0any" }, { settings: {} }],
    refuse: [{ payload: new Uint8Array(7) }, { output: new Uint8Array(2) }, { request: request({ max_tokens: 0 }) },
      { settings: [] }, { settings: { x: new Uint8Array(65536) } }, { prompt: 1 }, { opening: undefined }],
  }],
  [parseSettings, (it) => it, { accept: [{}, { a: -1 }, { a: 2n ** 64n - 1n }], refuse: [] }],
  [parseWeights, (files) => ({ files }), {
    accept: [[["a", ID]], [["B", ID], ["a", ID]], [["\uffff", ID], ["\u{10000}", ID]]],
    refuse: [[], [["a", ID], ["B", ID]], [["a", ID], ["a", ID]], [["a", ID16]], [["a"]]],
  }],
];

test("parsers take what the rules allow and refuse the rest as schema", () => {
  for (const [parse, make, { accept, refuse }] of TABLE) {
    for (const change of accept) parse(encode(make(change)));
    for (const change of refuse) {
      const shown = JSON.stringify(change, (_, value) => (typeof value === "bigint" ? String(value) : value));
      assert.throws(() => parse(encode(make(change))), SchemaError, `${make.name} ${shown.slice(0, 200)}`);
    }
  }
});

test("parsers refuse a value that is too long, or not canonical, as encoding", () => {
  assert.throws(() => parseSettings(encode({ x: new Uint8Array(65536) })), EncodingError);
  assert.throws(() => parseReceipt(new Uint8Array(32769)), EncodingError);
  for (const [parse] of TABLE) {
    for (const bytes of [Uint8Array.of(0xa0, 0), encode([]), encode("x")]) assert.throws(() => parse(bytes), EncodingError);
  }
});

test("a receipt's big numbers are exact bigints and its counts numbers", () => {
  const parsed = parseReceipt(encode(receipt()));
  assert.equal(parsed.started_ns, 1790000000000000000n);
  assert.equal(parsed.seq, 0n);
  assert.equal(parsed.outcome.tokens_out, 4);
  assert.ok(Object.isFrozen(parsed) && Object.isFrozen(parsed.outcome));
});

test("no required field of a value may be left out, and none may be of another type", () => {
  const values = [[parseReceipt, receipt()], [parseCheckpoint, checkpoint()], [parseRequest, request()],
    [parseEnergy, ENERGY], [parseDisclosure, disclosure()]];
  for (const [parse, value] of values) {
    for (const key of Object.keys(value)) {
      for (const other of [null, undefined, [], {}, "\n", -1, 2n ** 64n - 1n, new Uint8Array(5), new Map([["a", 0]])]) {
        if (key === "settings" || (key === "output_commitment" && other === undefined)) continue;
        if ((key === "domains" || key === "sources") && Array.isArray(other) && parse === parseCheckpoint) continue;
        if (other === null) continue;
        assert.throws(() => parse(encode({ ...value, [key]: other })), SchemaError, key);
      }
    }
  }
});

test("changed values never leave the error tree", () => {
  const rng = random(8);
  const parsers = [parseReceipt, parseCheckpoint, parseRequest, parseEnergy, parseOutcome, parseDisclosure, parseWeights];
  const good = [receipt(), checkpoint(), request(), ENERGY, receipt().outcome, disclosure(), { files: [["a", ID]] }].map(encode);
  for (let i = 0; i < 8000; i++) {
    const at = rng.below(good.length);
    const bytes = good[at].slice();
    for (let n = rng.below(3); n >= 0; n--) bytes[rng.below(bytes.length)] = rng.below(256);
    try {
      parsers[rng.below(8) ? at : rng.below(parsers.length)](bytes);
      assert.deepEqual(encode(decode(bytes)), bytes);
    } catch (error) {
      assert.ok(error instanceof MeshError, String(error));
    }
  }
});
