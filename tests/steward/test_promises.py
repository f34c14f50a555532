"""Engines that break what they promised, and how that is sealed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import Served
from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineFailed
from mesh.schema.ids import ContentId
from mesh.steward.steward import SealedServe
from tests.steward.serving import in_ledger, serve
from tests.support.stewards import Client, Dishonest, outcome, running


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (outcome(weights_digest=bytes(32)), "other-weights"),
        (outcome(delivered_fidelity=3), "other-fidelity"),
    ],
)
def test_engine_that_ran_something_else_is_refused_without_counts(folder: Path, change: Any, reason: str) -> None:
    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Dishonest(change))

    served = asyncio.run(main())
    assert served.receipt.outcome.to_map() == {"finish": "refused", "reason": reason, "counted_by": "none"}
    assert served.receipt.output_commitment is None
    assert served.tokens == ()


def test_engine_that_hides_its_promised_weights_is_refused(folder: Path) -> None:
    weights = ContentId.of_bytes(b"weights")

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Dishonest(outcome(weights_digest=None), weights_digest=weights))

    assert asyncio.run(main()).receipt.outcome.reason == "other-weights"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda served: replace(served, tokens=served.tokens[:-1]), "stream-differs"),
        (lambda served: replace(served, tokens=(*served.tokens[:-1], 7)), "stream-differs"),
        (outcome(tokens_out=9), "count-differs"),
        (outcome(tokens_in=1), "count-differs"),
        (outcome(finish="cancelled"), "stopped-uncalled"),
        (outcome(finish="interrupted"), "finish-unknown"),
        (outcome(finish="engine-error", reason="out-of-memory"), "out-of-memory"),
    ],
)
def test_engine_that_breaks_a_promise_is_sealed_as_failed(folder: Path, change: Any, reason: str) -> None:
    client = Client()

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Dishonest(change), client)

    served = asyncio.run(main())
    assert (served.receipt.outcome.finish, served.receipt.outcome.reason) == ("engine-error", reason)
    # what the client was shown is what is committed to, whatever the engine says afterwards
    assert list(served.tokens) == client.got
    assert served.receipt.outcome.tokens_out == 8
    assert served.receipt.output_commitment is not None


def test_length_without_max_tokens_is_a_broken_promise(folder: Path) -> None:
    class Short(ReferenceEngine):
        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            short = type(request).of(**{**request.to_map(), "max_tokens": 3})
            return await super().serve(short, prompt, sink)

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Short())

    assert asyncio.run(main()).receipt.outcome.reason == "length-differs"


def test_engine_that_fails_in_mid_serve_is_sealed_with_what_it_made(folder: Path) -> None:
    class Failing(ReferenceEngine):
        error: Exception = EngineFailed("the child died")

        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            sink.put(11)
            sink.put(12)
            raise self.error

    async def main() -> list[SealedServe]:
        async with running(folder) as steward:
            engine = Failing()
            declared = await serve(steward, engine)
            engine.error = ZeroDivisionError("not declared")
            return [declared, await serve(steward, engine), await serve(steward, ReferenceEngine())]

    declared, undeclared, after = asyncio.run(main())
    for failed in (declared, undeclared):
        assert failed.receipt.outcome.finish == "engine-error"
        assert failed.receipt.outcome.reason == "engine-failed"
        assert failed.tokens == (11, 12)
        assert isinstance(failed.error, EngineFailed)
    assert after.receipt.outcome.finish == "length"
    assert [r.seq for r in in_ledger(folder)] == [0, 1, 2]


@pytest.mark.parametrize("token", [-1, 2**32])
def test_token_outside_the_format_is_a_failure(folder: Path, token: int) -> None:
    class Odd(ReferenceEngine):
        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            sink.put(token)
            raise AssertionError("put should have refused")

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Odd())

    served = asyncio.run(main())
    assert served.receipt.outcome.finish == "engine-error"
    assert served.tokens == ()


def test_engine_cannot_put_more_than_max_tokens(folder: Path) -> None:
    class Endless(ReferenceEngine):
        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            while True:
                sink.put(1)

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Endless())

    served = asyncio.run(main())
    assert served.receipt.outcome.finish == "engine-error"
    assert len(served.tokens) == 8
