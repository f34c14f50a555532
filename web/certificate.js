/** Who may sign blueprints (SPEC.md section 25): keys, certificates up to a root, and what that root took back. */

import { compare, join, same, utf8 } from "./bytes.js";
import { keyFault, verify } from "./ed25519.js";
import { ChainError, ExpiredError, SignatureError, SignerError, StaleRevocations, UntrustedRoot } from "./errors.js";
import { KEY_BYTES as ML_DSA_KEY, SIGNATURE_BYTES as ML_DSA_SIGNATURE, verifies } from "./mldsa.js";
import { sha256 } from "./body.js";

export const KEY_BYTES = 32 + ML_DSA_KEY;
export const SIGNATURE_BYTES = 64 + ML_DSA_SIGNATURE;
const LABEL_BYTES = 64;
const SIGNED_BYTES = 72 + KEY_BYTES + LABEL_BYTES;
export const CERTIFICATE_BYTES = SIGNED_BYTES + SIGNATURE_BYTES;
const LIST_HEAD = 68;
const MAX_REVOKED = 65536;

/** @typedef {{data: Uint8Array, id: Uint8Array}} Key */

/** @param {Uint8Array} data @returns {DataView} */
const viewOf = (data) => new DataView(data.buffer, data.byteOffset, data.byteLength);

/** @param {Uint8Array} data @returns {Promise<Key>} @throws {ChainError} for one that can bind nobody */
export async function parseKey(data) {
  if (data.length !== KEY_BYTES) throw new ChainError(`blueprint key: ${data.length} bytes, expected ${KEY_BYTES}`);
  const fault = keyFault(data.subarray(0, 32));
  if (fault) throw new ChainError(`blueprint key: ${fault}`);
  return { data, id: await sha256(join(utf8("mesh blueprint key v1\0"), data)) };
}

/**
 * @param {Key} key
 * @param {string} purpose
 * @param {Uint8Array} content
 * @param {Uint8Array} signature
 * @param {string} what
 * @throws {SignerError} naming the first signature that does not hold
 */
export async function checkSigned(key, purpose, content, signature, what) {
  const message = join(utf8(`mesh blueprint ${purpose} v1\0`), content);
  try {
    await verify(key.data.subarray(0, 32), signature.subarray(0, 64), message);
  } catch (error) {
    if (!(error instanceof SignatureError)) throw error;
    throw new SignerError(`${what}: its Ed25519 signature does not hold`);
  }
  if (!verifies(key.data.subarray(32), signature.subarray(64), message)) {
    throw new SignerError(`${what}: its ML-DSA-65 signature does not hold`);
  }
}

/** The same, of what the chain is made of. @type {typeof checkSigned} */
async function checkLink(key, purpose, content, signature, what) {
  try {
    await checkSigned(key, purpose, content, signature, what);
  } catch (error) {
    if (!(error instanceof SignerError)) throw error;
    throw new ChainError(error.message);
  }
}

/** @param {Uint8Array} data @param {string} what @returns {Promise<any>} @throws {ChainError} for another spelling */
export async function parseCertificate(data, what) {
  const view = viewOf(data);
  if (compare(data.subarray(0, 6), utf8("MKBC\u0001\0"))) throw new ChainError(`${what}: no certificate of version 1`);
  const flags = view.getUint16(6, true);
  if (flags > 1) throw new ChainError(`${what}: flags ${flags}, expected 0 or 1`);
  const [from, until] = [view.getBigUint64(24, true), view.getBigUint64(32, true)];
  if (from >= until) throw new ChainError(`${what}: valid from ${from} until ${until}, which is never`);
  const subject = await parseKey(data.subarray(72, 72 + KEY_BYTES));
  const label = labelOf(data.subarray(72 + KEY_BYTES, SIGNED_BYTES), what);
  const id = await sha256(data.subarray(0, SIGNED_BYTES));
  return { data, id, mayCertify: flags === 1, from, until, issuer: data.subarray(40, 72), subject, label };
}

