/** What of the page needs no document. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import { runs, ticks, timeTicks } from "../page/charts.js";
import { CLASSES } from "../page/checking.js";
import { shown } from "../page/dom.js";
import { read, readDisclosure } from "../page/files.js";
import { idOf, timeOf } from "../page/listing.js";
import { duration, grouped, joules, perToken, scaled, utc } from "../page/numbers.js";
import { Power } from "../page/power.js";
import { details, proof, story } from "../page/words.js";
import { Trusted } from "../page/trusted.js";
import * as mesh from "../index.js";

const PAGE = new URL("../page/", import.meta.url);
const KEY = "ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";

test("the page's modules load nothing but their neighbours and the verifier's", () => {
  const modules = readdirSync(PAGE).filter((name) => name.endsWith(".js"));
  const verifier = readdirSync(new URL("..", PAGE)).filter((name) => name.endsWith(".js"));
  for (const name of modules) {
    const source = readFileSync(new URL(name, PAGE), "utf8");
    for (const [, from] of source.matchAll(/^(?:import|export)\b[^;]*? from "([^"]+)";/gms)) {
      const there = from.startsWith("./") ? modules.includes(from.slice(2)) : verifier.includes(from.replace("../", ""));
      assert.ok(there, `${name} imports ${from}`);
    }
    assert.doesNotMatch(source, /^[^*\n]*\bimport\(|innerHTML|insertAdjacentHTML|document\.write|\beval\b/m, name);
    if (name !== "api.js") assert.doesNotMatch(source, /\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|EventSource/, name);
  }
});

test("every class of the registry has its words", () => {
  const errors = Object.values(mesh).filter((it) => typeof it === "function" && it.prototype instanceof mesh.MeshError);
  for (const type of errors) {
    const { errorClass } = new type("x");
    if (errorClass) assert.ok(CLASSES.has(errorClass), errorClass);
  }
});

test("numbers are exact where they are told exactly, and short where they are short", () => {
  assert.equal(joules(5900000n), "5.900000 J");
  assert.equal(joules(9007199254740993n), "9007199254.740993 J");
  assert.equal(perToken(5900000n, 14), "0.421429");
  assert.equal(perToken(1n, 2), "0.000001");
  assert.equal(scaled(0.0123456, "J"), "12.3 mJ");
  assert.equal(scaled(999.6, "W"), "1 kW");
  assert.equal(scaled(1e-9, "J"), "0.001 µJ");
  assert.equal(scaled(0, "W"), "0 W");
  assert.equal(grouped(1234567), "1\u202f234\u202f567");
  assert.equal(utc(1795938545000000000n), "2026-11-29 07:49:05 UTC");
  assert.equal(utc(2n ** 63n - 1n), "2262-04-11 23:47:16 UTC");
  assert.equal(duration(597000000n), "597 ms");
  assert.equal(duration(7384000000000n), "2 h 3 min");
});

test("what cannot be seen or turns text around is named", () => {
  assert.equal(shown("a\u202eb\u0000c\u200bd\ud800"), "a⟨U+202E⟩b⟨U+0000⟩c⟨U+200B⟩d⟨U+D800⟩");
  assert.equal(shown("naïve 模型 🙂 <b>"), "naïve 模型 🙂 <b>");
});

test("ticks are round and reach over the greatest value", () => {
  assert.deepEqual(ticks(366), [0, 100, 200, 300, 400]);
  assert.deepEqual(ticks(0.9), [0, 0.25, 0.5, 0.75, 1]);
  assert.deepEqual(ticks(0), [0, 1]);
  for (const most of [1e-9, 0.3, 1, 7, 99, 12345, 3e8]) {
    const marks = ticks(most);
    assert.ok(marks.at(-1) >= most && marks.length >= 3 && marks.length <= 7, `${most}: ${marks}`);
  }
  assert.deepEqual(timeTicks(30000, 300000, 5), [60000, 120000, 180000, 240000]);
});

test("what is not known is a gap", () => {
  const points = [1, undefined, 2, 3, undefined].map((value, at) => ({ at, value }));
  assert.deepEqual(runs(points).map((run) => run.map(({ value }) => value)), [[1], [2, 3]]);
  assert.deepEqual(runs([]), []);
});

test("power is what was counted over the time between two readings, or not known", () => {
  const live = (s, meters, epoch = "e") => ({ at_ns: String(s * 1e9), epoch, meters });
  const meter = (s, uj, domain = "d") => ({ domain, method: "m", modelled: false, read_ns: String(s * 1e9), ...(uj === undefined ? { reason: "gone" } : { uj }) });
  const power = new Power();
  power.add(live(1, [meter(1, 0)]), 0);
  assert.equal(power.now, undefined);
  power.add(live(3, [meter(3, "24000000")]), 0);
  assert.equal(power.now, 12);
  power.add(live(5, [meter(5, undefined)]), 0);
  assert.equal(power.now, undefined);
  power.add(live(7, [meter(7, 3e6)], "another epoch"), 0);
  assert.equal(power.now, undefined);
  power.add(live(9, [meter(9, 5e6), meter(9, 5e6, "new")], "another epoch"), 0);
  assert.equal(power.now, undefined);
  const none = new Power();
  none.add(live(1, []), 0);
  none.add(live(3, []), 0);
  assert.equal(none.now, undefined);
});

test("what is typed is asked for as the gateway has it", () => {
  assert.equal(idOf("  B3:6DE3… "), "b3:6de3");
  assert.equal(idOf("01a22b6d..."), "01a22b6d");
  assert.equal(timeOf("2026-11-30T08:00"), "2026-11-30T08:00:00Z");
  assert.equal(timeOf("2026-11-30T08:00:07"), "2026-11-30T08:00:07Z");
  assert.equal(timeOf(""), "");
});

test("a receipt is told as what it was, and its proof as no more than it is", () => {
  const key = new Uint8Array(32).fill(7);
  const receipt = {
    seq: 3n, steward: key, prev: key, serve_id: new Uint8Array(16), request_id: key, prompt_hash: key, max_tokens: 8,
    started_ns: 1795938545000000000n, ended_ns: 1795938545597000000n,
    engine: { recipe_id: "m", backend_id: "a/b/c/d/e/f", fidelity: 2, deterministic: true, settings_digest: key, weights_digest: key },
    outcome: { finish: "length", counted_by: "both", tokens_in: 1, tokens_out: 8 },
    energy: { basis: "allocated", uj: 16n, span_ns: 597000000n, rule: "equal/1", peak_sharers: 2, window_uj: 40n, sources: [{ domain: "d", method: "rapl", uj: 16n, resolution_ns: 1n }] },
    output_commitment: key,
  };
  const said = (it) => story(it).map((line) => line.map((part) => part.text ?? part.id ?? part.name).join("")).join(" ");
  const rows = (it) => details(it, key).flatMap(([, each]) => each.map(([label, parts]) => `${label}: ${parts.map((part) => part.text ?? part.id ?? part.name).join("")}`));
  assert.equal(said(receipt), "At 2026-11-29 07:49:05 UTC, m took a prompt of 1 token and gave 8 tokens of at most 8, in 597 ms. It ended because max_tokens was reached. It cost 0.000016 J, 0.000002 J per token of output. The figure is allocated: a share of what was measured for several.");
  assert.ok(rows(receipt).includes("shared by: equal/1, with at most 2 at once, of 0.000040 J"));
  assert.deepEqual(proof(receipt, "verified").does.length, 4);
  for (const state of ["undecided", "wrong", "uncheckable"]) {
    assert.deepEqual(proof(receipt, state).does, []);
    assert.match(proof(receipt, state).not.join(), /^Anything/);
  }
  const decided = { ...receipt, output_commitment: undefined, outcome: { finish: "stop", counted_by: "engine", tokens_in: 9, decision: 1n } };
  assert.match(said(decided), /prompt of 9 tokens and chose option 1, the first being 0/);
  assert.ok(rows(decided).includes("decision: option 1") && rows(decided).includes("output: not committed to"));
  const unknown = { ...receipt, outcome: { finish: "interrupted", counted_by: "none" }, energy: { basis: "absent", reason: "interrupted", sources: [] } };
  assert.match(said(unknown), /nobody counted.*What it cost is not known \(absent: interrupted\)\./);
  assert.doesNotMatch(said(unknown), /\b0\b/);
  assert.match(proof(unknown, "verified").not.join(), /not the same as 0/);
});

test("a file is what its bytes are, whatever it is called", async () => {
  const file = (bytes) => new File([new Uint8Array(bytes)], "x.cbor");
  assert.equal((await read(file([0xd2, 0x84]))).kind, "envelope");
  assert.equal((await read(file([]))).kind, "envelope");
  assert.deepEqual(await read(file([0xa1, 0x01])), { name: "x.cbor", kind: "fault", errorClass: "encoding", message: (await read(file([0xa1, 0x01]))).message });
  assert.equal((await read(file([0xa0]))).errorClass, "schema");
  assert.equal((await read({ name: "big", size: 1e9 })).kind, "fault");
  assert.match((await readDisclosure(file([0xd2]))).fault, /no disclosure/);
});

test("a pinned key counts alone, and the gateway's own word only where nothing is pinned", () => {
  const kept = new Map();
  const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) };
  const trusted = new Trusted(storage);
  assert.equal(trusted.keys.size, 0);
  trusted.tell(KEY);
  assert.deepEqual([trusted.pinned, trusted.differs, trusted.keys.stewards()], [false, false, [KEY]]);
  const other = "ed25519:fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025";
  trusted.pin(other);
  assert.deepEqual([trusted.pinned, trusted.differs, trusted.keys.stewards()], [true, true, [other]]);
  assert.throws(() => trusted.pin("nonsense"), { errorClass: "trust-file" });
  assert.deepEqual(new Trusted(storage).keys.stewards(), [other]);
  trusted.unpin();
  assert.deepEqual([trusted.keys.stewards(), kept.size], [[KEY], 0]);
  kept.set("mesh.trust", "what somebody else put there");
  assert.equal(new Trusted(storage).pinned, false);
  assert.equal(kept.size, 0);
  assert.throws(() => new Trusted(null).tell("ed25519:" + "00".repeat(32)));
});
