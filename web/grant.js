/**
 * Grants (SPEC.md section 16): a chain of signed blocks, each made by the key that the one before names.
 *
 * @typedef {object} Block
 * @property {Uint8Array} id
 * @property {Uint8Array} signer
 * @property {any} value `next`, `caveats` (a Map), and in the first block `nonce`
 *
 * @typedef {object} Chain
 * @property {Uint8Array} id the grant's, which is its last block's
 * @property {Uint8Array} issuer
 * @property {readonly Block[]} blocks
 * @property {boolean} open whether its bearer can add to it
 */

import { same } from "./bytes.js";
import { STEWARD_IN, TOTALS, caveats } from "./caveats.js";
import { decode, encode } from "./cbor.js";
import { publicKey, verify } from "./ed25519.js";
import { open } from "./envelope.js";
import { CanonicalError, EncodingError, HeaderError, MeshError, PayloadError, SchemaError } from "./errors.js";
import { SignatureError, TrustError } from "./errors.js";
import { contentId, stewardText } from "./ids.js";
import { GRANT_BLOCKS, GRANT_BYTES } from "./limits.js";
import { bytes, closed, digest, id16, list, must, oneOf } from "./shape.js";

const ALG = 1;
const CONTENT_TYPE = 3;
const KID = 4;
const ED25519 = -19;
const GRANT_TYPE = "application/mesh-grant+cbor";
const PREFIX = "mg1_";
const EXPECTED = `${PREFIX}<base64url of a grant, as \`mesh grant issue\` prints it>`;
const TEXT_CHARS = PREFIX.length + Math.floor((GRANT_BYTES * 4 + 2) / 3);
const NOTHING = new Uint8Array(0);

const envelopes = closed(
  { blocks: list(bytes(), 1, GRANT_BLOCKS), "?secret": digest, "?closing": bytes(64) },
  (it, path) => must((it.secret === undefined) !== (it.closing === undefined), path, "expected a secret or a closing"),
);
const content = closed({ v: oneOf("mesh/1"), next: digest, caveats, "?nonce": id16 });

/**
 * @param {Uint8Array} data
 * @param {import("./trust.js").Trust} issuers
 * @returns {Promise<Chain>}
 * @throws {MeshError} the first fault in the order of the steps
 */
export async function verifyGrant(data, issuers) {
  const value = decode(data, { limit: GRANT_BYTES });
  if (!(value instanceof Map)) throw new EncodingError("grant: expected a map");
  const grant = envelopes(value, "grant");
  /** @type {Block[]} */
  const blocks = [];
  for (const envelope of grant.blocks) blocks.push(await block(envelope, blocks, issuers));
  const last = blocks[blocks.length - 1];
  await checkEnd(grant, last);
  return Object.freeze({ id: last.id, issuer: blocks[0].signer, blocks, open: grant.secret !== undefined });
}

/** Steps 3 to 8. @param {Uint8Array} envelope @param {Block[]} before @param {import("./trust.js").Trust} issuers */
async function block(envelope, before, issuers) {
  const what = `block ${before.length}`;
  const parent = before.at(-1);
  const parts = open(envelope);
  if (parts.fault) throw new CanonicalError(`${what}: ${parts.fault}`);
  const signer = checkHeader(parts, parent, what);
  const key = parent ? signer : issuers.get(signer);
  if (!key) throw new TrustError(`grant: issuer ${stewardText(signer)} is not in the trust set`);
  const signed = encode(["Signature1", parts.protected, parent?.id ?? NOTHING, parts.payload]);
  await verify(key, parts.signature, signed);
  const value = checkPayload(parts.payload, before, what);
  return Object.freeze({ id: contentId("grant-block", signed), signer: key, value });
}

/**
 * Step 5.
 * @param {{headers: Map<any, any>, unprotected: Map<any, any>}} parts
 * @param {Block|undefined} parent
 * @param {string} what
 * @returns {Uint8Array} the key that it names
 */
function checkHeader({ headers, unprotected }, parent, what) {
  const need = (/** @type {boolean} */ holds, /** @type {string} */ rule) => {
    if (!holds) throw new HeaderError(`${what}: ${rule}`);
  };
  need(headers.size === 3, "expected a protected header of exactly three entries");
  need(headers.get(ALG) === ED25519, "expected algorithm -19");
  need(headers.get(CONTENT_TYPE) === GRANT_TYPE, `expected content type ${GRANT_TYPE}`);
  const kid = headers.get(KID);
  need(kid instanceof Uint8Array && kid.length === 32, "expected a key id of 32 bytes");
  need(unprotected.size === 0, "expected an empty unprotected header");
  need(!parent || same(kid, parent.value.next), "signed by another key than its parent names");
  return kid;
}

/** Step 8. @param {Uint8Array} payload @param {Block[]} before @param {string} what */
function checkPayload(payload, before, what) {
  try {
    const value = content(decode(payload), what);
    must((value.nonce !== undefined) === (before.length === 0), what, "expected a nonce in the first block alone");
    const stated = [...before.map((each) => each.value.caveats), value.caveats];
    const alone = stated.some((each) => each.get(STEWARD_IN)?.length === 1);
    const totals = Object.keys(TOTALS).some((total) => value.caveats.has(total));
    must(alone || !totals, what, `states a total, and no ${STEWARD_IN} of one key so far`);
    return value;
  } catch (error) {
    if (error instanceof MeshError) throw new PayloadError(`payload: ${error.message}`);
    throw error;
  }
}

/** Step 9. @param {any} grant @param {Block} last */
async function checkEnd(grant, last) {
  if (grant.secret !== undefined) {
    if (same(await publicKey(grant.secret), last.value.next)) return;
    throw new SignatureError("grant: the secret is not that of the key which its last block names");
  }
  const header = encode(
    new Map(/** @type {[number, any][]} */ ([[ALG, ED25519], [CONTENT_TYPE, GRANT_TYPE], [KID, last.value.next]])),
  );
  await verify(last.value.next, grant.closing, encode(["Signature1", header, last.id, NOTHING]));
}

/** @param {string} text @returns {Uint8Array} the bytes, whatever they hold @throws {SchemaError} never with the text */
export function parseGrantText(text) {
  if (!text.startsWith(PREFIX)) throw new SchemaError(`grant: does not start with ${PREFIX}, expected ${EXPECTED}`);
  if (text.length > TEXT_CHARS) {
    throw new SchemaError(`grant: over ${TEXT_CHARS} characters, the most that ${EXPECTED} can have`);
  }
  const word = text.slice(PREFIX.length);
  if (!/^[A-Za-z0-9_-]*$/.test(word) || word.length % 4 === 1) {
    throw new SchemaError(`grant: not base64url without padding, expected ${EXPECTED}`);
  }
  const plain = atob(word.replaceAll("-", "+").replaceAll("_", "/"));
  const data = Uint8Array.from(plain, (character) => character.charCodeAt(0));
  // Base64 has spare bits at its end, and a grant has one spelling.
  if (grantText(data) !== text) {
    throw new SchemaError(`grant: not the one base64url spelling of its bytes, expected ${EXPECTED}`);
  }
  return data;
}

/** @param {Uint8Array} data @returns {string} */
export function grantText(data) {
  const plain = Array.from(data, (byte) => String.fromCharCode(byte)).join("");
  return PREFIX + btoa(plain).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
