/**
 * The caveats of a grant (SPEC.md section 16): what each may state, and when it holds over a frame. One that is not here
 * may state anything and never holds.
 *
 * @typedef {object} Caveat
 * @property {import("./shape.js").Type} type what it may state
 * @property {(frame: any) => any} offered what the frame says of it; undefined where it lacks that
 * @property {(stated: any, offered: any, leewayNs: bigint) => boolean} holds
 */

import { compare, same } from "./bytes.js";
import { encode } from "./cbor.js";
import { ascending, backendId, differs, digest, fidelity, list, name, positiveCount, uint63 } from "./shape.js";

const ITEMS = 64;

export const STEWARD_IN = "steward-in";

/** What a serve may draw from each total: its worst case. @type {Record<string, (frame: any) => bigint|undefined>} */
export const TOTALS = {
  "total-uj": (frame) => frame.est_uj,
  "total-tokens": (frame) => BigInt(frame.prompt_tokens) + BigInt(frame.max_tokens),
};

/** @type {import("./shape.js").Type} */
const nameOrDigest = (value, path) => (value instanceof Uint8Array ? digest : name)(value, path);

/** @param {import("./shape.js").Type} item @returns {import("./shape.js").Type} */
const listOf = (item) => (value, path) => {
  const items = list(item, 1, ITEMS)(value, path);
  ascending(items, (a, b) => compare(encode(a), encode(b)), path);
  return items;
};

/** @param {any[]} stated @param {Uint8Array|string} one */
const holdsOne = (stated, one) =>
  stated.some((each) => (each instanceof Uint8Array && one instanceof Uint8Array ? same(each, one) : each === one));

/** @param {import("./shape.js").Type} item @param {(frame: any) => any} offered @returns {Caveat} */
const oneOfThese = (item, offered) => ({ type: listOf(item), offered, holds: holdsOne });

/** @param {import("./shape.js").Type} type @param {(frame: any) => any} offered @returns {Caveat} */
const atMost = (type, offered) => ({ type, offered, holds: (stated, got) => got <= stated });

/** @type {Caveat} */
const recipeIn = {
  type: listOf(nameOrDigest),
  offered: (frame) => frame,
  holds: (stated, { recipe_id, runtime_recipe_digest: recipe }) => {
    // A digest says more than the name that a gateway gave a model: where both sides have one it decides alone.
    const digests = recipe !== undefined && stated.some((/** @type {any} */ each) => each instanceof Uint8Array);
    return holdsOne(stated, digests ? recipe : recipe_id);
  },
};

/** @type {Map<string, Caveat>} */
export const CAVEATS = new Map(
  Object.entries({
    "model-in": oneOfThese(digest, (frame) => frame.weights_digest),
    "recipe-in": recipeIn,
    "backend-in": oneOfThese(backendId, (frame) => frame.backend_id),
    "blueprint-in": oneOfThese(digest, (frame) => frame.blueprint_id),
    [STEWARD_IN]: oneOfThese(digest, (frame) => frame.steward),
    "fidelity-at-least": { type: fidelity, offered: (frame) => frame.fidelity, holds: (stated, got) => got >= stated },
    "max-tokens": atMost(positiveCount, (frame) => frame.max_tokens),
    "max-uj": atMost(uint63, (frame) => frame.est_uj),
    "not-before": {
      type: uint63,
      offered: (frame) => frame.now_ns,
      holds: (stated, got, leewayNs) => got + leewayNs >= stated,
    },
    "not-after": {
      type: uint63,
      offered: (frame) => frame.now_ns,
      holds: (stated, got, leewayNs) => got - leewayNs <= stated,
    },
    // Whether one serve alone would be too much; what others drew is for the decision.
    ...Object.fromEntries(Object.entries(TOTALS).map(([total, drawn]) => [total, atMost(uint63, drawn)])),
  }),
);

/** The map of a block, checked; what unknown caveats state is left as it is. @type {import("./shape.js").Type} */
export const caveats = (value, path) => {
  if (!(value instanceof Map)) differs(path, "a map", value);
  /** @type {Map<string, any>} */
  const out = new Map();
  for (const [key, stated] of value) {
    const known = CAVEATS.get(name(key, `${path}, a caveat's name`));
    out.set(key, known ? known.type(stated, `${path}.${key}`) : stated);
  }
  return out;
};
