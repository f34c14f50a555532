/** A replayer written down: what an engine says of itself and would make (conformance/PROTOCOL.md). */

import { decode } from "./cbor.js";
import { SETTINGS_BYTES } from "./limits.js";
import { closed, count, digest, flag, list, map, oneOf, packedIds, text, uint63 } from "./shape.js";

const made = closed({
  tokens: packedIds,
  finish: oneOf("stop", "length"),
  "?accepted": count,
  "?margins_u": list(uint63, 0, Infinity),
});

const failed = closed({ failed: flag });

/** @type {import("./shape.js").Type} */
const decoding = (value, path) => (value instanceof Map && value.has("failed") ? failed : made)(value, path);

const replayer = closed({
  backend_id: text,
  recipe_id: text,
  deterministic: flag,
  settings: map,
  a: decoding,
  b: decoding,
  "?weights_digest": digest,
  "?encodings": list(packedIds, 0, Infinity),
});

/** @param {Uint8Array} bytes @throws EncodingError, SchemaError */
export function parseReplayer(bytes) {
  return replayer(decode(bytes, { limit: 16 * SETTINGS_BYTES }), "replayer");
}
