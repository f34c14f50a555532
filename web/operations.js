/**
 * The operations of conformance/PROTOCOL.md, apart from the command line, so that a page can be asked too.
 */

import { join, utf8 } from "./bytes.js";
import * as mesh from "./index.js";
import { SETTINGS_BYTES } from "./limits.js";
import * as p from "./postcard.js";
import { line } from "./verdict.js";

/** @typedef {(name: string) => Uint8Array} Files */

export const ACCEPTED = 0;
export const REJECTED = 10;

/** Kinds of the operation `postcard`. @type {Record<string, import("./postcard.js").Kind>} */
const KINDS = {
  ...Object.fromEntries([8, 16, 32, 64, 128].flatMap((bits) => [[`u${bits}`, p.unsigned(bits)], [`i${bits}`, p.signed(bits)]])),
  bool: p.bool,
  char: p.char,
  string: p.text(1024, { empty: true }),
  bytes: p.bytes(1024),
  "option-u8": p.option(p.unsigned(8)),
  "seq-u16": p.seq(p.unsigned(16), 1024),
  "map-u8-u8": p.map(p.unsigned(8), p.unsigned(8), 1024),
};

const FORMS = new Map([
  ["content-id", mesh.parseContentId],
  ["steward", mesh.parseSteward],
  ["serve-id", mesh.parseServeId],
]);

const hex = (/** @type {string} */ text) => (text === "-" ? new Uint8Array(0) : mesh.fromHex(text));
const optionalHex = (/** @type {string|undefined} */ text) => (text === undefined ? undefined : hex(text));
const b3 = mesh.contentIdText;

/** @param {string} text @returns {string} */
function decimal(text) {
  if (!/^(0|[1-9][0-9]*)$/.test(text)) throw new mesh.SchemaError(`number: expected decimal digits, got ${text}`);
  return text;
}

/** @param {Uint8Array} bytes @returns {string} */
function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new mesh.SchemaError("text: not valid UTF-8");
  }
}

/** @param {string[]} words prompt hash and max_tokens, in turn @returns {[Uint8Array, number][]} */
function serves(words) {
  if (words.length % 2) throw new mesh.SchemaError("serves: expected pairs");
  /** @type {[Uint8Array, number][]} */
  const pairs = [];
  for (let i = 0; i < words.length; i += 2) pairs.push([hex(words[i]), Number(decimal(words[i + 1]))]);
  return pairs;
}

/** @param {import("./route.js").Mismatch[]} mismatches @returns {string} */
const reasons = (mismatches) =>
  mismatches.map(({ index, reason, field }) => `${index === undefined ? "" : `${index}:`}${reason}:${field}`).join(" ");

/** @param {any} value of `postcard` @returns {string} */
function told(value) {
  if (value === null) return "none";
  if (typeof value === "string") return told(utf8(value));
  if (value instanceof Uint8Array) return mesh.toHex(value) || "empty";
  if (!Array.isArray(value)) return String(value);
  return value.map((item) => (Array.isArray(item) ? item.join(":") : String(item))).join(" ") || "empty";
}

const spelledDigest = (/** @type {any} */ view) => b3(mesh.hash(utf8(mesh.spelled(view))));

/**
 * A file, or one that is grown here: `HEAD+COUNT+TAIL`, with COUNT times the letter a between the two.
 *
 * @param {Files} file
 * @returns {Files}
 */
const growing = (file) => (name) => {
  const [first, count, last] = name.split("+");
  return count === undefined ? file(name) : join(file(first), new Uint8Array(Number(count)).fill(97), file(last));
};

