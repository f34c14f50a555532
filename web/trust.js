/** The keys that a verifier trusts, and for when (SPEC.md section 11). */

import { toHex } from "./bytes.js";
import { keyFault } from "./ed25519.js";
import { MeshError, TrustFileError } from "./errors.js";
import { parseSteward, stewardText } from "./ids.js";
import { TRUST_BYTES, UINT63_MAX } from "./limits.js";

/** @typedef {{from?: bigint, until?: bigint}} Window Unix nanoseconds; `until` is the first that no longer counts */

export class Trust {
  /** @type {Map<string, {key: Uint8Array, windows: Window[]}>} */
  #keys = new Map();

  /** @param {Iterable<Uint8Array>} [keys] trusted at all times */
  constructor(keys = []) {
    for (const key of keys) this.#add(key, {}, "trust");
  }

  /**
   * @param {Uint8Array|string} file
   * @returns {Trust}
   * @throws {TrustFileError}
   */
  static parse(file) {
    const trust = new Trust();
    text(file)
      .split(/\r?\n/)
      .forEach((line, i) => {
        const words = line.replace(/#.*$/s, "").split(/[ \t]+/).filter(Boolean);
        if (words.length) trust.#add(...entry(words, `trust file, line ${i + 1}`));
      });
    if (!trust.size) throw new TrustFileError("trust file: holds no key");
    return trust;
  }

  /** @param {Uint8Array} key @param {Window} window @param {string} where */
  #add(key, window, where) {
    const fault = keyFault(key);
    if (fault) throw new TrustFileError(`${where}: a key that is ${fault}`);
    const id = toHex(key);
    if (!this.#keys.has(id)) this.#keys.set(id, { key, windows: [] });
    this.#keys.get(id)?.windows.push(window);
  }

  /** How many different keys. */
  get size() {
    return this.#keys.size;
  }

  /** @param {Uint8Array} key @returns {Uint8Array|undefined} the trust set's own copy */
  get(key) {
    return this.#keys.get(toHex(key))?.key;
  }

  /** @param {Uint8Array} key @param {bigint} ns Unix time @returns {boolean} a window of the key holds that time */
  covers(key, ns) {
    const windows = this.#keys.get(toHex(key))?.windows ?? [];
    return windows.some(({ from, until }) => (from === undefined || ns >= from) && (until === undefined || ns < until));
  }

  /** @returns {string[]} the text forms of the keys */
  stewards() {
    return [...this.#keys.values()].map(({ key }) => stewardText(key));
  }
}

/** @param {Uint8Array|string} file @returns {string} */
function text(file) {
  if (typeof file === "string") return file;
  if (file.length > TRUST_BYTES) throw new TrustFileError(`trust file: expected at most ${TRUST_BYTES} bytes`);
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(file);
  } catch {
    throw new TrustFileError("trust file: not valid UTF-8");
  }
}

/** @param {string[]} words @param {string} where @returns {[Uint8Array, Window, string]} */
function entry([steward, ...options], where) {
  let key;
  try {
    key = parseSteward(steward);
  } catch (error) {
    throw new TrustFileError(`${where}: ${/** @type {MeshError} */ (error).message}`);
  }
  /** @type {Record<string, bigint>} */
  const window = {};
  for (const option of options) {
    const [, side, time] = /^(from|until)=(.*)$/.exec(option) ?? [];
    if (side === undefined || side in window) throw new TrustFileError(`${where}: expected one from= and one until=`);
    window[side] = nanoseconds(time, where);
  }
  if ("from" in window && "until" in window && window.from >= window.until) {
    throw new TrustFileError(`${where}: expected from before until`);
  }
  return [key, window, where];
}

/** @param {string} time @param {string} where @returns {bigint} Unix nanoseconds */
function nanoseconds(time, where) {
  const form = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/;
  const milliseconds = form.test(time) ? Date.parse(time) : NaN;
  // Date.parse takes 31 February for 3 March; a real date comes back as it was written.
  if (Number.isNaN(milliseconds) || new Date(milliseconds).toISOString() !== time.replace("Z", ".000Z")) {
    throw new TrustFileError(`${where}: expected a time YYYY-MM-DDTHH:MM:SSZ, got ${JSON.stringify(time)}`);
  }
  if (milliseconds < 0 || BigInt(milliseconds) * 1000000n > UINT63_MAX) {
    throw new TrustFileError(`${where}: expected a time whose nanoseconds are 0 to 2^63-1, got ${time}`);
  }
  return BigInt(milliseconds) * 1000000n;
}
