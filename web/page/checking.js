/**
 * What an envelope is, under the keys that the reader trusts. The verdict is of the verifier's modules alone.
 *
 * @typedef {"verified"|"told"|"undecided"|"wrong"|"uncheckable"} State
 *   verified: signed by a key that the reader pinned; told: signed by the key that this gateway says is its own, and
 *   that is all that speaks for it; undecided: by a key that nobody named; wrong: it breaks a rule; uncheckable: this
 *   browser cannot look
 * @typedef {object} Checked
 * @property {State} state
 * @property {string} errorClass of SPEC.md section 19; empty where there is none
 * @property {string} message
 * @property {import("../envelope.js").Verified} [sealed] only where the signature held
 * @property {any} [claims] what the bytes say, where they can be read: to be shown, never to be believed unsealed
 * @property {"receipt"|"checkpoint"} [type] of the claims
 * @property {Uint8Array} [signer] the key that it names
 */

import { open, verifyEnvelope } from "../envelope.js";
import { MeshError, UncheckableError } from "../errors.js";
import { parseCheckpoint, parseReceipt } from "../values.js";

/** What each class says, in words (SPEC.md section 19). */
export const CLASSES = new Map([
  ["encoding", "These bytes are not the one encoding of a value."],
  ["schema", "This is not of the shape that the format has, or it contradicts itself."],
  ["structure", "This is no signed envelope at all."],
  ["canonical", "This is an envelope in another spelling than the one that was signed."],
  ["header", "The envelope's header says something that the format does not allow."],
  ["trust", "It names a key that you do not trust, or not for that time. Whether it is true cannot be decided."],
  ["signature", "The signature does not hold. It was changed after it was signed, or somebody else signed it."],
  ["payload", "What was signed is not what the envelope's header says."],
  ["sequence", "Receipts that should follow one another do not."],
  ["moving-reference", "It names a revision that may be something else tomorrow."],
  ["layers", "Its layers contradict each other, or the model that they are of."],
  ["fingerprint", "It claims a fingerprint that does not follow from it."],
  ["trust-file", "This list of keys cannot be followed."],
  ["container", "This blueprint's sections are not where it says."],
  ["body-hash", "This blueprint's body is not the one that its header names."],
  ["signer", "This blueprint is not signed, or not by both signatures."],
  ["chain", "Its certificates do not lead to a root."],
  ["untrusted-root", "Its certificates lead to a root that you did not name. Whether it is true cannot be decided."],
  ["expired", "One of its certificates is not valid now."],
  ["stale-revocations", "Nobody here knows what its root took back by now."],
  ["revoked", "Its root took it back, or a key, certificate or kernel of it."],
  ["kernel", "A kernel of it is not the one that it pins."],
  ["postcard", "This blueprint's body is not the one encoding of a value."],
  ["body", "This blueprint contradicts itself."],
  ["lineage", "A later revision of this blueprint was served before."],
]);

/** @type {Record<State, {mark: string, word: string}>} */
export const STATES = {
  verified: { mark: "✓", word: "verified" },
  told: { mark: "≈", word: "holds, not pinned" },
  undecided: { mark: "?", word: "cannot be decided" },
  wrong: { mark: "✗", word: "not genuine" },
  uncheckable: { mark: "?", word: "not checked" },
};

/**
 * @param {Uint8Array} bytes
 * @param {import("./trusted.js").Trusted} trusted
 * @param {import("../envelope.js").EnvelopeType} [type]
 * @returns {Promise<Checked>}
 */
export async function check(bytes, trusted, type) {
  try {
    const sealed = await verifyEnvelope(bytes, trusted.keys, type);
    const state = trusted.pinned ? "verified" : "told";
    return { state, errorClass: "", message: "", sealed, claims: sealed.value, type: sealed.type, signer: sealed.steward };
  } catch (error) {
    if (!(error instanceof MeshError)) throw error;
    const state = error instanceof UncheckableError ? "uncheckable" : error.errorClass === "trust" ? "undecided" : "wrong";
    return { state, errorClass: error.errorClass, message: error.message, ...claimed(bytes) };
  }
}

/** @param {Uint8Array} bytes @returns {Partial<Checked>} nothing where they cannot be read */
function claimed(bytes) {
  for (const [type, parse] of /** @type {const} */ ([["receipt", parseReceipt], ["checkpoint", parseCheckpoint]])) {
    try {
      const claims = parse(open(bytes).payload);
      return { claims, type, signer: claims.steward };
    } catch (error) {
      if (!(error instanceof MeshError)) throw error;
    }
  }
  return {};
}
