/** The circuit that a blueprint states (SPEC.md section 25): nodes, edges, and what they are about. */

import { compare, utf8 } from "./bytes.js";
import { BodyError } from "./errors.js";
import { option, seq, struct, text, unsigned, words } from "./postcard.js";

const MAX_NODES = 2 ** 20;
const NAME = text(256);
const [U32, U64] = [unsigned(32), unsigned(64)];
const KINDS = [
  "input", "embedding", "norm", "linear", "rope", "rotate", "cache", "attention", "activation", "router", "experts",
  "add", "quantize", "head", "output",
];

export const CIRCUIT = struct({
  formats: seq(struct({ name: NAME, block: U32, bits: U32 }), 256),
  weights: seq(struct({ name: NAME, format: U32, shape: seq(U64, 8) }), 2 ** 17),
  blocks: seq(NAME, 2 ** 16),
  states: seq(struct({ name: NAME, format: U32, width: U64 }), MAX_NODES),
  nodes: seq(
    struct({ name: NAME, kind: words(...KINDS), format: U32, block: option(U32), weights: seq(U32, 64), state: option(U32) }),
    MAX_NODES,
  ),
  edges: seq(struct({ start: U32, end: U32, format: U32, width: U64 }), 2 ** 21),
});

/** @param {string} a @param {string} b @returns {number} the order of their UTF-8 bytes */
export const byBytes = (a, b) => compare(utf8(a), utf8(b));

/**
 * @param {string} what
 * @param {any[]} keys
 * @param {(a: any, b: any) => number} order
 * @throws {BodyError}
 */
export function ascending(what, keys, order) {
  for (let i = 1; i < keys.length; i++) {
    if (order(keys[i - 1], keys[i]) >= 0) throw new BodyError(`blueprint: ${what}[${i}] is not above the one before it`);
  }
}

/** @param {string} what @param {number} index @param {any[]} list @throws {BodyError} */
export function within(what, index, list) {
  if (index >= list.length) throw new BodyError(`blueprint: ${what} is ${index}, expected less than ${list.length}`);
}

/** @param {string} what @param {string[]} names @throws {BodyError} */
function once(what, names) {
  const seen = new Set(names);
  if (seen.size !== names.length) throw new BodyError(`circuit: a name twice among the ${what}`);
}

/** @param {any} circuit @throws {BodyError} where it contradicts itself */
export function checkCircuit({ formats, weights, blocks, states, nodes, edges }) {
  const names = (/** @type {any[]} */ list) => list.map(({ name }) => name);
  ascending("formats", names(formats), byBytes);
  ascending("weights", names(weights), byBytes);
  once("blocks", blocks);
  once("states", names(states));
  once("nodes", names(nodes));
  const used = { formats: new Set(), weights: new Set(), blocks: new Set(), states: new Set() };
  /** @param {keyof typeof used} list @param {any[]} of @param {number} index @param {string} what */
  const use = (list, of, index, what) => {
    within(what, index, of);
    used[list].add(index);
  };
  nodes.forEach((node, i) => {
    use("formats", formats, node.format, `nodes[${i}].format`);
    for (const weight of node.weights) use("weights", weights, weight, `nodes[${i}].weights`);
    if (node.block !== null) use("blocks", blocks, node.block, `nodes[${i}].block`);
    if (node.state !== null) use("states", states, node.state, `nodes[${i}].state`);
  });
  weights.forEach(({ format }, i) => use("formats", formats, format, `weights[${i}].format`));
  states.forEach(({ format }, i) => use("formats", formats, format, `states[${i}].format`));
  const reached = new Set();
  edges.forEach((edge, i) => {
    use("formats", formats, edge.format, `edges[${i}].format`);
    within(`edges[${i}].end`, edge.end, nodes);
    if (edge.start >= edge.end) throw new BodyError(`circuit: edges[${i}]: expected to go to a later node`);
    if (edge.format !== nodes[edge.start].format) throw new BodyError(`circuit: edges[${i}]: of another format than its start`);
    reached.add(edge.end);
  });
  ascending("edges", edges, (a, b) => a.end - b.end || a.start - b.start);
  nodes.forEach((node, i) => {
    if (reached.has(i) === (node.kind === "input")) throw new BodyError(`circuit: node ${i}: an input with an edge, or none without`);
  });
  for (const [list, of] of Object.entries({ formats, weights, blocks, states })) {
    if (used[/** @type {keyof typeof used} */ (list)].size !== of.length) throw new BodyError(`circuit: one of the ${list} is not used`);
  }
}
