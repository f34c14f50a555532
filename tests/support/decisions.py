"""Decisions asked of an engine directly, and what their numbers should be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mesh.engine.gguf import GgufEngine
from mesh.engine.protocol import Served
from mesh.schema.request import ServeRequest
from tests.support.serves import ScoreSink, Sink, request_for, serve

Ids = Sequence[int]


def decision_request(prompt: Ids, options: Sequence[Ids], **sampling: object) -> ServeRequest:
    plain = request_for([*prompt, *(token for option in options for token in option)], 1, **sampling)
    return ServeRequest.from_map(plain.to_map() | {"decision": bytes(32)})


async def decide(engine: GgufEngine, prompt: Ids, options: Sequence[Ids], **sampling: object) -> Served:
    sink = Sink()
    served = await engine.decide(decision_request(prompt, options, **sampling), prompt, options, sink)
    assert sink.tokens == []
    return served


async def logprob(engine: GgufEngine, prompt: Ids, token: int) -> float:
    """Of one id, as an answer that is made to begin with it tells."""
    sink = ScoreSink(0)
    await serve(engine, prompt, 1, sink, logit_bias=[[token, 10**9]])
    assert sink.scores[0] is not None
    return sink.scores[0].chosen


async def known(engine: GgufEngine, prompt: Ids, option: Ids, *, ends: Sequence[int] = ()) -> float:
    """Of an option, one id after the other, and of any of `ends` after it."""
    total = 0.0
    for i, token in enumerate(option):
        total += await logprob(engine, [*prompt, *option[:i]], token)
    if ends:
        told = [await logprob(engine, [*prompt, *option], token) for token in ends]
        total += math.log(sum(map(math.exp, told)))
    return total