/** @param {Uint8Array} bytes @param {string} what @returns {string} */
function labelOf(bytes, what) {
  const end = bytes.indexOf(0) < 0 ? bytes.length : bytes.indexOf(0);
  let label = "";
  try {
    label = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(0, end));
  } catch {
    // told below
  }
  if (!label || /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u.test(label) || bytes.subarray(end).some((byte) => byte)) {
    throw new ChainError(`${what}: its label is not printable text with zeros behind it`);
  }
  return label;
}

/**
 * @param {any[]} chain the signer's certificate first
 * @param {Key[]} roots
 * @returns {Promise<Key>} the root that it leads to
 * @throws {ChainError} or {UntrustedRoot}
 */
export async function checkChain(chain, roots) {
  for (const [i, certificate] of chain.entries()) {
    const issuer = chain[i + 1];
    if (!issuer) break;
    if (!same(certificate.issuer, issuer.subject.id)) throw new ChainError(`certificate ${i}: of another issuer than the next`);
    if (!issuer.mayCertify) throw new ChainError(`certificate ${i}: its issuer may not certify`);
    await checkCertified(certificate, issuer.subject, `certificate ${i}`);
  }
  const last = chain[chain.length - 1];
  const root = roots.find(({ id }) => same(id, last.issuer));
  if (!root) throw new UntrustedRoot("the last certificate: of a root that is not trusted here");
  await checkCertified(last, root, "the last certificate");
  return root;
}

/** @param {any} certificate @param {Key} issuer @param {string} what */
async function checkCertified({ data }, issuer, what) {
  await checkLink(issuer, "certificate", data.subarray(0, SIGNED_BYTES), data.subarray(SIGNED_BYTES), what);
}

/** @param {any[]} chain @param {bigint} now Unix seconds @throws {ExpiredError} */
export function checkTimes(chain, now) {
  for (const [i, { from, until }] of chain.entries()) {
    if (now < from || now >= until) throw new ExpiredError(`certificate ${i}: valid from ${from} until ${until}, now ${now}`);
  }
}

/**
 * @param {Uint8Array} data
 * @param {Key[]} roots
 * @returns {Promise<any>} a list whose signatures hold
 * @throws {ChainError} or {UntrustedRoot}
 */
export async function parseRevocations(data, roots) {
  const what = "revocation list";
  if (data.length < LIST_HEAD + SIGNATURE_BYTES) throw new ChainError(`${what}: ${data.length} bytes`);
  const view = viewOf(data);
  if (compare(data.subarray(0, 8), utf8("MKRL\u0001\0\0\0"))) throw new ChainError(`${what}: no list of version 1`);
  const [made, until, count] = [view.getBigUint64(16, true), view.getBigUint64(24, true), view.getUint32(64, true)];
  const end = LIST_HEAD + 32 * count;
  if (count > MAX_REVOKED || data.length !== end + SIGNATURE_BYTES) throw new ChainError(`${what}: ${count} ids in ${data.length} bytes`);
  const ids = Array.from({ length: count }, (_, i) => data.subarray(LIST_HEAD + 32 * i, LIST_HEAD + 32 * (i + 1)));
  if (ids.some((id, i) => i && compare(ids[i - 1], id) >= 0)) throw new ChainError(`${what}: its ids do not ascend`);
  if (made >= until) throw new ChainError(`${what}: made at ${made}, valid until ${until}, which is never`);
  const root = roots.find(({ id }) => same(id, data.subarray(32, 64)));
  if (!root) throw new UntrustedRoot(`${what}: of a root that is not trusted here`);
  await checkLink(root, "revocations", data.subarray(0, end), data.subarray(end), what);
  return { root, until, ids };
}

/** @param {any} list @param {Key} root @param {bigint} now @throws {StaleRevocations} where it does not say what `root` took back */
export function checkList(list, root, now) {
  if (list.root !== root) throw new StaleRevocations("revocation list: of another root than the certificates lead to");
  if (now >= list.until) throw new StaleRevocations(`revocation list: expired at ${list.until}, now ${now}`);
}
