"""Receipts and verdicts in words, for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mesh.cli.console import counted
from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.receipt import EngineBlock, Receipt

if TYPE_CHECKING:
    from mesh.replay.verdict import Verdict
    from mesh.schema.checkpoint import Checkpoint
    from mesh.schema.energy import Energy
    from mesh.schema.envelope import Sealed
    from mesh.schema.outcome import ServeOutcome

NS_PER_S = 1_000_000_000
UJ_PER_J = 1_000_000

_FIDELITY = (
    "unrated",
    "up to 4.99 bits per weight",
    "up to 8.99 bits per weight",
    "the published precision",
)
_FINISH = {
    "stop": "the model came to its end or to a stop string",
    "length": "max_tokens was reached",
    "cancelled": "cut, because the client no longer wanted it",
    "engine-error": "the engine failed",
    "interrupted": "the gateway died in mid-serve",
    "refused": "what the engine delivered was refused",
}
_BASIS = {
    "measured": "alone on its meter",
    "allocated": "a share of what served several",
    "modelled": "an estimate, not a measurement",
    "unresolved": "too short for the meter",
    "absent": "no figure",
}


def sealed_words(sealed: Sealed) -> str:
    """A checked receipt or checkpoint as lines of `label  text`."""
    if isinstance(sealed.value, Receipt):
        return receipt_words(sealed.value, sealed.id)
    return checkpoint_words(sealed.value, sealed.id)


def sealed_line(sealed: Sealed) -> str:
    """The same in one line."""
    value = sealed.value
    if not isinstance(value, Receipt):
        return f"checkpoint of {counted(value.count, 'receipt')}"
    out = value.outcome.tokens_out
    tokens = "tokens not counted" if out is None else f"{out} tokens out"
    figure = "no energy figure" if value.energy.uj is None else f"{joules(value.energy.uj)} {value.energy.basis}"
    return f"seq {value.seq}, {sealed.id.text}, {value.engine.recipe_id}, {value.outcome.finish}, {tokens}, {figure}"


def receipt_words(receipt: Receipt, receipt_id: ContentId) -> str:
    """A receipt as lines of `label  text`."""
    rows = [
        ("receipt", receipt_id.text),
        ("steward", steward_text(receipt.steward)),
        ("place", _place(receipt.seq, receipt.prev)),
        ("serve", f"{serve_id_text(receipt.serve_id)}, {utc(receipt.started_ns)}, {_took(receipt)}"),
        ("request", ContentId(receipt.request_id).text),
        *_engine_rows(receipt.engine),
        ("tokens", tokens_words(receipt.outcome, receipt.max_tokens)),
        ("ended", finish_words(receipt.outcome)),
        ("energy", energy_words(receipt.energy, receipt.outcome.tokens_out)),
    ]
    if receipt.grant_id is not None:
        rows.append(("grant", ContentId(receipt.grant_id).text))
    if receipt.output_commitment is None:
        rows.append(("output", "not committed to"))
    else:
        rows.append(("output", f"committed to, salted: {receipt.output_commitment.hex()}"))
    return table(rows)


def checkpoint_words(checkpoint: Checkpoint, checkpoint_id: ContentId) -> str:
    head = "none" if checkpoint.head is None else ContentId(checkpoint.head).text
    rows = [
        ("checkpoint", checkpoint_id.text),
        ("steward", steward_text(checkpoint.steward)),
        ("made", utc(checkpoint.at_ns)),
        ("receipts", f"{checkpoint.count}, the last {head}"),
    ]
    for totals in checkpoint.domains:
        counted = joules(totals.last_uj - totals.first_uj)
        rows.append(
            (
                "meter",
                f"{totals.domain}: {counted} counted, of it {joules(totals.idle_uj)} idle, "
                f"{joules(totals.unattributed_uj)} unattributed, {joules(totals.open_uj)} in running serves",
            )
        )
    return table(rows)


def verdict_words(verdict: Verdict) -> str:
    """A verdict in one line."""
    detail = f" ({verdict.detail})" if verdict.detail else ""
    match verdict.kind:
        case "verified":
            ending = ", ending: cut, not judged" if verdict.ending == "cut" else ""
            return f"Verified by {verdict.method}, prompt: {verdict.prompt}, output: {verdict.output}{ending}"
        case "diverged" if verdict.first_difference is None:
            return f"Diverged: {verdict.field} is not true{detail}"
        case "diverged":
            margin = "unknown" if verdict.margin is None else f"{verdict.margin:.6f}"
            return (
                f"Diverged at output token {verdict.first_difference}: served {_id(verdict.served)}, "
                f"replayed {_id(verdict.replayed)}, margin {margin}"
            )
        case "not-replayable":
            return f"NotReplayable({verdict.reason}){detail}"


def _id(token: int | None) -> str:
    return "the end" if token is None else f"id {token}"


def table(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def tokens_words(outcome: ServeOutcome, max_tokens: int) -> str:
    speculated = bool(outcome.spec_proposed)
    counts = (
        ("in", outcome.tokens_in),
        (f"out of at most {max_tokens}", outcome.tokens_out),
        ("delivered", outcome.tokens_delivered),
        ("accepted", outcome.tokens_accepted),
        ("from the cache", outcome.cache_hit_tokens),
        ("proposed by speculation", outcome.spec_proposed if speculated else None),
        ("of those accepted", outcome.spec_accepted if speculated else None),
    )
    told = ", ".join(f"{count} {what}" for what, count in counts if count is not None)
    return f"{told} (counted by {outcome.counted_by})" if told else "not counted"


def finish_words(outcome: ServeOutcome) -> str:
    reason = f" ({outcome.reason})" if outcome.reason else ""
    if outcome.decision is not None:
        return f"{outcome.finish}: a decision for option {outcome.decision}, counted from 0{reason}"
    return f"{outcome.finish}: {_FINISH[outcome.finish]}{reason}"


def energy_words(energy: Energy, tokens_out: int | None) -> str:
    """The figure with its basis and where it comes from, and joules per output token where both are known."""
    basis = f"{energy.basis} ({_BASIS[energy.basis]})"
    if energy.uj is None:
        return f"{basis}: {energy.reason}"
    parts = [f"{joules(energy.uj)} {basis}"]
    if tokens_out:
        parts.append(f"{per_token(energy.uj, tokens_out)} J per token")
    parts.extend(f"{source.domain} by {source.method}" for source in energy.sources)
    if energy.rule is not None:
        parts.append(f"shared by {energy.rule}, at most {energy.peak_sharers} at once")
    return ", ".join(parts)


def joules(uj: int) -> str:
    """Microjoules as joules, exactly."""
    whole, rest = divmod(uj, UJ_PER_J)
    return f"{whole}.{rest:06d} J"


def per_token(uj: int, tokens_out: int) -> str:
    """Joules per output token, rounded to the microjoule, as a decimal."""
    whole, rest = divmod((2 * uj + tokens_out) // (2 * tokens_out), UJ_PER_J)
    return f"{whole}.{rest:06d}"


def seconds(ns: int) -> str:
    return f"{ns / NS_PER_S:.3f} s"


def utc(ns: int) -> str:
    """Unix nanoseconds as a date and time in UTC, to the second."""
    return f"{datetime.fromtimestamp(ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _place(seq: int, prev: bytes | None) -> str:
    return "seq 0, the steward's first" if prev is None else f"seq {seq}, after {ContentId(prev).text}"


def _took(receipt: Receipt) -> str:
    span = receipt.energy.span_ns
    return seconds(receipt.ended_ns - receipt.started_ns if span is None else span)


def _engine_rows(engine: EngineBlock) -> list[tuple[str, str]]:
    weights = "not named" if engine.weights_digest is None else ContentId(engine.weights_digest).text
    claim = "claims to give the same again" if engine.deterministic else "makes no claim to give the same again"
    under = [] if engine.blueprint_id is None else [("blueprint", f"sha256:{engine.blueprint_id.hex()}")]
    return [
        ("model", f"{engine.recipe_id}, F{engine.fidelity} ({_FIDELITY[engine.fidelity]})"),
        ("weights", weights),
        ("engine", f"{engine.backend_id}, {claim}"),
        ("settings", ContentId(engine.settings_digest).text),
        *under,
    ]
