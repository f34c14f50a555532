"""The decision table of SPEC.md, section Replay: from a receipt, a disclosure and an engine to a verdict.

The rows are in the order of the table, and the first that holds decides. Before row 8 nothing runs. `Diverged` always
rests on ids that open the commitment, disclosed or made again, so a disclosure that was changed on the way can cost a
verdict but never make an honest serve a false one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Literal

from mesh.engine.protocol import ServingEngine, TextEngine, runs_cold
from mesh.errors import EngineError, MeshError
from mesh.replay.checking import check
from mesh.replay.claim import Claim, Fault
from mesh.replay.decoding import decode
from mesh.replay.facts import EngineFacts, first_other, recipe_detail, settings_detail
from mesh.replay.verdict import Prompt, Verdict, field_diverged, not_replayable, output_diverged, verified
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.outcome import Finish
from mesh.schema.receipt import Receipt

_REPLAYED_FINISHES = ("stop", "length", "cancelled")
_REFERENCE = "reference/"
_FIRST_RUN = 8  # the row from which on the engine has run

By = Literal["auto", "decode"]


async def replay(
    envelope: bytes,
    disclosure: Disclosure | None,
    engine: ServingEngine,
    trust: Collection[bytes],
    *,
    by: By = "auto",
) -> Verdict:
    """Re-execute a sealed serve on `engine`, which must serve nobody else meanwhile. `trust` holds stewards' 32-byte
    keys. With `by` decode the output is made again even where one pass over the disclosed one would decide (row 8).

    Raises (row 0) the EnvelopeError of a bad envelope or UntrustedSteward, and SchemaError for a disclosure that is
    none. An engine's failure is a verdict, not an error.
    """
    verdict = await _verdict(envelope, disclosure, engine, trust, by)
    if runs_cold(engine) and verdict.kind != "not-replayable" and verdict.row >= _FIRST_RUN:
        return replace(verdict, cache="cold")
    return verdict


async def _verdict(
    envelope: bytes, disclosure: Disclosure | None, engine: ServingEngine, trust: Collection[bytes], by: By
) -> Verdict:
    receipt: Receipt = verify(envelope, RECEIPT_TYPE, trust).value  # row 0
    claim = None if disclosure is None else Claim.of(receipt, disclosure)

    if claim is not None and (other := claim.other_request()) is not None:
        return not_replayable(1, "other-request", field=other.field, detail=other.detail)
    if receipt.outcome.finish not in _REPLAYED_FINISHES:
        return not_replayable(2, "incomplete-serve", field="finish", detail=receipt.outcome.finish)
    if receipt.output_commitment is None:
        decided = receipt.outcome.decision is not None
        detail = "a typed decision commits to no output: nothing was made" if decided else None
        return not_replayable(3, "no-commitment", detail=detail)
    if claim is None:
        return not_replayable(4, "no-opening")
    if claim.opened and claim.output is not None and (fault := claim.contradiction(claim.output)) is not None:
        return field_diverged(5, fault.field, fault.detail)
    if (verdict := _row_6(claim, engine)) is not None:
        return verdict
    if not receipt.engine.deterministic:
        return not_replayable(7, "not-claimed")
    if not engine.deterministic(claim.request):
        return not_replayable(7, "engine-samples")
    if by == "auto" and claim.opened:
        checked = await check(engine, claim)
        if checked.kind == "agreed" and _other_ending(receipt, checked.finish, checked.accepted) is None:
            prompt = await _prompt(claim, engine)
            return verified(8, "prefill", prompt=prompt, output=claim.output_says(), cut=claim.cut)

    # A cancelled serve is cut at its last committed id; `tokens_out` is their number, or row 5 has said so.
    length = receipt.outcome.tokens_out if claim.cut else None
    try:
        a = await decode(engine, claim.request, claim.payload, length=length)
    except EngineError as e:
        return not_replayable(9, "engine-failed", detail=str(e))
    a_opens = claim.opens(a.tokens)
    if not a_opens and not claim.opened:
        return not_replayable(9, "unattributed", detail=_unattributed(claim))
    untrue = (claim.contradiction(a.tokens) or _other_ending(receipt, a.finish, a.accepted)) if a_opens else None
    if a_opens and untrue is None:
        prompt = await _prompt(claim, engine)
        return verified(10, "decode", prompt=prompt, output=claim.output_says(), cut=claim.cut)
    try:
        b = await decode(engine, claim.request, claim.payload, length=length)
    except EngineError as e:
        return not_replayable(11, "engine-failed", detail=str(e))
    if a != b:
        return not_replayable(11, "unstable", detail="two runs of this engine differ from each other")
    if untrue is not None:
        return field_diverged(12, untrue.field, untrue.detail)
    if receipt.engine.weights_digest is None and not engine.backend_id.startswith(_REFERENCE):
        # Row 6 has seen that the engine names none either: nobody can say that both ran the same model.
        return not_replayable(13, "unattributed", field="weights_digest", detail="neither side names its weights")
    served = claim.output or ()  # opened, since A does not open
    at = _first_difference(served, a.tokens)
    margin = a.margin(at)
    if margin == 0:
        return not_replayable(14, "tie", detail=f"the best two ids are equal at {at}")
    return output_diverged(15, first_difference=at, served=_at(served, at), replayed=_at(a.tokens, at), margin=margin)


def _row_6(claim: Claim, engine: ServingEngine) -> Verdict | None:
    other = first_other(EngineFacts.of_block(claim.receipt.engine), EngineFacts.of_engine(engine))
    if other is None:
        return None
    detail, digest = other.detail, claim.receipt.engine.settings_digest
    if other.reason == "other-settings":
        detail = settings_detail(digest, claim.disclosure.settings, engine.settings) or detail
    elif other.field == "runtime_recipe_digest":
        detail = recipe_detail(digest, claim.disclosure.settings, engine.settings) or detail
    return not_replayable(6, other.reason, field=other.field, detail=detail)


def _other_ending(receipt: Receipt, finish: Finish | None, accepted: int | None) -> Fault | None:
    """What the replayer's engine says otherwise about how the same ids end. Cut runs say nothing."""
    outcome = receipt.outcome
    if finish is not None and finish != outcome.finish:
        return Fault("finish", f"the receipt says {outcome.finish}, the re-run {finish}")
    if None not in (accepted, outcome.tokens_accepted) and accepted != outcome.tokens_accepted:
        return Fault("tokens_accepted", f"the receipt says {outcome.tokens_accepted}, the re-run {accepted}")
    return None


async def _prompt(claim: Claim, engine: ServingEngine) -> Prompt:
    """Row 1 has held a given prompt's text against its hash. Whether the payload is that text is for the engine to
    say, if it owns the vocabulary: a steward may hand an engine other ids than the client's words."""
    text = claim.disclosure.prompt
    if text is None:
        return "checked" if claim.payload_is_prompt_hash() else "unchecked"
    if not isinstance(engine, TextEngine):
        return "checked"
    for special in (True, False):  # a rendered chat, a plain completion; the receipt does not say which
        try:
            if tuple(await engine.encode(text, special=special)) == claim.payload:
                return "checked"
        except MeshError:
            return "unchecked"
    return "unchecked"


def _unattributed(claim: Claim) -> str:
    if claim.output is None:
        return "the re-run does not open the commitment, and no output was disclosed"
    return "neither the re-run nor the disclosed output opens the commitment"


def _first_difference(served: Sequence[int], again: Sequence[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip_longest(served, again)) if a != b)


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
