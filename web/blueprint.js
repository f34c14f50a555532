/** Blueprints (SPEC.md section 25): the file, and the one order in which it is checked. */

import { compare, same, utf8 } from "./bytes.js";
import { machine, parseBody, sha256 } from "./body.js";
import {
  CERTIFICATE_BYTES, KEY_BYTES, SIGNATURE_BYTES, checkChain, checkList, checkSigned, checkTimes, parseCertificate, parseKey,
  parseRevocations,
} from "./certificate.js";
import { BodyHashError, ContainerError, KernelError, LineageError, PostcardError, RevokedError, SignerError } from "./errors.js";
import { either, fixed, read, seq, struct, text, unsigned } from "./postcard.js";

const HEADER_BYTES = 72;
const MOST = [2 ** 26, 2 ** 20, 2 ** 36, 2 ** 20]; // body, locators, payloads, signature block
const MAX_MODULES = 256;
const MAX_CHAIN = 4;
const U64 = unsigned(64);
const LOCATORS = seq(
  struct({
    digest: fixed(32),
    source: either({
      inline: struct({ offset: U64, length: U64 }), internal: struct({}), disk: struct({ path: text(4096) }),
      remote: struct({ url: text(4096) }),
    }),
  }),
  MAX_MODULES,
);
// What an ELF file is compiled for, by the number in its head.
const MACHINES = new Map([
  [62, "x86_64"], [183, "aarch64"], [243, "riscv64"], [21, "ppc64le"], [22, "s390x"], [190, "cuda"], [224, "amdgpu"],
]);

/**
 * Steps 1 and 2.
 *
 * @param {Uint8Array} file
 * @returns {Promise<any>} its sections, and its id
 * @throws {ContainerError} or {BodyHashError}
 */
async function open(file) {
  if (file.length < HEADER_BYTES) throw new ContainerError(`blueprint: ${file.length} bytes, expected a header`);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  if (compare(file.subarray(0, 8), utf8("MKBP\u0001\0\0\0"))) throw new ContainerError("blueprint: no file of version 1 without flags");
  const lengths = [8, 16, 24, 32].map((at) => view.getBigUint64(at, true));
  let at = HEADER_BYTES;
  const sections = lengths.map((length, i) => {
    if (length > BigInt(MOST[i])) throw new ContainerError(`blueprint: a section of ${length} bytes, expected at most ${MOST[i]}`);
    return [at, (at += Number(length))];
  });
  if (at !== file.length) throw new ContainerError(`blueprint: its sections end at byte ${at}, the file has ${file.length}`);
  const [body, table, payloads, block] = sections.map(([start, end]) => file.subarray(start, end));
  const id = file.subarray(40, HEADER_BYTES);
  if (!same(await sha256(body), id)) throw new BodyHashError("blueprint: its body has another SHA-256 than its header says");
  return { body, table, payloads, block, id, length: lengths[0] };
}

/** Step 11. @param {any} container @returns {any[]} @throws {ContainerError} */
function locatorsOf({ table, payloads }) {
  let found;
  try {
    found = read(LOCATORS, table, "locators");
  } catch (error) {
    if (!(error instanceof PostcardError)) throw error;
    throw new ContainerError(error.message);
  }
  let at = 0n;
  found.forEach(({ digest, source }, i) => {
    if (i && compare(found[i - 1].digest, digest) >= 0) throw new ContainerError(`locators[${i}]: its digest is not above the one before`);
    if (source.is !== "inline") return;
    if (source.offset !== at) throw new ContainerError(`locators[${i}]: offset ${source.offset}, expected ${at}`);
    at += source.length;
    if (at > BigInt(payloads.length)) throw new ContainerError(`locators[${i}]: ends at ${at}, the payloads at ${payloads.length}`);
  });
  if (at !== BigInt(payloads.length)) throw new ContainerError("payloads: bytes that no locator is about");
  return found;
}

/** @param {any} container @param {any} source @returns {Uint8Array} */
const inlineBytes = ({ payloads }, { offset, length }) => payloads.subarray(Number(offset), Number(offset + length));

/**
 * Steps 11 to 15.
 *
 * @param {any} container
 * @param {Uint8Array[]|null} signed the digests of kernels, where they were signed
 * @returns {Promise<any>} the body
 */
async function decoded(container, signed) {
  const locators = locatorsOf(container);
  if (signed && (signed.length !== locators.length || signed.some((digest, i) => !same(digest, locators[i].digest)))) {
    throw new KernelError("kernels: what is located is not what is signed");
  }
  for (const { digest, source } of locators) {
    if (source.is === "inline" && !same(await sha256(inlineBytes(container, source)), digest)) {
      throw new KernelError("kernel payload: another SHA-256");
    }
  }
  const body = await parseBody(container.body);
  if (body.modules.length !== locators.length) throw new KernelError("kernels: what is located is not what is pinned");
  body.modules.forEach((/** @type {any} */ module, /** @type {number} */ i) => {
    const { digest, source } = locators[i]; // both ascend
    if (!same(digest, module.digest)) throw new KernelError("kernels: what is located is not what is pinned");
    if (source.is !== "inline") return;
    if (source.length !== module.length) throw new KernelError(`kernel module: ${source.length} bytes inline, expected ${module.length}`);
    const compiled = machineOf(inlineBytes(container, source));
    if (compiled && compiled !== machine(module.architecture)) throw new KernelError(`kernel module: compiled for ${compiled}`);
  });
  return body;
}

