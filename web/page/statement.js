/** One checked receipt or checkpoint: the verdict first, then what it says in words, what it proves, and the rest. */

import { CLASSES, STATES } from "./checking.js";
import { el, id, put } from "./dom.js";
import { stewardText } from "../ids.js";
import { prose, tables, write } from "./marks.js";
import { counted } from "./numbers.js";
import { checkpointDetails, details, proof, story } from "./words.js";

/** @param {import("./checking.js").Checked} checked @param {import("./trusted.js").Trusted} trusted @returns {HTMLElement} */
export function verdict(checked, trusted) {
  const { state, errorClass, message, signer } = checked;
  const box = el("div", { class: `verdict ${state}`, "data-state": state, "data-class": errorClass });
  const headline = {
    verified: "Verified: signed by a key that you pinned, and not changed since.",
    told: "The signature holds, under the key that this gateway says is its own.",
    undecided: "Whether this is genuine cannot be decided.",
    wrong: "Not genuine.",
    uncheckable: "This browser cannot check signatures here.",
  }[state];
  put(box, el("p", { class: "headline" }, el("span", { class: "mark", "aria-hidden": "true" }, STATES[state].mark), headline));
  if (state === "told") {
    put(box, el("p", {}, "The only reason to trust it is that this gateway said so. A gateway that lies can name any key. ",
      el("a", { href: "#/trust" }, "Pin the key"), " that its operator gave you, and this says whether it is the one."));
  }
  if (errorClass) {
    put(box, el("p", {}, "Error class ", el("code", {}, errorClass), `. ${CLASSES.get(errorClass) ?? ""}`), el("p", { class: "message" }, message));
  }
  if (state === "undecided") put(box, el("p", {}, trusted.pinned ? "You pinned other keys. " : "", el("a", { href: "#/trust" }, "Trust"), " says whose signatures count."));
  if (state === "uncheckable") put(box, el("p", {}, ...prose("It has Ed25519 only on pages that came over https or from this machine. `mesh verify` checks it anywhere.")));
  if (signer && state !== "wrong") put(box, el("p", {}, state === "undecided" ? "It names " : "Signed by ", id(stewardText(signer))));
  return box;
}

/**
 * @param {import("./checking.js").Checked} checked
 * @param {import("./trusted.js").Trusted} trusted
 * @returns {Node[]}
 */
export function statement(checked, trusted) {
  const { claims, sealed, state, type } = checked;
  const parts = /** @type {Node[]} */ ([verdict(checked, trusted)]);
  if (!claims) return parts;
  const heading = sealed ? "In words" : "What its bytes say, which nobody you trust vouches for";
  if (type === "checkpoint") {
    parts.push(el("section", { class: sealed ? "" : "unproven" }, el("h2", {}, `A checkpoint of ${counted(Number(claims.count), "receipt")}`), tables(checkpointDetails(claims))));
    return parts;
  }
  const { does, not } = proof(claims, state);
  const list = (/** @type {string} */ title, /** @type {string} */ kind, /** @type {string[]} */ items) =>
    items.length ? el("section", { class: `card ${kind}` }, el("h3", {}, title), el("ul", {}, ...items.map((it) => el("li", {}, ...prose(it))))) : null;
  parts.push(
    el(
      "section",
      { class: sealed ? "told" : "told unproven" },
      el("h2", {}, heading),
      el("div", { class: "story card" }, ...story(claims).map((line) => write(line, el("p")))),
      el("div", { class: "pair" }, list("What it proves", "does", does), list("What it does not prove", "not", not)),
      tables(details(claims, sealed?.id)),
    ),
  );
  return parts;
}

