/**
 * ML-DSA-65 (FIPS 204), verification alone, with an empty context: no browser has it, and a blueprint wants it.
 *
 * Everything here is public, so that nothing has to take the same time. A polynomial is 256 numbers below Q.
 */

import { same } from "./bytes.js";
import { Shake } from "./keccak.js";

const Q = 8380417;
const N = 256;
const [ROWS, COLUMNS] = [6, 5]; // k and l
const DROPPED = 2 ** 13; // 2^d
const ONES = 49; // tau
const MASK = 2 ** 19; // gamma1
const HALF_STEP = (Q - 1) / 32; // gamma2
const STEPS = (Q - 1) / (2 * HALF_STEP);
const BOUND = MASK - ONES * 4; // gamma1 - beta
const HINTS = 55; // omega
const CHALLENGE_BYTES = 48;
const Z_BYTES = 640;
const T_BYTES = 320;
export const KEY_BYTES = 32 + ROWS * T_BYTES;
export const SIGNATURE_BYTES = CHALLENGE_BYTES + COLUMNS * Z_BYTES + HINTS + ROWS;

const ZETAS = (() => {
  const powers = [1];
  for (let i = 1; i < N; i++) powers.push((powers[i - 1] * 1753) % Q);
  return powers.map((_, i) => powers[Number.parseInt(i.toString(2).padStart(8, "0").split("").reverse().join(""), 2)]);
})();
const INVERSE_N = 8347681;

/** @param {Float64Array} w */
function transform(w) {
  for (let m = 0, length = 128; length >= 1; length /= 2) {
    for (let start = 0; start < N; start += 2 * length) {
      const zeta = ZETAS[++m];
      for (let j = start; j < start + length; j++) {
        const t = (zeta * w[j + length]) % Q;
        w[j + length] = (w[j] + Q - t) % Q;
        w[j] = (w[j] + t) % Q;
      }
    }
  }
  return w;
}

/** @param {Float64Array} w */
function transformBack(w) {
  for (let m = N, length = 1; length < N; length *= 2) {
    for (let start = 0; start < N; start += 2 * length) {
      const zeta = Q - ZETAS[--m];
      for (let j = start; j < start + length; j++) {
        const t = w[j];
        w[j] = (t + w[j + length]) % Q;
        w[j + length] = (zeta * (t + Q - w[j + length])) % Q;
      }
    }
  }
  return w.map((value) => (value * INVERSE_N) % Q);
}

/** @param {Uint8Array} bytes @param {number} bits of each number, least significant first @returns {Float64Array} */
function unpack(bytes, bits) {
  const numbers = new Float64Array(N);
  for (let i = 0, at = 0, held = 0, many = 0; i < N; i++) {
    for (; many < bits; many += 8) held += bytes[at++] * 2 ** many;
    numbers[i] = held % 2 ** bits;
    held = Math.floor(held / 2 ** bits);
    many -= bits;
  }
  return numbers;
}

/** @param {Uint8Array} rho @param {number} row @param {number} column @returns {Float64Array} transformed */
function entry(rho, row, column) {
  const stream = new Shake(128, rho, Uint8Array.of(column, row));
  const numbers = new Float64Array(N);
  for (let i = 0; i < N; ) {
    const [a, b, c] = [stream.next(), stream.next(), stream.next()];
    const number = a | (b << 8) | ((c & 0x7f) << 16);
    if (number < Q) numbers[i++] = number;
  }
  return numbers;
}

/** @param {Uint8Array} seed @returns {Float64Array} 49 of its numbers are 1 or -1, the others 0 */
function ball(seed) {
  const stream = new Shake(256, seed);
  const signs = stream.take(8);
  const numbers = new Float64Array(N);
  for (let i = N - ONES, sign = 0; i < N; i++, sign++) {
    let j = stream.next();
    while (j > i) j = stream.next();
    numbers[i] = numbers[j];
    numbers[j] = (signs[sign >> 3] >> (sign & 7)) & 1 ? Q - 1 : 1;
  }
  return numbers;
}

/** @param {Uint8Array} bytes @returns {Uint8Array[]|null} a 1 for each hint; null for another spelling of them */
function hintsOf(bytes) {
  const hints = Array.from({ length: ROWS }, () => new Uint8Array(N));
  let at = 0;
  for (let row = 0; row < ROWS; row++) {
    const end = bytes[HINTS + row];
    if (end < at || end > HINTS) return null;
    for (const first = at; at < end; at++) {
      if (at > first && bytes[at - 1] >= bytes[at]) return null;
      hints[row][bytes[at]] = 1;
    }
  }
  for (; at < HINTS; at++) if (bytes[at] !== 0) return null;
  return hints;
}

/** @param {number} value @param {number} hint @returns {number} its high bits, as the hint mends them */
function high(value, hint) {
  let low = value % (2 * HALF_STEP);
  if (low > HALF_STEP) low -= 2 * HALF_STEP;
  let steps = (value - low) / (2 * HALF_STEP);
  if (value - low === Q - 1) {
    steps = 0;
    low -= 1;
  }
  if (!hint) return steps;
  return (steps + (low > 0 ? 1 : STEPS - 1)) % STEPS;
}

/**
 * @param {Uint8Array} key 1952 bytes
 * @param {Uint8Array} signature
 * @param {Uint8Array} message
 * @returns {boolean} whether it holds
 */
export function verifies(key, signature, message) {
  if (key.length !== KEY_BYTES || signature.length !== SIGNATURE_BYTES) return false;
  const rho = key.subarray(0, 32);
  const challenge = signature.subarray(0, CHALLENGE_BYTES);
  const hints = hintsOf(signature.subarray(CHALLENGE_BYTES + COLUMNS * Z_BYTES));
  if (!hints) return false;
  const z = [];
  for (let column = 0; column < COLUMNS; column++) {
    const at = CHALLENGE_BYTES + column * Z_BYTES;
    const numbers = unpack(signature.subarray(at, at + Z_BYTES), 20).map((number) => MASK - number);
    if (numbers.some((number) => Math.abs(number) >= BOUND)) return false;
    z.push(transform(numbers.map((number) => (number + Q) % Q)));
  }
  const c = transform(ball(challenge));
  const who = new Shake(256, key).take(64);
  const mu = new Shake(256, who, Uint8Array.of(0, 0), message).take(64);
  const found = new Uint8Array(ROWS * 128);
  for (let row = 0; row < ROWS; row++) {
    const at = 32 + row * T_BYTES;
    const t = transform(unpack(key.subarray(at, at + T_BYTES), 10).map((number) => (number * DROPPED) % Q));
    const w = t.map((number, i) => Q - ((number * c[i]) % Q));
    for (let column = 0; column < COLUMNS; column++) {
      const a = entry(rho, row, column);
      for (let i = 0; i < N; i++) w[i] = (w[i] + a[i] * z[column][i]) % Q;
    }
    transformBack(w.map((number) => number % Q)).forEach((number, i) => {
      found[row * 128 + (i >> 1)] |= high(number, hints[row][i]) << (4 * (i & 1));
    });
  }
  return same(new Shake(256, mu, found).take(CHALLENGE_BYTES), challenge);
}
