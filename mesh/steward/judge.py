"""What an engine delivered, held against what it promised: pure functions from both to the outcome that is sealed."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.engine.protocol import Served
from mesh.errors import EngineError, EngineUnavailable, WeightsChanged
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock
from mesh.schema.record import Record
from mesh.schema.request import ServeRequest

# Why a decision is none, and an answer that was one.
_NO_DECISION, _DECISION_UNCALLED = "decision-missing", "decision-uncalled"


class Judgement(Record):
    """The outcome to seal, and the ids to commit to; None where there is nothing to commit to, as in a decision."""

    outcome: ServeOutcome
    committed: tuple[int, ...] | None


def judge(
    request: ServeRequest,
    prompt: Sequence[int],
    engine: EngineBlock,
    put: Sequence[int],
    served: Served | EngineError,
    *,
    cut_by: str | None,
    delivered: int | None,
    options: int = 0,
) -> Judgement:
    """`put` are the ids that went to the sink, in order; `served` what the engine returned or raised; `cut_by` who
    called it off, None where nobody did; `delivered` how many of the ids reached the client as text; `options` how many
    a typed decision is between, and `prompt` then the ids of the prompt and of every option."""
    decides = request.decision is not None
    if isinstance(served, EngineError):
        return _failed(prompt, put, delivered, _reason_of(served), decides)
    told = served.outcome
    promised = engine.weights_digest
    if (told.weights_digest is not None or promised is not None) and told.weights_digest != promised:
        return _refused("other-weights")
    if told.delivered_fidelity is not None and told.delivered_fidelity > engine.fidelity:
        return _refused("other-fidelity")
    fault = _broken_promise(request, prompt, put, served, cut_by is not None) or _no_decision(served, decides, options)
    if fault is not None:
        return _failed(prompt, put, delivered, fault, decides)
    counted_by = "gateway" if told.tokens_out is None else "both"
    outcome = told.changed(
        counted_by=counted_by,
        tokens_in=len(prompt),
        tokens_out=len(put),
        **({} if delivered is None else {"tokens_delivered": min(delivered, len(put))}),
        **({"reason": cut_by} if told.finish == "cancelled" else {}),
    )
    return Judgement(outcome, None if decides else tuple(put))


def _broken_promise(
    request: ServeRequest, prompt: Sequence[int], put: Sequence[int], served: Served, cancelled: bool
) -> str | None:
    told = served.outcome
    if tuple(put) != served.tokens:
        return "stream-differs"
    if told.tokens_out not in (None, len(put)) or told.tokens_in not in (None, len(prompt)):
        return "count-differs"
    match told.finish:
        case "stop":
            return None
        case "length":
            return None if len(put) == request.max_tokens else "length-differs"
        case "cancelled":
            return None if cancelled else "stopped-uncalled"
        case "engine-error":
            return told.reason or "engine-error"
        case _:
            return "finish-unknown"


def _no_decision(served: Served, decides: bool, options: int) -> str | None:
    """What keeps a serve from being the decision, or the answer, that was asked for."""
    decision, decided = served.outcome.decision, served.decided
    if not decides:
        return None if decision is None and decided is None else _DECISION_UNCALLED
    if served.tokens:
        return "stream-differs"
    match served.outcome.finish:
        case "cancelled":
            return None if decision is None else _NO_DECISION
        case "stop" if decision is not None and decided is not None and len(decided) == options and decision < options:
            return None
        case _:
            return _NO_DECISION


def _failed(prompt: Sequence[int], put: Sequence[int], delivered: int | None, reason: str, decides: bool) -> Judgement:
    """What was made before the failure was made, and may have been read: it is counted and committed to."""
    outcome = ServeOutcome.of(
        finish="engine-error",
        counted_by="gateway",
        tokens_in=len(prompt),
        tokens_out=len(put),
        tokens_delivered=None if delivered is None else min(delivered, len(put)),
        reason=reason,
    )
    return Judgement(outcome, None if decides else tuple(put))


def _refused(reason: str) -> Judgement:
    return Judgement(ServeOutcome.of(finish="refused", counted_by="none", reason=reason), None)


def _reason_of(error: EngineError) -> str:
    if isinstance(error, WeightsChanged):
        return "weights-changed"
    return "engine-unavailable" if isinstance(error, EngineUnavailable) else "engine-failed"
