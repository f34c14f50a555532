/**
 * Whose signatures count. The keys that the reader pinned, and nothing else; where nothing is pinned, the key that the
 * gateway names, of which every result then says so.
 */

import { same } from "../bytes.js";
import { MeshError } from "../errors.js";
import { parseSteward, stewardText } from "../ids.js";
import { Trust } from "../trust.js";

const PLACE = "mesh.trust";

export class Trusted extends EventTarget {
  /** @type {Trust|null} */
  #pins = null;
  /** @type {Uint8Array|null} */
  #told = null;
  /** The trust file as it was pinned. */
  text = "";

  /** @param {Storage|null} storage null where the browser keeps nothing: pins then last as long as the page */
  constructor(storage) {
    super();
    this.storage = storage;
    const kept = storage?.getItem(PLACE);
    if (kept) {
      try {
        this.#pins = Trust.parse(kept);
        this.text = kept;
      } catch (error) {
        if (!(error instanceof MeshError)) throw error;
        storage?.removeItem(PLACE);
      }
    }
  }

  /** Whether the reader chose the keys. */
  get pinned() {
    return this.#pins !== null;
  }

  /** @returns {Trust} */
  get keys() {
    return this.#pins ?? new Trust(this.#told ? [this.#told] : []);
  }

  /** @returns {string|null} the key that the gateway says is its own */
  get told() {
    return this.#told && stewardText(this.#told);
  }

  /** @returns {boolean} the gateway names a key that is not among those that were pinned */
  get differs() {
    return this.#pins !== null && this.#told !== null && !this.#pins.get(this.#told);
  }

  /** @param {string} steward as the gateway names it */
  tell(steward) {
    const key = parseSteward(steward);
    if (this.#told && same(key, this.#told)) return;
    new Trust([key]); // refuses a key that binds nobody
    this.#told = key;
    this.#changed();
  }

  /** @param {string} text a key, or the lines of a trust file @throws {import("../errors.js").TrustFileError} */
  pin(text) {
    this.#pins = Trust.parse(text);
    this.text = text;
    this.storage?.setItem(PLACE, text);
    this.#changed();
  }

  unpin() {
    this.#pins = null;
    this.text = "";
    this.storage?.removeItem(PLACE);
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
