/**
 * A receipt in words: what it says, what it proves and what it does not. Nothing here looks at a document.
 *
 * @typedef {{text: string}|{id: string}|{name: string}} Part of a line: our words, an id, a name from outside
 * @typedef {[string, Part[]]} Row
 */

import { toHex } from "../bytes.js";
import { contentIdText, serveIdText, stewardText } from "../ids.js";
import { counted, duration, grouped, joules, perToken, utc } from "./numbers.js";

export const FINISHES = /** @type {const} */ ({
  stop: "the model came to its end or to a stop string",
  length: "max_tokens was reached",
  cancelled: "it was cut, because it was no longer wanted or its time was over",
  "engine-error": "the engine failed",
  interrupted: "the gateway died in mid-serve",
  refused: "what the engine delivered was refused",
});

export const BASES = /** @type {const} */ ({
  measured: "measured: alone on its meter",
  allocated: "allocated: a share of what was measured for several",
  modelled: "modelled: an estimate, not a measurement",
  unresolved: "unresolved: too short for the meter",
  absent: "absent: no figure",
});

const FIDELITY = ["unrated", "up to 4.99 bits per weight", "up to 8.99 bits per weight", "the published precision"];

const text = (/** @type {string} */ it) => ({ text: it });
const id = (/** @type {string} */ it) => ({ id: it });
const name = (/** @type {string} */ it) => ({ name: it });

/** @param {any} receipt @returns {bigint} nanoseconds that the serve took */
const took = ({ energy, started_ns, ended_ns }) =>
  energy.span_ns ?? (ended_ns > started_ns ? ended_ns - started_ns : 0n);

/** @param {any} receipt @returns {string|null} joules per output token; null where either is unknown */
export function joulesPerToken({ energy, outcome }) {
  return energy.uj === undefined || !outcome.tokens_out ? null : perToken(energy.uj, outcome.tokens_out);
}

/** The receipt in three sentences. @param {any} receipt @returns {Part[][]} */
export function story(receipt) {
  const { engine, outcome, energy } = receipt;
  const prompt = outcome.tokens_in === undefined ? "a prompt whose tokens nobody counted" : `a prompt of ${counted(outcome.tokens_in, "token")}`;
  const given = outcome.tokens_out === undefined ? "tokens that nobody counted" : `${counted(outcome.tokens_out, "token")} of at most ${grouped(receipt.max_tokens)}`;
  const did = outcome.decision === undefined ? `gave ${given}` : `chose option ${outcome.decision}, the first being 0`;
  const each = joulesPerToken(receipt);
  const cost =
    energy.uj === undefined
      ? `What it cost is not known (${energy.basis}: ${energy.reason}).`
      : `It cost ${joules(energy.uj)}${each === null ? "" : `, ${each} J per token of output`}. The figure is ${BASES[/** @type {keyof typeof BASES} */ (energy.basis)]}.`;
  return [
    [text("At "), text(utc(receipt.started_ns)), text(", "), name(engine.recipe_id), text(` took ${prompt} and ${did}, in ${duration(took(receipt))}.`)],
    [text(`It ended because ${FINISHES[/** @type {keyof typeof FINISHES} */ (outcome.finish)]}${outcome.reason ? ` (${outcome.reason})` : ""}.`)],
    [text(cost)],
  ];
}

/** @param {any} receipt @param {Uint8Array|undefined} receiptId @returns {[string, Row[]][]} groups of rows */
export function details(receipt, receiptId) {
  const { engine, outcome } = receipt;
  const digest = (/** @type {string} */ label, /** @type {Uint8Array|undefined} */ it) =>
    /** @type {Row[]} */ (it === undefined ? [] : [[label, [id(contentIdText(it))]]]);
  return [
    ["Model", [
      ["name", [name(engine.recipe_id)]],
      ["weights", [engine.weights_digest ? id(contentIdText(engine.weights_digest)) : text("not named")]],
      ["fidelity", [text(fidelity(engine.fidelity, outcome.delivered_fidelity))]],
      .../** @type {Row[]} */ (outcome.precision === undefined ? [] : [["precision", [id(outcome.precision)]]]),
      ["engine", [id(engine.backend_id)]],
      ["again", [text(engine.deterministic ? "claims that a replay gives the same" : "makes no claim that a replay gives the same")]],
      ["settings", [id(contentIdText(engine.settings_digest))]],
      ...digest("template", engine.template_digest),
      ...digest("blueprint", engine.blueprint_id),
      ...digest("artifact", engine.model_artifact_digest),
      ...digest("runtime", engine.runtime_recipe_digest),
      ...digest("route over several hosts", engine.route_digest),
      ...digest("route", engine.route_digest),
      ...digest("launch", engine.launch_digest),
    ]],
    ["Tokens", tokenRows(receipt)],
    ["Energy", energyRows(receipt)],
    ["Place", [
      ["receipt", [receiptId ? id(contentIdText(receiptId)) : text("none: it is not signed as it stands")]],
      ["steward", [id(stewardText(receipt.steward))]],
      ["number", [text(String(receipt.seq))]],
      ["after", [receipt.prev ? id(contentIdText(receipt.prev)) : text("none: the steward's first")]],
      ["serve", [id(serveIdText(receipt.serve_id))]],
      ["request", [id(contentIdText(receipt.request_id))]],
      ["prompt hash", [id(contentIdText(receipt.prompt_hash))]],
      ["began", [text(utc(receipt.started_ns))]],
      ["ended", [text(utc(receipt.ended_ns))]],
      ...digest("grant", receipt.grant_id),
      ["output", [receipt.output_commitment ? id(toHex(receipt.output_commitment)) : text("not committed to")]],
    ]],
  ];
}

