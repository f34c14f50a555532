/**
 * BLAKE3 in its three modes, from the BLAKE3 paper. 32-byte digests unless more is asked for.
 */

import { utf8 } from "./bytes.js";

const CHUNK_START = 1;
const CHUNK_END = 2;
const PARENT = 4;
const ROOT = 8;
const KEYED_HASH = 16;
const DERIVE_KEY_CONTEXT = 32;
const DERIVE_KEY_MATERIAL = 64;

const CHUNK_BYTES = 1024;
const BLOCK_BYTES = 64;

const IV = Uint32Array.of(
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
);

// Which message word each round takes at each place: the permutation of the paper, applied once more per round.
const SCHEDULE = (() => {
  const permutation = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
  const rounds = [permutation.map((_, i) => i)];
  for (let round = 1; round < 7; round++) rounds.push(permutation.map((from) => rounds[round - 1][from]));
  return Uint8Array.from(rounds.flat());
})();

const state = new Uint32Array(16);

/** @param {number} a @param {number} b @param {number} c @param {number} d @param {number} x @param {number} y */
function mix(a, b, c, d, x, y) {
  let va = state[a];
  let vb = state[b];
  let vc = state[c];
  let vd = state[d];
  va = (va + vb + x) | 0;
  vd ^= va;
  vd = (vd >>> 16) | (vd << 16);
  vc = (vc + vd) | 0;
  vb ^= vc;
  vb = (vb >>> 12) | (vb << 20);
  va = (va + vb + y) | 0;
  vd ^= va;
  vd = (vd >>> 8) | (vd << 24);
  vc = (vc + vd) | 0;
  vb ^= vc;
  vb = (vb >>> 7) | (vb << 25);
  state[a] = va;
  state[b] = vb;
  state[c] = vc;
  state[d] = vd;
}

/**
 * @param {Uint32Array} chaining 8 words
 * @param {Uint32Array} block 16 words
 * @param {number} counter below 2^53
 * @param {number} length bytes of the block that are input
 * @param {number} flags
 * @returns {Uint32Array} 16 words; the first 8 are the next chaining value
 */
function compress(chaining, block, counter, length, flags) {
  state.set(chaining);
  state.set(IV.subarray(0, 4), 8);
  state[12] = counter;
  state[13] = Math.floor(counter / 0x100000000);
  state[14] = length;
  state[15] = flags;
  for (let at = 0; at < SCHEDULE.length; at += 16) {
    mix(0, 4, 8, 12, block[SCHEDULE[at]], block[SCHEDULE[at + 1]]);
    mix(1, 5, 9, 13, block[SCHEDULE[at + 2]], block[SCHEDULE[at + 3]]);
    mix(2, 6, 10, 14, block[SCHEDULE[at + 4]], block[SCHEDULE[at + 5]]);
    mix(3, 7, 11, 15, block[SCHEDULE[at + 6]], block[SCHEDULE[at + 7]]);
    mix(0, 5, 10, 15, block[SCHEDULE[at + 8]], block[SCHEDULE[at + 9]]);
    mix(1, 6, 11, 12, block[SCHEDULE[at + 10]], block[SCHEDULE[at + 11]]);
    mix(2, 7, 8, 13, block[SCHEDULE[at + 12]], block[SCHEDULE[at + 13]]);
    mix(3, 4, 9, 14, block[SCHEDULE[at + 14]], block[SCHEDULE[at + 15]]);
  }
  const out = new Uint32Array(16);
  for (let i = 0; i < 8; i++) {
    out[i] = state[i] ^ state[i + 8];
    out[i + 8] = state[i + 8] ^ chaining[i];
  }
  return out;
}

/** @param {Uint8Array} bytes at most 64 @returns {Uint32Array} 16 words, little-endian, padded with zeros */
function words(bytes) {
  const out = new Uint32Array(16);
  for (let i = 0; i < bytes.length; i++) out[i >> 2] |= bytes[i] << (8 * (i & 3));
  return out;
}

