"""A gateway on a real socket over a real steward, and engines whose every byte is known."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai

from mesh.blueprint.verification import Blueprint
from mesh.engine.protocol import Scores, Served, TokenSink, scores_wanted
from mesh.engine.reference import ReferenceEngine
from mesh.engine.stops import StopMatcher
from mesh.errors import BadRequest, EngineFailed
from mesh.gateway.app import Gateway
from mesh.gateway.backends import Route
from mesh.gateway.config import GatewayConfig
from mesh.meter.protocol import EnergyMeter
from mesh.schema.envelope import RECEIPT_TYPE, Sealed, verify
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import ServeRequest
from mesh.steward.steward import Steward
from tests.support.stewards import running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
DECIDE = "/mesh/v1/decide"
YES_NO = ["yes", "no"]
NONCE = bytes(range(32)).hex()


class Scripted(ReferenceEngine):
    """Says `pieces`, ids 0 and up, then ends with an id that has no text. It waits before piece `hold_at` until `go` is
    set or nobody wants more, and dies before piece `die_at`."""

    def __init__(
        self, pieces: Iterable[bytes], *, hold_at: int | None = None, die_at: int | None = None, **engine: Any
    ) -> None:
        super().__init__(**{"recipe_id": "scripted"} | engine)
        self.pieces = list(pieces)
        self.tool_form: str | None = None
        self.go = asyncio.Event()
        self.held = asyncio.Event()
        self.serves = 0
        self.holding = 0
        self._hold_at = hold_at
        self._die_at = die_at

    def refusal(self, request: ServeRequest) -> str | None:
        return None

    def piece(self, token: int) -> bytes:
        if not 0 <= token <= len(self.pieces):
            raise BadRequest(f"token {token}: unknown")
        return self.pieces[token] if token < len(self.pieces) else b""

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self.serves += 1
        stops = StopMatcher(request.sampling.stop)
        made: list[int] = []
        finish = "length"
        while len(made) < request.max_tokens:
            at = len(made)
            if at == self._hold_at:
                self.holding += 1
                self.held.set()
                await self._held_up(sink)
            if sink.cancelled.is_set():
                finish = "cancelled"
                break
            if at == self._die_at:
                raise EngineFailed("the child died: signal 11")
            made.append(at)
            wanted = scores_wanted(sink)
            if wanted is None:
                sink.put(at)
            else:
                sink.put(at, self.scores(at, wanted))
            if stops.push(self.piece(at)) or at == len(self.pieces):
                finish = "stop"
                break
            await asyncio.sleep(0)
        told = ServeOutcome.of(
            finish=finish, counted_by="engine", tokens_in=len(prompt), tokens_out=len(made),
            weights_digest=self.weights_digest,
        )  # fmt: skip
        return Served(tuple(made), told)

    def scores(self, at: int, wanted: int) -> Scores:
        raise NotImplementedError("asked for scores although it said that it gives none")

    async def _held_up(self, sink: TokenSink) -> None:
        waits = [asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(sink.cancelled.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


class Scoring(Scripted):
    """One with made-up scores: the id itself is the likeliest, the ids after it follow, the second one never."""

    max_scores = 3

    def scores(self, at: int, wanted: int) -> Scores:
        ranked = [(at, -0.25), (at + 1, -1.5), (at + 2, -math.inf)]
        return Scores(-0.25, tuple(ranked[:wanted]))


class Deciding(Scripted):
    """Chooses the last option. Knows no soft hyphen and no capitals. Where it `holds` it waits until nobody wants it
    or `go` is set."""

    def __init__(self, *, holds: bool = False, **engine: Any) -> None:
        super().__init__([b"x"], hold_at=0 if holds else None, **{"recipe_id": "deciding"} | engine)
        self.asked: list[tuple[ServeRequest, Sequence[int], Sequence[Sequence[int]]]] = []
        self.change: Callable[[Served], Served] = lambda served: served
        self.fails = False

    async def encode(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        return list(text.replace("\u00ad", "").lower().encode())

    def piece(self, token: int) -> bytes:
        return b"%c" % (token % 128)

    async def decide(
        self, request: ServeRequest, prompt: Sequence[int], options: Sequence[Sequence[int]], sink: TokenSink
    ) -> Served:
        self.asked.append((request, prompt, options))
        if self.fails:
            raise EngineFailed("the child died: signal 11")
        finish, decided = "stop", tuple(float(i - len(options)) for i in range(len(options)))
        if self._hold_at is not None:
            self.held.set()
            await self._held_up(sink)
            if sink.cancelled.is_set():
                finish = "cancelled"
        told = ServeOutcome.of(
            finish=finish, counted_by="engine", tokens_in=len(prompt) + sum(map(len, options)), tokens_out=0,
            decision=len(options) - 1 if finish == "stop" else None, weights_digest=self.weights_digest,
        )  # fmt: skip
        return self.change(Served((), told, None, decided if finish == "stop" else None))


@dataclass
class House:
    """A running gateway and a client of it."""

    url: str
    port: int
    steward: Steward
    gateway: Gateway
    http: aiohttp.ClientSession

    async def post(self, body: Mapping[str, Any], *, path: str = CHAT, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(path, json=body, headers=named) as response:
            return Reply(response.status, response.headers.copy(), await response.read())

    async def get(self, path: str, **headers: str) -> Reply:
        async with self.http.get(path, headers=headers) as response:
            return Reply(response.status, response.headers.copy(), await response.read())

    def receipt(self, name: str) -> Sealed:
        """The checked receipt of a serve or receipt id, straight from the ledger."""
        by_id = name.startswith("b3:")
        reader = self.steward.reader
        found = [
            sealed
            for sealed in (verify(e.envelope, RECEIPT_TYPE, {self.steward.public}) for e in reader.receipts())
            if (sealed.id.text if by_id else sealed.value.serve_id.hex()) == name.replace("-", "")
        ]
        assert len(found) == 1, f"{len(found)} receipts of {name}"
        return found[0]

    async def last_receipt(self, count: int) -> Sealed:
        """The newest receipt, once there are `count`."""
        async with asyncio.timeout(60):
            while self.steward.reader.count() < count:
                await asyncio.sleep(0.002)
        assert self.steward.reader.count() == count
        (entry,) = self.steward.reader.receipts(limit=1, newest_first=True)
        return verify(entry.envelope, RECEIPT_TYPE, {self.steward.public})

    def sdk(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**{"base_url": self.url + "/v1", "api_key": "none"} | options)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error, after a look at its shape."""
        error = self.json["error"]
        assert error.keys() >= {"message", "type", "param", "code"}
        return error

    @property
    def code(self) -> tuple[int, str]:
        return self.status, self.error["code"]

    @property
    def lines(self) -> list[str]:
        """The events and comments of a stream."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        return blocks

    @property
    def events(self) -> list[Any]:
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]


@asynccontextmanager
async def house(
    folder: Path,
    engine: ReferenceEngine | None = None,
    *,
    keys: Sequence[str] = (),
    key: str | None = None,
    keep_ns: int | None = None,
    others: Sequence[ReferenceEngine] = (),
    shared: str | None = None,
    origins: Sequence[str] = (),
    meters: Sequence[EnergyMeter] = (),
    blueprints: Sequence[Blueprint] = (),
    launches: Path | None = None,
    **config: Any,
) -> AsyncIterator[House]:
    """`others` are more backends beside `engine`; `shared` is an alias that all of them answer to."""
    engines = [engine or ReferenceEngine(), *others]
    routes = [Route(() if shared is None else (shared,))] * len(engines)
    async with running(folder, keep_ns=keep_ns, meters=meters) as steward:
        gateway = Gateway(
            steward, engines, GatewayConfig(**config), keys=keys, routes=routes, origins=origins,
            blueprints=blueprints, launches=launches,
        )  # fmt: skip
        port = await gateway.start("127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            async with aiohttp.ClientSession(url, headers=headers) as http:
                yield House(url, port, steward, gateway, http)
        finally:
            await gateway.stop()
            for engine in engines:
                await engine.close()


class Ahead(asyncio.SelectorEventLoop):
    """A loop whose time is moved on by the test: what a deadline finds must not hang on how fast the machine is."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def run_ahead(main: Callable[[Ahead], Coroutine[Any, Any, None]]) -> None:
    loop = Ahead()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


def raw_request(body: Mapping[str, Any]) -> bytes:
    """A chat request as it goes over the wire."""
    data = json.dumps(body).encode()
    head = ["Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join((f"POST {CHAT} HTTP/1.1", *head, "", "")).encode() + data


def ask(content: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request to the reference engine."""
    return {"model": "reference", "messages": [{"role": "user", "content": content}], "max_tokens": 8} | fields


def script(said: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request to a scripted engine."""
    return ask(said, model="scripted", **fields)


def content(reply: Reply) -> str:
    """The text of a plain answer or of a stream."""
    if reply.headers["Content-Type"].startswith("text/event-stream"):
        choices = [event["choices"][0] for event in reply.events if event.get("choices")]
        return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)
    (choice,) = reply.json["choices"]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def question(model: str = "deciding", **fields: Any) -> dict[str, Any]:
    """A decision asked of a `Deciding` engine."""
    return {"model": model, "messages": [{"role": "user", "content": "Is it?"}], "options": YES_NO} | fields
