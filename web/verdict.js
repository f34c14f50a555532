/** A verdict of replay as one line of text, as the vectors have it. */

/** @param {import("./replay.js").VerifiedReplay|import("./replay.js").Diverged|import("./replay.js").NotReplayable} it */
export function line(it) {
  const start = `${it.verdict} ${it.row}`;
  if (it.verdict === "not-replayable") return `${start} ${it.reason}${it.field ? ` field=${it.field}` : ""}`;
  if (it.verdict === "verified") {
    return `${start} ${it.how} prompt=${it.prompt} output=${it.output}${it.ending ? ` ending=${it.ending}` : ""}`;
  }
  if ("field" in it) return `${start} field=${it.field}`;
  return `${start} at=${it.at} served=${it.served ?? "none"} replayed=${it.replayed ?? "none"} margin_u=${it.marginU ?? "unknown"}`;
}
