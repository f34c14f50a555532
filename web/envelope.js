/**
 * Envelopes: COSE_Sign1 with one header (SPEC.md section 10). The first fault in the order of the steps wins.
 *
 * @typedef {"receipt"|"checkpoint"|"launch"} EnvelopeType
 * @typedef {object} Verified
 * @property {EnvelopeType} type
 * @property {any} value the receipt, checkpoint or launch record
 * @property {Uint8Array} id its content id
 * @property {Uint8Array} payload as received
 * @property {Uint8Array} steward or the launcher
 */

import { same } from "./bytes.js";
import { Foreign, encode, read } from "./cbor.js";
import { verify } from "./ed25519.js";
import {
  CanonicalError,
  EncodingError,
  HeaderError,
  MeshError,
  PayloadError,
  StructureError,
  TrustError,
} from "./errors.js";
import { contentId, stewardText } from "./ids.js";
import { ENVELOPE_BYTES, PAYLOAD_BYTES, PROTECTED_BYTES } from "./limits.js";
import { parseCheckpoint, parseLaunch, parseReceipt } from "./values.js";

const COSE_SIGN1 = 18;
const ALG = 1;
const CONTENT_TYPE = 3;
const KID = 4;
const CWT_CLAIMS = 15;
const RECEIPTS = 394;
const ED25519 = -19;
const ISSUER = 1;
const SUBJECT = 2;

/** @type {Record<EnvelopeType, any>} */
const TYPES = {
  receipt: {
    contentType: "application/mesh-receipt+cbor",
    parse: parseReceipt,
    subject: (/** @type {any} */ it) => it.engine.recipe_id,
    time: "ended_ns",
    signer: "steward",
  },
  checkpoint: {
    contentType: "application/mesh-checkpoint+cbor",
    parse: parseCheckpoint,
    subject: () => "checkpoint",
    time: "at_ns",
    signer: "steward",
  },
  launch: {
    contentType: "application/mesh-launch+cbor",
    parse: parseLaunch,
    subject: (/** @type {any} */ it) => it.recipe,
    time: "launched_ns",
    signer: "signer",
  },
};

/**
 * @param {Uint8Array} bytes
 * @param {import("./trust.js").Trust} trust
 * @param {EnvelopeType} [expected] absent: a receipt or a checkpoint
 * @returns {Promise<Verified>}
 * @throws {MeshError} StructureError, CanonicalError, HeaderError, TrustError, SignatureError, PayloadError
 */
export async function verifyEnvelope(bytes, trust, expected) {
  const parts = open(bytes);
  if (parts.fault) throw new CanonicalError(`envelope: ${parts.fault}`);
  const { kid, subject, type } = checkHeaders(parts, expected);
  const key = trust.get(kid);
  if (!key) throw new TrustError(`envelope: ${stewardText(kid)} is not among the trusted keys`);
  const signed = encode(["Signature1", parts.protected, new Uint8Array(0), parts.payload]);
  await verify(key, parts.signature, signed);
  const value = checkPayload(parts.payload, type, kid, subject);
  const time = value[TYPES[type].time];
  if (!trust.covers(kid, time)) {
    throw new TrustError(`envelope: ${stewardText(kid)} is not trusted for ${TYPES[type].time} ${time}`);
  }
  return Object.freeze({ type, value, id: contentId(type, parts.payload), payload: parts.payload, steward: key });
}

/**
 * Step 1, and what step 2 has to say. Nothing of it is to be believed yet.
 *
 * @param {Uint8Array} bytes
 */