/** @param {Uint8Array} bytes @returns {string|undefined} */
function machineOf(bytes) {
  if (bytes.length < 20 || compare(bytes.subarray(0, 4), Uint8Array.of(127, 69, 76, 70))) return undefined;
  return MACHINES.get(bytes[18] | (bytes[19] << 8));
}

/** Steps 3 and 4, as far as nothing is checked in it. @param {Uint8Array} data */
async function parseBlock(data) {
  const count = data[0] ?? 0;
  if (count < 1 || count > MAX_CHAIN) throw new SignerError("blueprint: not signed, or by more than four certificates");
  const bodyAt = 1 + count * CERTIFICATE_BYTES;
  const at = bodyAt + SIGNATURE_BYTES + 2;
  const kernels = at <= data.length ? data[at - 2] | (data[at - 1] << 8) : -1;
  const each = 32 + SIGNATURE_BYTES;
  if (kernels < 0 || kernels > MAX_MODULES || data.length !== at + kernels * each) {
    throw new SignerError("signature block: its certificates and kernels are not as many as it says");
  }
  const artifacts = Array.from({ length: kernels }, (_, i) => data.subarray(at + i * each, at + (i + 1) * each));
  const digests = artifacts.map((one) => one.subarray(0, 32));
  if (digests.some((digest, i) => i && compare(digests[i - 1], digest) >= 0)) {
    throw new SignerError("signature block: the digests of its kernels do not ascend");
  }
  const chain = [];
  for (let i = 0; i < count; i++) {
    const start = 1 + i * CERTIFICATE_BYTES;
    chain.push(await parseCertificate(data.subarray(start, start + CERTIFICATE_BYTES), `certificate ${i}`));
  }
  return { chain, signature: data.subarray(bodyAt, at - 2), digests, signatures: artifacts.map((one) => one.subarray(32)) };
}

/**
 * What a file says, whoever made it.
 *
 * @param {Uint8Array} file
 * @returns {Promise<{id: Uint8Array, body: any}>}
 */
export async function readBlueprint(file) {
  const container = await open(file);
  return { id: container.id, body: await decoded(container, null) };
}

/**
 * Whether a file may be used: every step in its order, and the first fault is told.
 *
 * @param {Uint8Array} file
 * @param {{roots: Uint8Array, revoked: Uint8Array, now: bigint}} policy the keys of roots, 1984 bytes each; their list; Unix seconds
 * @returns {Promise<{id: Uint8Array, body: any, chain: any[]}>}
 */
export async function verifyBlueprint(file, { roots, revoked, now }) {
  const trusted = [];
  for (let at = 0; at < roots.length; at += KEY_BYTES) trusted.push(await parseKey(roots.subarray(at, at + KEY_BYTES)));
  const list = await parseRevocations(revoked, trusted);
  const container = await open(file);
  const { chain, signature, digests, signatures } = await parseBlock(container.block);
  const root = await checkChain(chain, trusted);
  checkTimes(chain, now);
  checkList(list, root, now);
  for (const id of [...chain.flatMap((one) => [one.id, one.subject.id]), container.id, ...digests]) {
    if (list.ids.some((/** @type {Uint8Array} */ one) => same(one, id))) throw new RevokedError("blueprint: something of it was revoked");
  }
  const signer = chain[0].subject;
  const signed = new Uint8Array(42);
  new DataView(signed.buffer).setUint16(0, 1, true);
  new DataView(signed.buffer).setBigUint64(2, container.length, true);
  signed.set(container.id, 10);
  await checkSigned(signer, "body", signed, signature, "blueprint");
  for (const [i, digest] of digests.entries()) await checkSigned(signer, "kernel", digest, signatures[i], "kernel");
  return { id: container.id, body: await decoded(container, digests), chain };
}

/**
 * @param {{id: Uint8Array, body: any}} blueprint
 * @param {bigint} revision the highest of its lineage that was served
 * @param {Uint8Array} id of what was served as it
 * @throws {LineageError} for one whose time has passed
 */
export function checkLineage(blueprint, revision, id) {
  const own = blueprint.body.revision;
  if (own < revision || (own === revision && !same(blueprint.id, id))) {
    throw new LineageError(`blueprint: revision ${own}, after revision ${revision} of its lineage was served`);
  }
}
