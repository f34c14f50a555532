/**
 * A disclosure held against its receipt: what of it is what was sealed. As `decide` does it, without an engine.
 *
 * @typedef {{holds: boolean|null, what: string}} Finding null: it says nothing of that
 */

import { same } from "../bytes.js";
import { opens, payloadDigest, promptHashOfIds, promptHashOfText } from "../commitment.js";
import { contentId } from "../ids.js";
import { grouped } from "./numbers.js";

/**
 * @param {any} receipt
 * @param {any} disclosure as parseDisclosure gives it
 * @returns {Finding[]}
 */
export function compare(receipt, disclosure) {
  const { request, payload, output, prompt } = disclosure;
  const requestId = contentId("request", request);
  const ids = payload.length / 4;
  /** @type {Finding[]} */
  const found = [
    finding(same(disclosure.serve_id, receipt.serve_id), "It is of the same serve.", "It is of another serve."),
    finding(same(requestId, receipt.request_id), "The request is the one that was sealed.", "The request is another."),
    finding(ids === request.prompt_tokens && (receipt.outcome.tokens_in ?? ids) === ids,
      `The prompt has as many tokens as were sealed, ${grouped(ids)}.`, `The prompt has ${grouped(ids)} tokens, and others were sealed.`),
  ];
  if (prompt !== undefined) {
    const right = same(promptHashOfText(prompt, request.nonce), receipt.prompt_hash);
    found.push(finding(right, "The prompt's text is the one that was sealed.", "The prompt's text is another."));
  } else if (same(promptHashOfIds(payload, request.nonce), receipt.prompt_hash)) {
    found.push({ holds: true, what: "The prompt's token ids are the ones that were sealed." });
  } else {
    found.push({ holds: null, what: "The prompt's text is not disclosed, so that its ids cannot be held against it here." });
  }
  if (receipt.output_commitment === undefined) found.push({ holds: null, what: "The receipt commits to no output." });
  else if (output === undefined) found.push({ holds: null, what: "The output is not disclosed. A replay can still find it." });
  else {
    const right = opens(receipt.output_commitment, disclosure.opening, requestId, payloadDigest(payload), output);
    const count = output.length / 4;
    found.push(finding(right, `The ${grouped(count)} token ids of the output open the commitment: they are what was served.`,
      "The output does not open the commitment: it is not what was served, or the prompt or the opening is another."));
    if (right) {
      const claimed = receipt.outcome.tokens_out === count;
      found.push(finding(claimed, "Their number is the sealed one.", "Their number is not the sealed one: the receipt is false."));
    }
  }
  return found;
}

/** @param {boolean} holds @param {string} yes @param {string} no @returns {Finding} */
const finding = (holds, yes, no) => ({ holds, what: holds ? yes : no });
