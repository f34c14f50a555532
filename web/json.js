/** JSON from strangers (RFC 8259): bounded, every key once, all of its text whole characters. Objects come as Maps. */

import { utf8 } from "./bytes.js";
import { EncodingError, SchemaError } from "./errors.js";
import { DOCUMENT_BYTES, NESTING } from "./limits.js";

/** A number with a fraction or an exponent: no field may hold one. One of too many digits is a number beyond every bound. */
export class OtherNumber {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

/** @type {Record<string, any>} */
const WORDS = { true: true, false: false, null: null };
const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const WORD = /true|false|null/y;
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;

class Reader {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
    this.at = 0;
  }

  /** @returns {never} */
  fault() {
    throw new EncodingError(`document: not JSON at character ${this.at}`);
  }

  /** @param {RegExp} form a sticky one @returns {RegExpExecArray|null} */
  match(form) {
    form.lastIndex = this.at;
    const found = form.exec(this.source);
    if (found) this.at = form.lastIndex;
    return found;
  }

  /** @param {string} mark @returns {boolean} whether it came next, space apart */
  took(mark) {
    this.match(SPACE);
    if (this.source[this.at] !== mark) return false;
    this.at++;
    return true;
  }

  /** @param {string} mark */
  expect(mark) {
    if (!this.took(mark)) this.fault();
  }

  /** @param {number} depth of objects and arrays around it @returns {any} */
  value(depth) {
    this.match(SPACE);
    const next = this.source[this.at];
    if (next === "{" || next === "[") {
      if (depth >= NESTING) throw new EncodingError(`document: nested deeper than ${NESTING}`);
      return next === "{" ? this.object(depth + 1) : this.array(depth + 1);
    }
    if (next === '"') return this.text();
    const word = this.match(WORD);
    if (word) return WORDS[word[0]];
    const [number, fraction, exponent] = this.match(NUMBER) ?? this.fault();
    if (fraction || exponent) return new OtherNumber(number);
    return Number(number) || 0; // -0 is 0
  }

  /** @returns {string} */
  text() {
    const [quoted] = this.match(TEXT) ?? this.fault();
    const text = JSON.parse(quoted);
    try {
      utf8(text);
    } catch (error) {
      if (error instanceof SchemaError) throw new EncodingError("document: half of a surrogate pair in a text");
      throw error;
    }
    return text;
  }

  /** @param {number} depth @returns {any[]} */
  array(depth) {
    this.expect("[");
    /** @type {any[]} */
    const items = [];
    if (this.took("]")) return items;
    do items.push(this.value(depth));
    while (this.took(","));
    this.expect("]");
    return items;
  }

  /** @param {number} depth @returns {Map<string, any>} */
  object(depth) {
    this.expect("{");
    const members = new Map();
    if (this.took("}")) return members;
    do {
      this.match(SPACE);
      const key = this.text();
      if (members.has(key)) throw new EncodingError(`document: key ${JSON.stringify(key.slice(0, 80))} is there twice`);
      this.expect(":");
      members.set(key, this.value(depth));
    } while (this.took(","));
    this.expect("}");
    return members;
  }
}

/** @param {Uint8Array} bytes @returns {any} @throws {EncodingError} */
export function parseJson(bytes) {
  if (bytes.length > DOCUMENT_BYTES) throw new EncodingError(`document: more than ${DOCUMENT_BYTES} bytes`);
  let source;
  try {
    source = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new EncodingError("document: not valid UTF-8");
  }
  const reader = new Reader(source);
  const value = reader.value(0);
  reader.match(SPACE);
  if (reader.at !== source.length) reader.fault();
  return value;
}
