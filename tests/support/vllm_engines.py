"""Engines on the fake vLLM server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mesh.engine.vllm import VllmEngine, VllmTextEngine
from mesh.engine.vllm_described import VllmConfig
from tests.support.fake_completion import DONE
from tests.support.fake_vllm import CUT, FakeVllm, running
from tests.support.vllm_folder import write_model_folder


@asynccontextmanager
async def engine_on(fake: FakeVllm, folder: Path | None = None, **config: Any) -> AsyncIterator[VllmEngine]:
    """One on a server that runs, in a configuration that is known to repeat unless `config` says otherwise."""
    told = {"weights": folder, "dtype": "float32", "device": "cpu", "slots": 2} | config
    engine = await VllmEngine.start(VllmConfig(fake.url, **told))
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def served_by(
    folder: Path, config: dict[str, Any] | None = None, **told: Any
) -> AsyncIterator[tuple[FakeVllm, VllmTextEngine]]:
    """A fake server and an engine on it, over a model folder of its own in `folder`."""
    model = write_model_folder(folder / "model")
    async with running(**told) as fake, engine_on(fake, model, **config or {}) as engine:
        assert isinstance(engine, VllmTextEngine)
        yield fake, engine


Test = Callable[[FakeVllm, VllmTextEngine], Awaitable[None]]


def on(folder: Path, test: Test, config: dict[str, Any] | None = None, **told: Any) -> None:
    """Run `test` on a server and an engine that is configured with `config`; `told` is what the server is."""

    async def main() -> None:
        async with served_by(folder, config, **told) as (fake, engine):
            await test(fake, engine)

    asyncio.run(main())


Change = Callable[[dict[str, Any]], Iterable[Any]]


def only(number: int, change: Change) -> Callable[[int, Any], Iterable[Any]]:
    """An edit of one event of a stream."""
    return lambda n, event: change(event) if n == number else (event,)


def finishing(**fields: Any) -> Callable[[int, Any], Iterable[Any]]:
    """The last chunk's choice says something else."""

    def edit(number: int, event: Any) -> Iterable[Any]:
        if event is not DONE and event["choices"] and event["choices"][0]["finish_reason"] is not None:
            event["choices"][0] |= fields
        return (event,)

    return edit


def counted(**fields: Any) -> Callable[[int, Any], Iterable[Any]]:
    """The usage says something else."""

    def edit(number: int, event: Any) -> Iterable[Any]:
        if event is not DONE and not event["choices"]:
            event["usage"] |= fields
        return (event,)

    return edit


def cut_at(number: int, part: bytes = b"") -> Callable[[int, Any], Iterable[Any]]:
    """The connection breaks at an event, of which `part` went out."""
    return only(number, lambda event: (part, CUT))