/** A node whose last compression is put off: only the root's is done with ROOT, and then for as long as wanted. */
class Node {
  /** @param {Uint32Array} chaining @param {Uint32Array} block @param {number} counter @param {number} length
   *  @param {number} flags */
  constructor(chaining, block, counter, length, flags) {
    this.chaining = chaining;
    this.block = block;
    this.counter = counter;
    this.length = length;
    this.flags = flags;
  }

  value() {
    return compress(this.chaining, this.block, this.counter, this.length, this.flags).subarray(0, 8);
  }

  /** @param {number} size bytes @returns {Uint8Array} */
  root(size) {
    const out = new Uint8Array(size);
    for (let from = 0; from < size; from += BLOCK_BYTES) {
      const block = compress(this.chaining, this.block, from / BLOCK_BYTES, this.length, this.flags | ROOT);
      const end = Math.min(size, from + BLOCK_BYTES);
      for (let i = from; i < end; i++) out[i] = block[(i - from) >> 2] >>> (8 * (i & 3));
    }
    return out;
  }
}

/** @param {Uint8Array} chunk at most 1024 bytes @param {number} counter @param {Uint32Array} key @param {number} flags */
function chunkNode(chunk, counter, key, flags) {
  let chaining = key;
  let at = 0;
  let start = CHUNK_START;
  while (chunk.length - at > BLOCK_BYTES) {
    const block = words(chunk.subarray(at, at + BLOCK_BYTES));
    chaining = compress(chaining, block, counter, BLOCK_BYTES, flags | start).subarray(0, 8);
    start = 0;
    at += BLOCK_BYTES;
  }
  return new Node(chaining, words(chunk.subarray(at)), counter, chunk.length - at, flags | start | CHUNK_END);
}

/** @param {Uint32Array} left @param {Uint32Array} right @param {Uint32Array} key @param {number} flags */
function parentNode(left, right, key, flags) {
  const block = new Uint32Array(16);
  block.set(left);
  block.set(right, 8);
  return new Node(key, block, 0, BLOCK_BYTES, flags | PARENT);
}

/** @param {Uint8Array} input @param {Uint32Array} key @param {number} flags @returns {Node} the root */
function tree(input, key, flags) {
  const chunks = Math.max(1, Math.ceil(input.length / CHUNK_BYTES));
  /** @type {Uint32Array[]} roots of whole subtrees, the largest first: one for each bit of the chunk count */
  const whole = [];
  for (let counter = 0; counter < chunks - 1; counter++) {
    const from = counter * CHUNK_BYTES;
    let value = chunkNode(input.subarray(from, from + CHUNK_BYTES), counter, key, flags).value();
    for (let done = counter + 1; done % 2 === 0; done /= 2) {
      value = parentNode(/** @type {Uint32Array} */ (whole.pop()), value, key, flags).value();
    }
    whole.push(value);
  }
  let node = chunkNode(input.subarray((chunks - 1) * CHUNK_BYTES), chunks - 1, key, flags);
  while (whole.length) node = parentNode(/** @type {Uint32Array} */ (whole.pop()), node.value(), key, flags);
  return node;
}

/** @param {Uint8Array} input @param {number} [size] bytes of output @returns {Uint8Array} */
export function hash(input, size = 32) {
  return tree(input, IV, 0).root(size);
}

/** @param {Uint8Array} key 32 bytes @param {Uint8Array} input @param {number} [size] @returns {Uint8Array} */
export function keyedHash(key, input, size = 32) {
  if (key.length !== 32) throw new RangeError(`blake3 key: expected 32 bytes, got ${key.length}`);
  return tree(input, words(key).slice(0, 8), KEYED_HASH).root(size);
}

/** @param {string} context @param {Uint8Array} material @param {number} [size] @returns {Uint8Array} */
export function deriveKey(context, material, size = 32) {
  const key = tree(utf8(context), IV, DERIVE_KEY_CONTEXT).root(32);
  return tree(material, words(key).slice(0, 8), DERIVE_KEY_MATERIAL).root(size);
}
