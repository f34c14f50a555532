/** SHAKE128 and SHAKE256 (FIPS 202). A lane is two 32-bit halves, the lower one first. */

const LANES = 25;

// Where a lane goes, and by how much it turns, one after the other (rho and pi), and what is added in each round (iota).
const [PLACES, TURNS] = (() => {
  const [places, turns] = [new Uint8Array(24), new Uint8Array(24)];
  for (let i = 0, x = 1, y = 0; i < 24; i++) {
    [x, y] = [y, (2 * x + 3 * y) % 5];
    places[i] = x + 5 * y;
    turns[i] = (((i + 1) * (i + 2)) / 2) % 64;
  }
  return [places, turns];
})();
const ADDED = (() => {
  const added = new Int32Array(48);
  for (let round = 0, register = 1; round < 24; round++) {
    for (let j = 0; j < 7; j++) {
      const bit = 2 ** j - 1;
      if (register & 1) added[2 * round + (bit >> 5)] ^= 1 << (bit & 31);
      register = register & 0x80 ? (register << 1) ^ 0x171 : register << 1;
    }
  }
  return added;
})();

/** @param {Int32Array} state 25 lanes */
function permute(state) {
  const columns = new Int32Array(10);
  const row = new Int32Array(10);
  for (let round = 0; round < 24; round++) {
    for (let i = 0; i < 10; i++) {
      columns[i] = state[i] ^ state[i + 10] ^ state[i + 20] ^ state[i + 30] ^ state[i + 40];
    }
    for (let x = 0; x < 5; x++) {
      const [left, right] = [2 * ((x + 4) % 5), 2 * ((x + 1) % 5)];
      const low = columns[left] ^ ((columns[right] << 1) | (columns[right + 1] >>> 31));
      const high = columns[left + 1] ^ ((columns[right + 1] << 1) | (columns[right] >>> 31));
      for (let i = 2 * x; i < 2 * LANES; i += 10) {
        state[i] ^= low;
        state[i + 1] ^= high;
      }
    }
    let [low, high] = [state[2], state[3]];
    for (let i = 0; i < 24; i++) {
      const at = 2 * PLACES[i];
      const [nextLow, nextHigh] = [state[at], state[at + 1]];
      if (TURNS[i] > 31) [low, high] = [high, low];
      const turn = TURNS[i] & 31; // never 0
      state[at] = (low << turn) | (high >>> (32 - turn));
      state[at + 1] = (high << turn) | (low >>> (32 - turn));
      [low, high] = [nextLow, nextHigh];
    }
    for (let y = 0; y < 2 * LANES; y += 10) {
      for (let i = 0; i < 10; i++) row[i] = state[y + i];
      for (let i = 0; i < 10; i++) state[y + i] = row[i] ^ (~row[(i + 2) % 10] & row[(i + 4) % 10]);
    }
    state[0] ^= ADDED[2 * round];
    state[1] ^= ADDED[2 * round + 1];
  }
}

/** An output as long as is wanted, of parts that are absorbed first. */
export class Shake {
  /** @param {128|256} strength @param {...Uint8Array} parts */
  constructor(strength, ...parts) {
    this.rate = 200 - strength / 4;
    this.state = new Int32Array(2 * LANES);
    this.at = 0;
    for (const part of parts) for (const byte of part) this.mix(byte);
    this.turn(this.at, 0x1f);
    this.turn(this.rate - 1, 0x80);
    permute(this.state);
    this.at = 0;
  }

  /** @param {number} at @param {number} byte */
  turn(at, byte) {
    this.state[at >> 2] ^= byte << (8 * (at & 3));
  }

  /** @param {number} byte */
  mix(byte) {
    this.turn(this.at++, byte);
    if (this.at === this.rate) {
      permute(this.state);
      this.at = 0;
    }
  }

  /** @returns {number} the next byte */
  next() {
    if (this.at === this.rate) {
      permute(this.state);
      this.at = 0;
    }
    const byte = (this.state[this.at >> 2] >>> (8 * (this.at & 3))) & 0xff;
    this.at++;
    return byte;
  }

  /** @param {number} count @returns {Uint8Array} the next bytes */
  take(count) {
    return Uint8Array.from({ length: count }, () => this.next());
  }
}
