/**
 * Identities (SPEC.md section 23): which weights, executed how, by which host for which layers, and the two digests that
 * follow. Nobody may claim a fingerprint: it is derived here, always.
 */

import { toHex, utf8 } from "./bytes.js";
import { FingerprintError, LayerError, MovingReference, UncheckableError } from "./errors.js";
import { parseJson } from "./json.js";
import { closed, differs, integer, name, textLike } from "./shape.js";
import { spelled } from "./view.js";

export const AXES = Object.freeze([
  "weight_quantization",
  "activation_dtype",
  "compute_dtype",
  "kv_dtype",
  "kv_layout",
  "tokenizer_revision",
  "architecture_adapter",
  "backend_id",
  "runtime_version",
  "boundary_schema_version",
  "protocol_schema_version",
]);

const VERSIONS = new Set(["boundary_schema_version", "protocol_schema_version"]);
const MOVING = new Set(["main", "master", "head", "latest", "dev", "trunk"]);
/** What another system digests under these words, this one does too. */
const DOMAINS = { artifact: "meshnet.model-artifact.v1", recipe: "meshnet.runtime-recipe.v1" };

/** @typedef {{model_artifact_digest: string, runtime_recipe_digest: string}} Digests 64 hex digits each */
/** @typedef {{artifact: any, recipe: any, shard_start: number, shard_end: number, source: string, digests: Digests}} Identity */

/** @type {import("./shape.js").Type} */
export const said = (value, path) =>
  /^\p{White_Space}*$/u.test(name(value, path)) ? differs(path, "more than white space", JSON.stringify(value)) : value;

export const layer = integer(0, Number.MAX_SAFE_INTEGER);
export const positiveLayer = integer(1, Number.MAX_SAFE_INTEGER);
const sha256Hex = textLike(/^[0-9a-f]{64}$/);

/** JSON's null is absence here. @param {import("./shape.js").Type} type @returns {import("./shape.js").Type} */
const orNull = (type) => (value, path) => (value === null ? undefined : type(value, path));

const labels = { recipe_id: said, recipe_version: said, catalogue_version: said };

const fingerprint = closed({ model_artifact_digest: sha256Hex, runtime_recipe_digest: sha256Hex, ...labels });

const identity = closed({
  schema_version: integer(1, 1),
  artifact: closed({
    artifact_id: said,
    revision: said,
    content_digest: sha256Hex,
    architecture: said,
    architecture_digest: sha256Hex,
    layer_count: positiveLayer,
    "?derived_from": orNull(closed({ source_artifact_digest: sha256Hex, shard_start: layer, shard_end: positiveLayer })),
  }),
  recipe: closed({
    ...Object.fromEntries(AXES.map((axis) => [axis, VERSIONS.has(axis) ? positiveLayer : said])),
    ...labels,
  }),
  shard_start: layer,
  shard_end: positiveLayer,
  "?fingerprint": orNull(fingerprint),
});

/** @param {string} domain @param {Record<string, any>} body @returns {Promise<string>} 64 hex digits */
async function sha256(domain, body) {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new UncheckableError("sha-256: no WebCrypto here (a page needs https or localhost)");
  return toHex(new Uint8Array(await subtle.digest("SHA-256", new Uint8Array(utf8(spelled({ domain, body }))))));
}

/** @param {Record<string, any>} from @param {readonly string[]} names @returns {Record<string, any>} */
const only = (from, names) => Object.fromEntries(names.map((each) => [each, from[each]]));

/** @param {string} revision @param {string} path @throws {MovingReference} */
function checkPin(revision, path) {
  const plain = revision.trim().toLowerCase();
  if (MOVING.has(plain) || plain.startsWith("refs/")) {
    throw new MovingReference(`${path}: expected what names one thing for ever, got ${JSON.stringify(revision)}`);
  }
}

/** @param {boolean} holds @param {string} message @throws {LayerError} */
function layers(holds, message) {
  if (!holds) throw new LayerError(message);
}

/** @param {any} artifact @throws {LayerError} */
function checkCut({ derived_from: held, content_digest, layer_count }) {
  if (!held) return;
  layers(held.shard_end > held.shard_start, "artifact.derived_from: expected at least one layer, got none");
  layers(held.source_artifact_digest !== content_digest, "artifact.derived_from: expected another artifact, got itself");
  layers(held.shard_end <= layer_count, `artifact.derived_from.shard_end: expected at most ${layer_count}, got ${held.shard_end}`);
}

/** @param {any} value @throws {LayerError} */
function checkLayers({ artifact, shard_start: start, shard_end: end }) {
  checkCut(artifact);
  const { layer_count, derived_from: held } = artifact;
  layers(end > start, "shard_end: expected at least one layer, got none");
  layers(end <= layer_count, `shard_end: expected at most ${layer_count}, got ${end}`);
  layers(!held || (held.shard_start <= start && end <= held.shard_end), "layers: expected those that the cut holds, got others");
}

/**
 * @param {Uint8Array} bytes JSON
 * @returns {Promise<Identity>}
 * @throws {import("./errors.js").WrongError} the first step that does not hold
 */
export async function parseIdentity(bytes) {
  const value = identity(parseJson(bytes), "identity");
  const { artifact, recipe, shard_start, shard_end, fingerprint: declared } = value;
  checkPin(artifact.revision, "artifact.revision");
  checkPin(recipe.tokenizer_revision, "recipe.tokenizer_revision");
  checkLayers(value);
  const source = artifact.derived_from ? artifact.derived_from.source_artifact_digest : artifact.content_digest;
  const what = { source_digest: source, ...only(artifact, ["architecture", "architecture_digest", "layer_count"]) };
  const digests = Object.freeze({
    model_artifact_digest: await sha256(DOMAINS.artifact, what),
    runtime_recipe_digest: await sha256(DOMAINS.recipe, only(recipe, AXES)),
  });
  for (const [which, derived] of Object.entries(digests)) {
    if (declared && declared[which] !== derived) {
      throw new FingerprintError(`fingerprint.${which}: expected ${derived}, got ${declared[which]}`);
    }
  }
  return Object.freeze({ artifact, recipe, shard_start, shard_end, source, digests });
}

/** @param {Uint8Array} bytes JSON @returns {any} what a peer shows of itself, not looked at yet */
export const parsePeer = parseJson;

/** @param {any} shown JSON as parseJson gives it @returns {any} @throws {import("./errors.js").SchemaError} */
export const parseFingerprint = (shown) => fingerprint(shown, "fingerprint");
