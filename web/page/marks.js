/** How a verdict looks, and lines of words as elements. */

import { STATES } from "./checking.js";
import { el, id, name, put } from "./dom.js";

/** @param {import("./checking.js").Checked} checked @returns {HTMLElement} a mark with its word, never colour alone */
export function badge({ state, errorClass }) {
  const { mark, word } = STATES[state];
  const told = errorClass ? `${word}: ${errorClass}` : word;
  return el("span", { class: `badge ${state}` }, el("span", { class: "mark", "aria-hidden": "true" }, mark), told);
}

/** Our own words, with commands and names of files between backticks. @param {string} text @returns {Node[]} */
export function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : document.createTextNode(part)));
}

/** @param {import("./words.js").Part[]} parts @param {Element} into */
export function write(parts, into) {
  for (const part of parts) {
    put(into, "id" in part ? id(part.id) : "name" in part ? name(part.name) : part.text);
  }
  return into;
}

/** @param {[string, import("./words.js").Row[]][]} groups @returns {HTMLElement} */
export function tables(groups) {
  return el(
    "div",
    { class: "facts" },
    ...groups.map(([title, rows]) =>
      el(
        "section",
        { class: "card" },
        el("h3", {}, title),
        el("dl", {}, ...rows.flatMap(([label, parts]) => [el("dt", {}, label), write(parts, el("dd"))])),
      ),
    ),
  );
}
