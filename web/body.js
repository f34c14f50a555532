/** The body of a blueprint (SPEC.md section 25): its schema, and what it may not contradict. */

import { compare, join, utf8 } from "./bytes.js";
import { CIRCUIT, ascending, byBytes, checkCircuit, within } from "./circuit.js";
import { BodyError, KernelError } from "./errors.js";
import { bool, constant, either, fixed, option, read, seq, struct, text, tuple, unsigned, words } from "./postcard.js";

const MAX_GROUPS = 2 ** 20;
const MODES = ["prefill", "decode"];
const [NAME, DIGEST, LONG] = [text(256), fixed(32), text(2 ** 20)];
const [U8, U32, U64] = [unsigned(8), unsigned(32), unsigned(64)];
const ENVIRONMENT = seq(tuple(NAME, text(4096, { empty: true })), 256);

const BODY = struct({
  schema: constant("mesh-blueprint/1"),
  name: NAME,
  lineage: fixed(16),
  revision: unsigned(64, 2n ** 63n - 1n),
  checkpoint: struct({
    format: words("gguf", "safetensors"), weights_digest: DIGEST, content_digest: DIGEST, architecture: NAME,
    architecture_digest: DIGEST, layers: U32, precision: NAME,
  }),
  hardware: struct({ isa: NAME, device: NAME, features: seq(text(64), 64) }),
  circuit: CIRCUIT,
  plan: seq(
    struct({
      mode: words(...MODES), rows_from: U32, rows_to: U32,
      groups: seq(struct({ kernel: U32, nodes: seq(U32, 64) }), MAX_GROUPS), digest: DIGEST,
    }),
    64,
  ),
  modules: seq(struct({ name: NAME, digest: DIGEST, length: U64, architecture: NAME, origin: NAME }), 256),
  kernels: seq(struct({ module: U32, function: NAME, family: NAME, numerics: NAME }), 4096),
  settings: either({
    gguf: struct({
      name: NAME, slots: U32, context_tokens: U32, kv_type: words("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
      flash_attention: bool, n_batch: U32, n_ubatch: U32, threads: U32, batch_threads: U32, repack: bool,
      together_always: bool, chat_template: option(LONG), tokenizer_pre: option(text(127)), eos_id: option(U32),
      fidelity: option(U8), environment: ENVIRONMENT,
    }),
    vllm: struct({
      name: NAME, version: NAME, slots: U32, device: words("cpu", "cuda", "rocm", "xpu", "tpu", "hpu"),
      flags: seq(text(4096), 256), chat_template: option(LONG), environment: ENVIRONMENT,
    }),
  }),
  evidence: seq(
    struct({
      kind: words("self-check", "measurement", "receipt"), record: DIGEST, engine_commit: NAME, engine_binary: DIGEST,
      argv: DIGEST, env: DIGEST,
    }),
    256,
  ),
});

/** @param {Uint8Array} data @returns {Promise<Uint8Array>} */
export async function sha256(data) {
  return new Uint8Array(await globalThis.crypto.subtle.digest("SHA-256", new Uint8Array(data)));
}

/** @param {string} isa @returns {string} the machine that it is of */
export const machine = (isa) => isa.split("-", 1)[0];

/**
 * @param {Uint8Array} data
 * @returns {Promise<any>}
 * @throws {PostcardError} for what is not the encoding of a body, {BodyError} for one that contradicts itself,
 *   {KernelError} for a module of another architecture than the hardware
 */
export async function parseBody(data) {
  const body = read(BODY, data, "blueprint");
  checkCircuit(body.circuit);
  checkEnvironment(body.settings.environment);
  await checkBody(body);
  for (const kernel of body.kernels) {
    if (machine(body.modules[kernel.module].architecture) !== machine(body.hardware.isa)) {
      throw new KernelError("kernel: for another architecture than the hardware");
    }
  }
  return body;
}

/** @param {[string, string][]} pairs */
function checkEnvironment(pairs) {
  ascending("environment", pairs.map(([name]) => name), byBytes);
  for (const [name, value] of pairs) {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || value.includes("\0")) throw new BodyError("settings: no variable of an environment");
  }
}

/** @param {any} body */
async function checkBody(body) {
  const { circuit, hardware, plan, modules, kernels, evidence } = body;
  ascending("hardware.features", hardware.features, byBytes);
  ascending("modules", modules.map((/** @type {any} */ one) => one.digest), compare);
  ascending("kernels", kernels, (a, b) => a.module - b.module || byBytes(a.function, b.function));
  ascending("evidence", evidence.map((/** @type {any} */ one) => one.record), compare);
  for (const kernel of kernels) within("kernel.module", kernel.module, modules);
  if (new Set(kernels.map((/** @type {any} */ one) => one.module)).size !== modules.length) {
    throw new BodyError("blueprint: a module of which no kernel is");
  }
  if (!plan.length) throw new BodyError("blueprint: no plan");
  ascending("plan", plan, (a, b) => MODES.indexOf(a.mode) - MODES.indexOf(b.mode) || a.rows_from - b.rows_from);
  const used = new Set();
  for (const [i, arm] of plan.entries()) {
    const before = plan[i - 1];
    if (before?.mode === arm.mode && before.rows_to >= arm.rows_from) throw new BodyError("blueprint: rows of two arms");
    await checkArm(`plan[${i}]`, arm, circuit, modules, kernels);
    for (const { kernel } of arm.groups) used.add(kernel);
  }
  if (used.size !== kernels.length) throw new BodyError("blueprint: a kernel computes nothing");
}

/** @param {string} what @param {any} arm @param {any} circuit @param {any[]} modules @param {any[]} kernels */
async function checkArm(what, arm, circuit, modules, kernels) {
  if (arm.rows_from < 1 || arm.rows_from > arm.rows_to) throw new BodyError(`blueprint: ${what}: its rows`);
  const planned = new Set();
  for (const { kernel, nodes } of arm.groups) {
    within(`${what}.kernel`, kernel, kernels);
    if (!nodes.length) throw new BodyError(`blueprint: ${what}: a group without nodes`);
    for (const node of nodes) {
      within(`${what}.nodes`, node, circuit.nodes);
      if (planned.has(node)) throw new BodyError(`blueprint: ${what}: a node that is computed twice`);
      planned.add(node);
    }
  }
  for (const [i, { kind }] of circuit.nodes.entries()) {
    const end = kind === "input" || kind === "output";
    if (planned.has(i) === end) throw new BodyError(`blueprint: ${what}: node ${i}: an end that is computed, or none that is not`);
  }
  if (compare(await armDigest(arm, modules, kernels), arm.digest)) throw new BodyError(`blueprint: ${what}: another digest`);
}

/** @param {any} arm @param {any[]} modules @param {any[]} kernels @returns {Promise<Uint8Array>} */
async function armDigest({ mode, rows_from, rows_to, groups }, modules, kernels) {
  /** @type {Uint8Array[]} */
  const parts = [utf8("mesh blueprint arm v1\0")];
  parts.push(...[MODES.indexOf(mode), rows_from, rows_to, groups.length].map(varint));
  for (const { kernel, nodes } of groups) {
    const name = utf8(kernels[kernel].function);
    parts.push(modules[kernels[kernel].module].digest, varint(name.length), name, varint(nodes.length), ...nodes.map(varint));
  }
  return sha256(join(...parts));
}

/** @param {number} value below 2^32 @returns {Uint8Array} */
function varint(value) {
  const out = [];
  for (; value >= 0x80; value = Math.floor(value / 0x80)) out.push((value % 0x80) | 0x80);
  return Uint8Array.of(...out, value);
}

