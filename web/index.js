/** The public face: verify mesh/1 receipts, in a browser or on Node, without a build step. */

export * from "./errors.js";
export { decode, encode } from "./cbor.js";
export { hash, keyedHash, deriveKey } from "./blake3.js";
export { fromHex, packIds, toHex, unpackIds } from "./bytes.js";
export {
  contentId,
  contentIdText,
  parseContentId,
  parseServeId,
  parseSteward,
  serveIdText,
  stewardText,
} from "./ids.js";
export {
  parseCheckpoint,
  parseDisclosure,
  parseEnergy,
  parseLaunch,
  parseOutcome,
  parseReceipt,
  parseRequest,
  parseSettings,
  parseWeights,
} from "./values.js";
export { commitment, decisionDigest, opening, opens, payloadDigest, promptHashOfIds, promptHashOfText } from "./commitment.js";
export { bare, verifyEnvelope } from "./envelope.js";
export { millionths } from "./decimal.js";
export { Trust } from "./trust.js";
export { checkSequence } from "./sequence.js";
export { decide } from "./replay.js";
export { parseReplayer } from "./replayer.js";
export { draw } from "./draw.js";
export { referenceCache, referenceTokens } from "./reference.js";
export { grantText, parseGrantText, verifyGrant } from "./grant.js";
export { decideGrant, parseFrame, parseRevoked } from "./decision.js";
export { parseIdentity, parsePeer } from "./identity.js";
export { checkHandshake, checkRoute, explain, parseEvidence, rejection } from "./route.js";
export { checkLineage, readBlueprint, verifyBlueprint } from "./blueprint.js";
export { sealedView, settingsView, spelled, view } from "./view.js";
