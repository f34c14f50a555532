"""Between engine and sink: what passes here is what is counted and committed to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mesh.engine.protocol import Decider, Scores, Served, ServingEngine, put_all, scores_wanted, taken_whole
from mesh.errors import EngineError, EngineFailed
from mesh.schema.limits import MAX_TOKEN_ID
from mesh.schema.request import ServeRequest
from mesh.steward.serves import Delivery

log = logging.getLogger(__name__)


class Recorder:
    """Wraps one serve's sink. `put_ids` are the ids that went through; after `closed` nothing does."""

    def __init__(self, sink: Delivery, max_tokens: int) -> None:
        self._sink = sink
        self._max_tokens = max_tokens
        self.cancelled = sink.cancelled
        self.scores_wanted = scores_wanted(sink)
        self.taken_whole = taken_whole(sink)
        self.put_ids: list[int] = []
        self.closed = False

    def put_all(self, tokens: Sequence[int]) -> None:
        """`put` of each. Tokens that it would not take are left to it, so that those before them count."""
        if self.closed:
            return
        fit = len(self.put_ids) + len(tokens) <= self._max_tokens
        if not fit or min(tokens) < 0 or max(tokens) > MAX_TOKEN_ID:
            for token in tokens:
                self.put(token)
            return
        self.put_ids += tokens
        put_all(self._sink, tokens)

    def put(self, token: int, scores: Scores | None = None) -> None:
        if self.closed:
            return
        if not 0 <= token <= MAX_TOKEN_ID:
            raise EngineFailed(f"engine gave token id {token}, outside 0..2^32-1")
        if len(self.put_ids) >= self._max_tokens:
            raise EngineFailed(f"engine gave more than max_tokens {self._max_tokens} tokens")
        self.put_ids.append(token)
        if scores is None:
            self._sink.put(token)
        else:
            self._sink.put(token, scores)


async def run(
    engine: ServingEngine,
    request: ServeRequest,
    prompt: Sequence[int],
    recorder: Recorder,
    options: Sequence[Sequence[int]] = (),
) -> Served | EngineError:
    """What the engine made of it: a decision between `options`, where there are some."""
    try:
        if not options:
            return await engine.serve(request, prompt, recorder)
        if not isinstance(engine, Decider):
            raise EngineFailed(f"engine {engine.backend_id}: makes no typed decisions")
        return await engine.decide(request, prompt, options, recorder)
    except EngineError as e:
        return e
    except Exception as e:  # noqa: BLE001  whatever an engine does, a serve that began has a receipt
        # the type alone: a message may quote what was said
        log.error("engine %s failed in a way that it does not declare: %s", engine.backend_id, type(e).__name__)
        return EngineFailed(f"engine failed: {type(e).__name__}")