/** @param {number} rated @param {number|undefined} delivered */
function fidelity(rated, delivered) {
  const told = (/** @type {number} */ level) => `F${level}, ${FIDELITY[level]}`;
  return delivered === undefined || delivered === rated ? told(rated) : `${told(delivered)}; rated ${told(rated)}`;
}

/** @param {any} receipt @returns {Row[]} the counts that there are */
function tokenRows({ outcome, max_tokens }) {
  /** @type {[string, number|undefined][]} */
  const counts = [
    ["in", outcome.tokens_in],
    [`out, at most ${grouped(max_tokens)}`, outcome.tokens_out],
    ["delivered", outcome.tokens_delivered],
    ["accepted", outcome.tokens_accepted],
    ["from the cache", outcome.cache_hit_tokens],
    ["speculated", outcome.spec_proposed || undefined],
    ["of those accepted", outcome.spec_proposed ? outcome.spec_accepted : undefined],
  ];
  const rows = counts.filter(([, count]) => count !== undefined);
  /** @type {Row[]} */
  const decision = outcome.decision === undefined ? [] : [["decision", [text(`option ${outcome.decision}`)]]];
  return [
    ...rows.map(([label, count]) => /** @type {Row} */ ([label, [text(grouped(/** @type {number} */ (count)))]])),
    ...decision,
    ["counted by", [text(outcome.counted_by === "none" ? "nobody" : outcome.counted_by)]],
    ["finish", [text(outcome.reason ? `${outcome.finish} (${outcome.reason})` : outcome.finish)]],
  ];
}

/** @param {any} receipt @returns {Row[]} */
function energyRows(receipt) {
  const { energy } = receipt;
  /** @type {Row[]} */
  const rows = [["basis", [text(BASES[/** @type {keyof typeof BASES} */ (energy.basis)])]]];
  if (energy.uj === undefined) return [...rows, ["because", [text(energy.reason)]]];
  rows.unshift(["energy", [text(joules(energy.uj))]]);
  const each = joulesPerToken(receipt);
  if (each !== null) rows.push(["per token out", [text(`${each} J`)]]);
  for (const { domain, method, uj } of energy.sources) {
    rows.push(["from", [text(`${joules(uj)} of `), name(domain), text(" by "), name(method)]]);
  }
  if (energy.rule !== undefined) {
    rows.push(["shared by", [text(`${energy.rule}, with at most ${grouped(energy.peak_sharers)} at once, of ${joules(energy.window_uj)}`)]]);
  }
  rows.push(["over", [text(duration(energy.span_ns))]]);
  if (energy.covered_ns !== undefined) rows.push(["observed", [text(duration(energy.covered_ns))]]);
  return rows;
}

/**
 * @param {any} receipt
 * @param {import("./checking.js").State} state
 * @returns {{does: string[], not: string[]}} empty `does` unless the signature held
 */
export function proof(receipt, state) {
  const { engine, outcome, energy, output_commitment } = receipt;
  const held = state === "verified" || state === "told";
  const does = !held ? [] : [
    state === "verified"
      ? "That the holder of a key that you pinned signed this, and that not one byte was changed since."
      : "That whoever holds the key below signed this, and that not one byte was changed since.",
    `That this is number ${receipt.seq} of that steward's receipts, which are numbered without gaps: one that is withheld shows.`,
    ...(output_commitment
      ? ["That the output was fixed when it was signed: with the serve's disclosure anyone can tell whether an answer is that one."]
      : []),
    ...(engine.deterministic && output_commitment
      ? ["That the steward claims the serve can be repeated bit for bit, so that a replay on the same weights can convict it."]
      : []),
  ];
  if (!held) return { does, not: ["Anything. What follows is what the bytes say, and nobody that you trust vouches for it."] };
  return {
    does,
    not: [
      ...(state === "told" ? ["Whose key it is. This page knows it only from this gateway: pin the key that its operator gave you by another way."] : []),
      engine.weights_digest
        ? "That the weights it names are the ones that ran. `mesh replay` runs the serve again and finds out."
        : "Which weights ran: it names none.",
      ...(energy.uj === undefined
        ? ["What the serve cost: nothing was measured, which is not the same as 0."]
        : energy.basis === "modelled"
          ? ["What the serve cost: its figure is an estimate that a model made, and says so."]
          : ["That the meter told the truth."]),
      ...(output_commitment ? [] : [outcome.decision === undefined ? "What was answered: it commits to no output." : "What the options were: it says the number of the one that was chosen."]),
      "Who asked, and what was asked: prompt and answer are not in it.",
    ],
  };
}

/** @param {any} checkpoint @returns {[string, Row[]][]} */
export function checkpointDetails(checkpoint) {
  return [
    ["Checkpoint", [
      ["steward", [id(stewardText(checkpoint.steward))]],
      ["made", [text(utc(checkpoint.at_ns))]],
      ["receipts", [text(grouped(checkpoint.count))]],
      ["the last", [checkpoint.head ? id(contentIdText(checkpoint.head)) : text("none yet")]],
      ...checkpoint.domains.map((/** @type {any} */ it) => /** @type {Row} */ (["meter", [
        name(it.domain),
        text(`: ${joules(it.last_uj - it.first_uj)} counted, of it ${joules(it.idle_uj)} idle, ${joules(it.unattributed_uj)} unattributed, ${joules(it.open_uj)} in running serves`),
      ]])),
    ]],
  ];
}
