/** Identities beside each other: on what they differ, whether they make a route, what certifies one (SPEC.md section 23). */

import { SchemaError } from "./errors.js";
import { AXES, layer, parseFingerprint, positiveLayer, said } from "./identity.js";
import { parseJson } from "./json.js";
import { UINT63_MAX } from "./limits.js";
import { closed, flag, list, must, textLike, tuple } from "./shape.js";

/** @typedef {import("./identity.js").Identity} Identity */
/** @typedef {{reason: string, field: string, index?: number}} Mismatch index counts the shards of a route from 0 */
/** @typedef {"unknown"|"dark"|"certified"} Status what a registry has of a recipe */

const LEAST_NODES = 2;
const MOST_NODES = 1024;

const OF_AXES = new Map([
  ["weight_quantization", "weight-quantization"],
  ["activation_dtype", "activation-recipe"],
  ["compute_dtype", "activation-recipe"],
  ["kv_dtype", "cache-layout"],
  ["kv_layout", "cache-layout"],
  ["tokenizer_revision", "tokenizer"],
  ["architecture_adapter", "architecture"],
  ["backend_id", "backend"],
  ["runtime_version", "runtime"],
  ["boundary_schema_version", "boundary-schema"],
  ["protocol_schema_version", "boundary-schema"],
]);

/** @typedef {[string, string, (it: Identity) => any]} Compared reason, field, and where an identity has it */

/** In the order in which they are named. @type {Compared[]} */
const COMPARED = [
  ["artifact", "source_digest", (it) => it.source],
  ["architecture", "architecture", (it) => it.artifact.architecture],
  ["architecture", "architecture_digest", (it) => it.artifact.architecture_digest],
  ["artifact", "layer_count", (it) => it.artifact.layer_count],
  ...AXES.map((axis) => /** @type {Compared} */ ([OF_AXES.get(axis), axis, (it) => it.recipe[axis]])),
];

/** @param {Identity} left @param {Identity} right @param {number} [index] @returns {Mismatch[]} none: they go together */
export const explain = (left, right, index) =>
  COMPARED.filter(([, , of]) => of(left) !== of(right)).map(([reason, field]) => ({ reason, field, index }));

/** @param {readonly (readonly number[])[]} ranges @param {number} layerCount @returns {boolean} all from 0, and no others */
function cover(ranges, layerCount) {
  let reached = 0;
  for (const [start, end] of [...ranges].sort((a, b) => a[0] - b[0])) {
    if (start > reached) return false;
    reached = Math.max(reached, end);
  }
  return reached === layerCount;
}

/**
 * @param {readonly Identity[]} shards
 * @param {Status|null} known what a registry has of the first one's recipe; null: none is asked
 * @param {boolean} certifying whether the route is there to certify it, and for nothing else
 * @returns {Mismatch[]} none: they may form a route
 */
export function checkRoute(shards, known, certifying) {
  const [head, ...others] = shards;
  if (!head) return [{ reason: "range", field: "shards" }];
  const found = others.flatMap((shard, i) => explain(head, shard, i + 1));
  const ranges = shards.map((shard) => [shard.shard_start, shard.shard_end]);
  if (!cover(ranges, head.artifact.layer_count)) found.push({ reason: "range", field: "layers" });
  const may = known === null || known === "certified" || (certifying && known === "dark");
  if (!may) found.push({ reason: "uncertified", field: "status" });
  return found;
}

const evidence = closed({
  route_session_id: said,
  route_epoch: layer,
  node_ids: list(said, 0, MOST_NODES),
  shard_ranges: list(
    (value, path) => {
      const range = tuple(layer, positiveLayer)(value, path);
      must(range[1] > range[0], path, "expected at least one layer");
      return range;
    },
    0,
    MOST_NODES,
  ),
  tokens_generated: layer,
  layer_count: positiveLayer,
  synthetic: flag,
  certified_at_ns: (value, path) => {
    const at = BigInt(textLike(/^(?:0|[1-9][0-9]{0,18})$/)(value, path));
    must(at <= UINT63_MAX, path, "expected at most 2^63-1");
    return at;
  },
});

/** @param {Uint8Array} bytes JSON @returns {any} of one forward */
export const parseEvidence = (bytes) => evidence(parseJson(bytes), "evidence");

/** @param {any} it as parseEvidence gives it @returns {string|null} why it certifies nothing; null: it certifies */
export function rejection(it) {
  const distinct = new Set(it.node_ids).size;
  if (it.synthetic) return "synthetic";
  if (distinct < LEAST_NODES) return "nodes";
  if (distinct !== it.node_ids.length) return "repeated-node";
  if (it.shard_ranges.length !== distinct) return "ranges";
  if (it.tokens_generated < 1) return "tokens";
  return cover(it.shard_ranges, it.layer_count) ? null : "coverage";
}

/** @param {Identity} local @param {any} shown what a peer shows, as parseJson gives it @returns {Mismatch[]} none: open */
export function checkHandshake({ digests }, shown) {
  let theirs;
  try {
    theirs = parseFingerprint(shown);
  } catch (error) {
    if (error instanceof SchemaError) return [{ reason: "fingerprint", field: "fingerprint" }];
    throw error;
  }
  const reasons = { model_artifact_digest: "artifact", runtime_recipe_digest: "fingerprint" };
  return Object.entries(reasons)
    .filter(([field]) => theirs[field] !== digests[/** @type {keyof typeof digests} */ (field)])
    .map(([field, reason]) => ({ reason, field }));
}