/** @param {Files} file @returns {Record<string, (...words: string[]) => any>} each gives a line, or undefined */
const operations = (file) => {
  const trustOf = (/** @type {string} */ name) => mesh.Trust.parse(file(name));
  /** @param {string} kind @param {(bytes: Uint8Array) => any} parse */
  const idOf = (kind, parse) => (/** @type {string} */ name) => {
    const bytes = file(name);
    parse(bytes);
    return b3(mesh.contentId(kind, bytes));
  };
  return {
    features: () => "reference\nreplay\ngrant\nidentity\nblueprint\naudit\nlaunch",
    decode: (name) => void mesh.decode(file(name), { limit: SETTINGS_BYTES }),
    id: (kind, name) => idOf(kind, (bytes) => mesh.decode(bytes, { limit: SETTINGS_BYTES }))(name),
    millionths: (text) => String(mesh.millionths(text)),
    digest: (name) => b3(mesh.hash(file(name))),
    text: (form, text) => {
      const parse = FORMS.get(form);
      if (!parse) throw new mesh.SchemaError(`text form: unknown ${form}`);
      return mesh.toHex(parse(text));
    },
    request: idOf("request", mesh.parseRequest),
    "prompt-hash": (of, name, nonce) => {
      const bytes = file(name);
      if (of === "ids") return b3(mesh.promptHashOfIds(bytes, optionalHex(nonce)));
      return b3(mesh.promptHashOfText(textOf(bytes), optionalHex(nonce)));
    },
    decision: (name, nonce) => {
      const options = mesh.decode(file(name), { limit: SETTINGS_BYTES });
      return b3(mesh.decisionDigest(options, optionalHex(nonce)));
    },
    payload: (name) => b3(mesh.payloadDigest(file(name))),
    opening: (seed, request, serve) => b3(mesh.opening(hex(seed), hex(request), hex(serve))),
    commitment: (open, request, payload, name) => b3(mesh.commitment(hex(open), hex(request), hex(payload), file(name))),
    outcome: (name) => void mesh.parseOutcome(file(name)),
    energy: (name) => void mesh.parseEnergy(file(name)),
    receipt: idOf("receipt", mesh.parseReceipt),
    checkpoint: idOf("checkpoint", mesh.parseCheckpoint),
    launch: idOf("launch", mesh.parseLaunch),
    disclosure: (name) => b3(mesh.contentId("request", mesh.parseDisclosure(file(name)).request)),
    settings: idOf("settings", mesh.parseSettings),
    weights: idOf("weights", mesh.parseWeights),
    "receipt-view": async (name, trust) =>
      spelledDigest(mesh.sealedView(await mesh.verifyEnvelope(file(name), trustOf(trust), "receipt"))),
    "settings-view": (name) => {
      const bytes = file(name);
      return spelledDigest(mesh.settingsView(mesh.contentId("settings", bytes), mesh.parseSettings(bytes)));
    },
    trust: (name) => String(trustOf(name).size),
    envelope: async (type, name, trust) => {
      const expected = /** @type {import("./envelope.js").EnvelopeType} */ (type);
      return b3((await mesh.verifyEnvelope(file(name), trustOf(trust), expected)).id);
    },
    sequence: async (trust, ...names) => {
      const trusted = trustOf(trust);
      const envelopes = [];
      for (const name of names) envelopes.push(await mesh.verifyEnvelope(file(name), trusted));
      return String(mesh.checkSequence(envelopes));
    },
    "reference-tokens": (hash, max) => mesh.referenceTokens(...serves([hash, max])[0]).join(" "),
    "audit-draw": (head, seed, count, size) => {
      const seqs = Array.from({ length: Number(decimal(count)) }, (_, seq) => seq);
      return mesh.draw(hex(head), hex(seed), seqs, Number(decimal(size))).join(" ");
    },
    "reference-cache": (...words) => mesh.referenceCache(serves(words)).join(" "),
    replay: async (receipt, disclosure, trust, replayer) => {
      const { value } = await mesh.verifyEnvelope(file(receipt), trustOf(trust), "receipt");
      const disclosed = disclosure === "-" ? null : mesh.parseDisclosure(file(disclosure));
      return line(mesh.decide(value, disclosed, mesh.parseReplayer(file(replayer))));
    },
    grant: async (name, trust) => b3((await mesh.verifyGrant(file(name), trustOf(trust))).id),
    "grant-text": (text) => b3(mesh.hash(mesh.parseGrantText(text))),
    "grant-decide": async (name, trust, frame, revoked = "-", used = "0") => {
      const issuers = trustOf(trust);
      const chain = await mesh.verifyGrant(file(name), issuers);
      const offered = mesh.parseFrame(file(frame));
      const listed = mesh.parseRevoked(revoked === "-" ? new Uint8Array(0) : file(revoked));
      const drawn = BigInt(decimal(used));
      const [first] = mesh.decideGrant(chain, offered, { issuers, revoked: listed, used: () => drawn });
      return first ? `refused ${first.block} ${first.caveat}` : "admitted";
    },
    identity: async (name) => Object.values((await mesh.parseIdentity(file(name))).digests).join(" "),
    "identity-explain": async (left, right) =>
      reasons(mesh.explain(await mesh.parseIdentity(file(left)), await mesh.parseIdentity(file(right)))) || "same",
    "identity-route": async (known, purpose, ...names) => {
      const shards = [];
      for (const name of names) shards.push(await mesh.parseIdentity(file(name)));
      const status = known === "-" ? null : /** @type {import("./route.js").Status} */ (known);
      const found = mesh.checkRoute(shards, status, purpose === "certify");
      return found.length ? `refused ${reasons(found)}` : "admitted";
    },
    "identity-evidence": (name) => {
      const why = mesh.rejection(mesh.parseEvidence(file(name)));
      return why === null ? "certifies" : `refused ${why}`;
    },
    "identity-handshake": async (local, peer) => {
      const found = mesh.checkHandshake(await mesh.parseIdentity(file(local)), mesh.parsePeer(file(peer)));
      return found.length ? `refused ${reasons(found)}` : "match";
    },
    postcard: (kind, name) => told(p.read(KINDS[kind], file(name))),
    blueprint: async (name) => b3((await mesh.readBlueprint(file(name))).id),
    "blueprint-verify": async (name, roots, listed, now) => {
      const policy = { roots: file(roots), revoked: file(listed), now: BigInt(decimal(now)) };
      return b3((await mesh.verifyBlueprint(file(name), policy)).id);
    },
    "blueprint-lineage": async (name, revision, id) => {
      const blueprint = await mesh.readBlueprint(file(name));
      mesh.checkLineage(blueprint, BigInt(decimal(revision)), hex(id));
      return b3(blueprint.id);
    },
  };
};

/** @param {string} name @returns {boolean} */
export function isOperation(name) {
  return Object.hasOwn(operations(() => new Uint8Array(0)), name);
}

/**
 * @param {string[]} words an operation and its arguments
 * @param {Files} file gives the bytes of a file argument
 * @returns {Promise<{code: number, line?: string, why?: string}>}
 * @throws whatever is not the input's fault
 */
export async function answer([name, ...words], file) {
  try {
    return { code: ACCEPTED, line: await operations(growing(file))[name](...words) };
  } catch (error) {
    // A fault without a class is this machine's, not the input's: it ends the client, and so fails the case.
    if (!(error instanceof mesh.MeshError) || !error.errorClass) throw error;
    return { code: REJECTED, line: `reject ${error.errorClass}`, why: error.message };
  }
}
