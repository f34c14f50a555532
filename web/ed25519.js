/**
 * Ed25519 (RFC 8032), strict: what implementations differ about is refused here, before WebCrypto is asked.
 */

import { join } from "./bytes.js";
import { SignatureError, UncheckableError } from "./errors.js";

const P = 2n ** 255n - 19n;
const ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n;
const SQRT_MINUS_ONE = 19681161376707505956807079304988542015446066515923890162744021073123829784752n;

// The y coordinates of the eight points whose eighth multiple is neutral: orders 1, 2, 4, 8 and 8.
const SMALL_ORDER = new Set([
  1n,
  P - 1n,
  0n,
  2707385501144840649318225287225658788936804267575313519463743609750303402022n,
  55188659117513257062467267217118295137698188065244968500265048394206261417927n,
]);

/** @param {bigint} value @returns {bigint} */
const mod = (value) => ((value % P) + P) % P;

/** @param {bigint} base @param {bigint} exponent @returns {bigint} */
function power(base, exponent) {
  let result = 1n;
  for (; exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = (result * base) % P;
    base = (base * base) % P;
  }
  return result;
}

/** @param {Uint8Array} bytes @returns {bigint} */
function little(bytes) {
  let value = 0n;
  for (let i = bytes.length - 1; i >= 0; i--) value = (value << 8n) | BigInt(bytes[i]);
  return value;
}

/**
 * @param {Uint8Array} bytes 32
 * @returns {[bigint, bigint]|null} x and y, or null where the bytes are not the one encoding of a point
 */
export function point(bytes) {
  const whole = little(bytes);
  const sign = whole >> 255n;
  const y = whole & (2n ** 255n - 1n);
  if (y >= P) return null;
  const u = mod(y * y - 1n);
  const v = mod(D * y * y + 1n);
  const square = mod(u * power(v, P - 2n));
  let x = power(square, (P + 3n) / 8n);
  if (mod(x * x - square) !== 0n) x = mod(x * SQRT_MINUS_ONE);
  if (mod(x * x - square) !== 0n) return null;
  if (x === 0n && sign === 1n) return null;
  return [(x & 1n) === sign ? x : P - x, y];
}

/** @param {Uint8Array} key 32 bytes @returns {string|null} what is wrong with it as a public key */
export function keyFault(key) {
  if (key.length !== 32) return `expected 32 bytes, got ${key.length}`;
  const at = point(key);
  if (!at) return "not the canonical encoding of a point";
  return SMALL_ORDER.has(at[1]) ? "of small order" : null;
}

/**
 * @param {Uint8Array} key 32 bytes
 * @param {Uint8Array} signature 64 bytes
 * @param {Uint8Array} message
 * @returns {Promise<void>}
 * @throws {SignatureError} where it does not hold
 * @throws {UncheckableError} where the platform has no Ed25519
 */
export async function verify(key, signature, message) {
  const fault = keyFault(key);
  if (fault) throw new SignatureError(`public key: ${fault}`);
  if (signature.length !== 64) throw new SignatureError(`signature: expected 64 bytes, got ${signature.length}`);
  if (little(signature.subarray(32)) >= ORDER) throw new SignatureError("signature: s is not below the group order");
  const r = point(signature.subarray(0, 32));
  if (!r) throw new SignatureError("signature: r is not the canonical encoding of a point");
  if (SMALL_ORDER.has(r[1])) throw new SignatureError("signature: r is of small order");
  if (!(await platformVerify(key, signature, message))) throw new SignatureError("signature: does not hold");
}

// The head of a PKCS #8 private key that holds a seed of Ed25519 (RFC 8410).
const PKCS8 = Uint8Array.of(48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32);

/**
 * @param {Uint8Array} seed 32 bytes
 * @returns {Promise<Uint8Array>} the public key that belongs to it
 * @throws {UncheckableError} where the platform has no Ed25519
 */
export async function publicKey(seed) {
  const subtle = webCrypto();
  let x;
  try {
    const key = await subtle.importKey("pkcs8", join(PKCS8, seed), { name: "Ed25519" }, true, ["sign"]);
    ({ x } = await subtle.exportKey("jwk", key));
  } catch (error) {
    throw unknownHere(error);
  }
  const plain = atob(/** @type {string} */ (x).replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(plain, (character) => character.charCodeAt(0));
}

/** @returns {SubtleCrypto} */
function webCrypto() {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new UncheckableError("ed25519: no WebCrypto here (a page needs https or localhost)");
  return subtle;
}

/** @param {unknown} error of an import that nothing else can have failed @returns {UncheckableError} */
function unknownHere(error) {
  return new UncheckableError(`ed25519: WebCrypto here does not know it (${/** @type {Error} */ (error).name})`);
}

/** @param {Uint8Array} key @param {Uint8Array} signature @param {Uint8Array} message @returns {Promise<boolean>} */
async function platformVerify(key, signature, message) {
  const subtle = webCrypto();
  // Copies, because WebCrypto takes no view into shared memory.
  const [ownKey, ownSignature, ownMessage] = [key, signature, message].map((bytes) => new Uint8Array(bytes));
  let imported;
  try {
    imported = await subtle.importKey("raw", ownKey, { name: "Ed25519" }, false, ["verify"]);
  } catch (error) {
    // The key is a good one, so what is missing is the algorithm.
    throw unknownHere(error);
  }
  return subtle.verify({ name: "Ed25519" }, imported, ownSignature, ownMessage);
}
