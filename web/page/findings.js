/** What a disclosure turned out to be, point by point. */

import { unpackIds } from "../bytes.js";
import { compare } from "./disclosed.js";
import { el, shown } from "./dom.js";

const SHOWN_IDS = 400;

/** @param {any} receipt out of a checked envelope @param {any} disclosure @returns {HTMLElement} */
export function findings(receipt, disclosure) {
  const found = compare(receipt, disclosure);
  const good = found.every(({ holds }) => holds !== false);
  return el(
    "div",
    { class: "findings", "data-good": String(good) },
    el("p", { class: "headline" }, good ? "The disclosure is of this receipt." : "The disclosure does not fit this receipt."),
    el("ul", { class: "checks" }, ...found.map(({ holds, what }) => el("li", { class: holds === null ? "open" : holds ? "yes" : "no" }, el("span", { class: "mark", "aria-hidden": "true" }, holds === null ? "–" : holds ? "✓" : "✗"), what))),
    disclosure.prompt === undefined ? null : el("details", {}, el("summary", {}, "The prompt that was disclosed"), el("pre", {}, ...lines(disclosure.prompt))),
    disclosure.output === undefined ? null : el("details", {}, el("summary", {}, "The token ids of the output"), el("pre", {}, ids(disclosure.output))),
  );
}

/** @param {string} text @returns {string[]} its lines, with what cannot be seen named */
function lines(text) {
  return text.split("\n").map((line, i) => (i ? "\n" : "") + shown(line));
}

/** @param {Uint8Array} packed */
function ids(packed) {
  const all = unpackIds(packed);
  const more = all.length - SHOWN_IDS;
  return [...all.subarray(0, SHOWN_IDS)].join(" ") + (more > 0 ? ` … and ${more} more` : "");
}
