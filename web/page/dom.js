/**
 * Elements, made of text alone: nothing that a server, a file or a name says is ever read as markup.
 *
 * @typedef {Node|string|number|null|undefined|false} Child
 */

const SVG = "http://www.w3.org/2000/svg";

/** What turns text around, joins it or cannot be seen: whole lines would look like something else. */
const TRICKS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\p{Cs}\u115f\u1160\u3164\uffa0]/gu;

/** @param {string} text from outside @returns {string} with a name in place of what cannot be seen */
export function shown(text) {
  return text.replace(TRICKS, (it) => `⟨U+${(it.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes `on` holds listeners; false, null and undefined leave one out
 * @param {Child[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  put(element, ...children);
}

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Record<string, any>} [attributes] @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/** @param {string} tag @param {Record<string, any>} [attributes] @param {...Child} children @returns {SVGElement} */
export function svg(tag, attributes = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  fill(element, attributes, children);
  return element;
}

/** @param {Element} parent @param {...Child} children */
export function put(parent, ...children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** @param {Element} parent @param {...Child} children that take the place of what is there */
export function set(parent, ...children) {
  parent.replaceChildren();
  put(parent, ...children);
}

/** A name from outside: apart from the text around it, whichever way it is written. @param {string} text */
export function name(text) {
  return el("bdi", { class: "name", title: shown(text) }, shown(text));
}

/** An id, all of it there to be copied, however little room there is. @param {string} text */
export function id(text) {
  return el("code", { class: "id" }, text);
}

/** An id by its beginning. @param {string} text @param {number} [length] */
export function brief(text, length = 15) {
  return el("code", { class: "id", title: text }, text.length > length ? `${text.slice(0, length)}…` : text);
}

/** Tell whoever cannot see it. @param {string} text */
export function say(text) {
  const said = document.getElementById("said");
  if (said) said.textContent = text;
}