export function open(bytes) {
  if (bytes.length > ENVELOPE_BYTES) {
    throw new StructureError(`envelope: expected at most ${ENVELOPE_BYTES} bytes, got ${bytes.length}`);
  }
  const { value, fault } = structured(bytes, "envelope");
  must(value instanceof Foreign && value.major === 6 && value.argument === COSE_SIGN1, "expected tag 18");
  const items = value.content;
  must(Array.isArray(items) && items.length === 4, "expected an array of four");
  const [header, unprotected, payload, signature] = items;
  must(header instanceof Uint8Array && header.length <= PROTECTED_BYTES, "expected a protected header in bytes");
  must(unprotected instanceof Map, "expected a map as unprotected header");
  must(payload instanceof Uint8Array && payload.length <= PAYLOAD_BYTES, `expected at most ${PAYLOAD_BYTES} of payload`);
  must(signature instanceof Uint8Array && signature.length === 64, "expected a signature of 64 bytes");
  const inner = structured(header, "protected header");
  must(inner.value instanceof Map, "expected a map in the protected header");
  return { protected: header, headers: inner.value, unprotected, payload, signature, fault: fault ?? inner.fault };
}

/** @param {Uint8Array} bytes @param {string} what */
function structured(bytes, what) {
  try {
    return read(bytes);
  } catch (error) {
    if (error instanceof EncodingError) throw new StructureError(`${what}: ${error.message}`);
    throw error;
  }
}

/** @param {boolean} holds @param {string} rule @returns {asserts holds} */
function must(holds, rule) {
  if (!holds) throw new StructureError(`envelope: ${rule}`);
}

/**
 * Step 3.
 * @param {{headers: Map<any, any>, unprotected: Map<any, any>}} parts
 * @param {EnvelopeType} [expected]
 * @returns {{kid: Uint8Array, subject: string, type: EnvelopeType}}
 */
function checkHeaders({ headers, unprotected }, expected) {
  const need = (/** @type {boolean} */ holds, /** @type {string} */ rule) => {
    if (!holds) throw new HeaderError(`envelope: ${rule}`);
  };
  need(headers.size === 4, "expected a protected header of exactly four entries");
  need(headers.get(ALG) === ED25519, "expected algorithm -19");
  const contentType = headers.get(CONTENT_TYPE);
  /** @type {EnvelopeType[]} */
  const known = expected === undefined ? ["receipt", "checkpoint"] : [expected];
  const type = /** @type {EnvelopeType} */ (known.find((each) => TYPES[each]?.contentType === contentType));
  need(type !== undefined, `expected content type ${known.join(" or ")}`);
  const kid = headers.get(KID);
  need(kid instanceof Uint8Array && kid.length === 32, "expected a key id of 32 bytes");
  const claims = headers.get(CWT_CLAIMS);
  need(claims instanceof Map && claims.size === 2, "expected exactly issuer and subject as claims");
  need(claims.get(ISSUER) === stewardText(kid), "expected the key id's text form as issuer");
  const subject = claims.get(SUBJECT);
  need(typeof subject === "string", "expected text as subject");
  if (unprotected.size > 0) {
    const receipts = unprotected.get(RECEIPTS);
    need(unprotected.size === 1 && Array.isArray(receipts) && receipts.length > 0, "unprotected header: only receipts");
    need(receipts.every((/** @type {any} */ each) => each instanceof Uint8Array), "expected receipts in bytes");
  }
  return { kid, subject, type };
}

/** Step 6. @param {Uint8Array} payload @param {EnvelopeType} type @param {Uint8Array} kid @param {string} subject */
function checkPayload(payload, type, kid, subject) {
  let value;
  try {
    value = TYPES[type].parse(payload);
  } catch (error) {
    if (error instanceof MeshError) throw new PayloadError(`payload: ${error.message}`);
    throw error;
  }
  const { signer } = TYPES[type];
  if (!same(value[signer], kid)) throw new PayloadError(`payload: its ${signer} is not the key id`);
  if (TYPES[type].subject(value) !== subject) throw new PayloadError("payload: the header's subject is another");
  return value;
}

/** @param {Uint8Array} bytes of a verified envelope @returns {Uint8Array} with an empty unprotected header */
export function bare(bytes) {
  const parts = open(bytes);
  const body = encode([parts.protected, new Map(), parts.payload, parts.signature]);
  const out = new Uint8Array(1 + body.length);
  out[0] = 0xc0 | COSE_SIGN1;
  out.set(body, 1);
  return out;
}
