"""One pass of the replayer's engine over an output that is known, where the engine can hold one against its own."""

from __future__ import annotations

from mesh.engine.protocol import CheckResult, ServingEngine, can_check
from mesh.errors import EngineError, Refused
from mesh.replay.claim import Claim


async def check(engine: ServingEngine, claim: Claim) -> CheckResult:
    """Hold the disclosed output, which opens the commitment, against what `engine` makes. Whatever keeps it from being
    decided, a failure too, is `undecided`: decoding decides then."""
    assert claim.output is not None
    if not can_check(engine):
        return _undecided("this engine checks no outputs")
    reason = engine.undecidable(claim.request) or engine.refusal(claim.request)
    if reason is not None:
        return _undecided(reason)
    try:
        await engine.ready()
        result = await engine.check(claim.request, claim.payload, claim.output, cut=claim.cut)
    except (EngineError, Refused) as e:
        return _undecided(str(e))
    fault = _broken_promise(claim, result)
    return result if fault is None else _undecided(f"{engine.backend_id}: {fault}")


def _broken_promise(claim: Claim, result: CheckResult) -> str | None:
    """What is wrong with an agreement, which alone decides anything."""
    if result.kind != "agreed":
        return None
    made = len(claim.output or ())
    if result.compared != made or result.differences:
        return f"its check agrees, and compared {result.compared} of {made} ids"
    if claim.cut:
        return None
    match result.finish:
        case "stop":
            return None
        case "length":
            return None if made == claim.request.max_tokens else f"its check says length after {made} ids"
        case _:
            return f"its check says that it ends as {result.finish}"


def _undecided(reason: str) -> CheckResult:
    return CheckResult("undecided", reason=reason)
