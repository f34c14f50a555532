"""The matrix of a bench: for each prompt depth and number of streams, completions that are sent at once and timed.

Each prompt is a text of its own from its first word on, so that no engine has seen the beginning of it: what a cache of
prefixes would make of it is no prefill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.errors import CandidateError, LaunchError, NodeUnreachable
from mesh.launch.bench_data import Cell, Request
from mesh.launch.http_stream import Client, Streamed
from mesh.runtime.prompts import NAME, prompt

ENDPOINT = "/v1/completions"
PROMPTS = NAME
_DOMAIN = "prose"
_TOKENIZE_S = 300.0
_TURNS = 3
# Where an engine says which version it is, and under which key.
_VERSIONS = {"vllm": ("/version", "version"), "llama.cpp": ("/props", "build_info")}
# The depth suite of people who compare long contexts.
SUITES = {"depth": ((16_384, 32_768, 65_536, 131_072), (1, 2), 2)}


@dataclass(frozen=True, slots=True)
class Matrix:
    """`seed` makes the texts: for one seed the same, for another none of them."""

    depths: tuple[int, ...]
    concurrencies: tuple[int, ...]
    repetitions: int
    output_tokens: int
    seed: str
    timeout_s: float = 600.0

    def cells(self) -> Iterator[tuple[int, int, int]]:
        for depth in self.depths:
            for concurrency in self.concurrencies:
                for repetition in range(self.repetitions):
                    yield depth, concurrency, repetition


def body_of(engine: str, model: str, text: str, matrix: Matrix) -> dict[str, Any]:
    """The request as it is sent. Where an engine can, it goes on to the last token that it was asked for."""
    body: dict[str, Any] = {
        "model": model, "prompt": text, "max_tokens": matrix.output_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    return body if engine == "mesh" else {**body, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Measured:
    """`engine_version` is as the engine says it; `warm_up_tokens` the prompt of a completion before the first cell,
    which is counted in none: an engine's first one may take far longer than any after it."""

    cells: list[Cell]
    engine_version: str | None
    warm_up_tokens: int | None


@dataclass(frozen=True, slots=True)
class Bench:
    client: Client
    engine: str
    model: str
    matrix: Matrix
    note: Callable[[str], None]

    async def run(self) -> Measured:
        """Every cell, each with what failed of it. Raises LaunchError where the engine cannot be measured at all."""
        limit = await self._context()
        await self._count("1")
        version = await self._version()
        warm = await self._warm_up(limit)
        cells: list[Cell] = []
        gone: str | None = None
        for depth, concurrency, repetition in self.matrix.cells():
            name = f"{depth} tokens x{concurrency}" + (f" again {repetition}" if repetition else "")
            need = depth + self.matrix.output_tokens
            if gone is None and limit is not None and need > limit:
                skipped: str | None = f"needs {need} tokens, the model takes {limit}"
            else:
                skipped = gone
            if skipped is not None:
                self.note(f"{name}: skipped: {skipped}")
                cells.append(_skipped(depth, concurrency, repetition, skipped))
                continue
            try:
                cells.append(await self._cell(depth, concurrency, repetition))
                self.note(f"{name}: done")
            except (NodeUnreachable, ConnectionRefusedError) as e:
                gone = f"the engine is gone: {e}"
                cells.append(_skipped(depth, concurrency, repetition, gone))
            except (CandidateError, LaunchError, OSError) as e:
                cells.append(_skipped(depth, concurrency, repetition, str(e) or type(e).__name__))
        return Measured(cells, version, warm)

    async def _warm_up(self, limit: int | None) -> int | None:
        """A completion of the first size that the model takes. What goes wrong is noted: cells tell it themselves."""
        fitting = [depth for depth in self.matrix.depths if limit is None or depth + self.matrix.output_tokens <= limit]
        if not fitting:
            return None
        try:
            body = body_of(self.engine, self.model, await self._text(fitting[0], self.matrix.seed, 0), self.matrix)
            failed = (await self.client.stream(ENDPOINT, body, timeout_s=self.matrix.timeout_s)).failed
        except (CandidateError, LaunchError, OSError) as e:
            failed = str(e) or type(e).__name__
        self.note(f"{fitting[0]} tokens, to warm up: " + ("done" if failed is None else f"failed: {failed}"))
        return fitting[0] if failed is None else None

    async def _version(self) -> str | None:
        path, key = _VERSIONS.get(self.engine, (None, ""))
        if path is None:
            return None
        try:
            told = (await self.client.request("GET", path)).json()
        except OSError:
            return None
        said = told.get(key) if isinstance(told, dict) else None
        return said[:80] if isinstance(said, str) and said else None

    async def _cell(self, depth: int, concurrency: int, repetition: int) -> Cell:
        texts = []
        for stream in range(concurrency):
            seed = f"{self.matrix.seed} {depth} {concurrency} {repetition} {stream}"
            texts.append(await self._text(depth, seed, stream))
        clock = self.client.clock
        began = clock()

        async def one(stream: int, text: str) -> Request:
            started = clock() - began
            body = body_of(self.engine, self.model, text, self.matrix)
            try:
                got = await self.client.stream(ENDPOINT, body, timeout_s=self.matrix.timeout_s)
            except LaunchError as e:  # the way to the engine is gone: of the others too, and each says so
                got = Streamed(clock() - began - started, failed=str(e))
            return Request(
                stream=stream, started_ns=started, total_ns=got.total_ns, first_ns=got.first_ns, last_ns=got.last_ns,
                events=got.events, pieces=got.pieces, prompt_tokens=got.prompt_tokens, output_tokens=got.output_tokens,
                finish=got.finish, failed=got.failed,
            )  # fmt: skip

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(stream, text)) for stream, text in enumerate(texts)]
        wall = max(clock() - began, 1)
        requests = [task.result() for task in tasks]
        return Cell(depth=depth, concurrency=concurrency, repetition=repetition, wall_ns=wall, requests=requests)

    async def _text(self, depth: int, seed: str, stream: int) -> str:
        """Of exactly that size. Where a tokenizer takes none of one seed's texts for it, those of the next may do.
        Raises CandidateError where none did."""
        for turn in range(_TURNS - 1):
            try:
                return await prompt(_DOMAIN, depth, self._count, seed=f"{seed} {turn}", stream=stream)
            except CandidateError:
                continue
        return await prompt(_DOMAIN, depth, self._count, seed=f"{seed} {_TURNS - 1}", stream=stream)

    async def _count(self, text: str) -> int:
        """How many tokens the served tokenizer makes of it, with what it puts in front of every prompt."""
        body: dict[str, Any] = {"content": text, "add_special": True}
        if self.engine != "llama.cpp":
            body = {"model": self.model, "prompt": text}
        answer = await self.client.request("POST", "/tokenize", body, timeout_s=_TOKENIZE_S)
        told = answer.json()
        count = told.get("count") if isinstance(told, dict) else None
        tokens = told.get("tokens") if isinstance(told, dict) else None
        if answer.status == 200 and isinstance(count, int):
            return count
        if answer.status == 200 and isinstance(tokens, list):
            return len(tokens)
        raise LaunchError(
            f"{self.model}: no tokenizer is served, so no prompt can be measured: /tokenize answers {answer.status}"
        )

    async def _context(self) -> int | None:
        """How many tokens the model takes, where the engine says so. Raises LaunchError where it is not there."""
        try:
            answer = await self.client.request("GET", "/v1/models")
        except OSError as e:
            raise LaunchError(f"{self.model}: does not answer: {str(e) or type(e).__name__}") from None
        told = answer.json()
        listed = told.get("data") if isinstance(told, dict) else None
        if answer.status != 200 or not isinstance(listed, list):
            raise LaunchError(f"{self.model}: /v1/models answers {answer.status}")
        found = {str(one.get("id")): one for one in listed if isinstance(one, dict)}
        if self.model not in found:
            raise LaunchError(f"the engine serves {', '.join(found) or 'nothing'}, the run is of {self.model}")
        limit = found[self.model].get("max_model_len")
        return limit if type(limit) is int and limit > 0 else None


def _skipped(depth: int, concurrency: int, repetition: int, why: str) -> Cell:
    return Cell(depth=depth, concurrency=concurrency, repetition=repetition, skipped=why)


def dry_cells(matrix: Matrix, engine: str, model: str) -> Sequence[dict[str, Any]]:
    """What would be sent: each cell, and the body of its requests but for the text."""
    body = body_of(engine, model, "", matrix)
    return [
        {"depth": depth, "concurrency": concurrency, "repetition": repetition, "path": ENDPOINT,
         "body": {**body, "prompt": f"(a text of {depth} tokens)"}}
        for depth, concurrency, repetition in matrix.cells()
    ]  # fmt: skip
