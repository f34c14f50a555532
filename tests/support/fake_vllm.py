"""A small server that speaks vLLM's HTTP, for faults that a real one cannot be made to show on demand.

Its ids follow from the prompt's ids alone, or from everything in the request where it samples. What it answers has the
shape of a real server's recorded answers; test_fake_vllm.py holds it to that.

    python -m tests.support.fake_vllm [--folder FOLDER] [--port PORT] [--starts N]

prints its port, and serves until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from mesh.engine.server_port import KeptPort
from mesh.engine.vllm_rank import METHOD
from tests.support.fake_completion import Completion
from tests.support.vllm_folder import (
    CONTEXT,
    VOCABULARY,
    encode,
    rendered,
    text_of,
    write_model_folder,
)

BLOCK: Final = 16  # ids in a block of its prefix cache
CUT: Final = object()  # in place of an event: the connection is cut here

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Edit = Callable[[int, Any], Iterable[Any]]


def status(code: int, body: Any = None) -> Handler:
    """An answer in place of the right one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return _json(
            {"error": {"message": "it is so", "type": "E", "code": code}} if body is None else body, status=code
        )

    return answer


async def silence(request: web.Request) -> web.StreamResponse:
    """Takes the request and never says anything."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


@dataclass
class FakeVllm:
    """One server. Everything may be changed while it runs; `restart` is what a real one would need for most of it."""

    name: str = "tiny"
    root: str = "tiny"
    version: str = "0.32.0"
    fingerprint: str = "vllm-0.32.0-0a1b2c3d"
    context: int = CONTEXT
    others: tuple[str, ...] = ()  # further models
    key: str | None = None
    numbers: str = "float32"  # another value gives other ids, as another dtype or model would
    counts_cached: bool = False  # --enable-prompt-tokens-details
    cache_dtype: str = "auto"
    starts: int = 1
    port: int = 0
    template: str | None = "its own"
    ranks: list[Any] | None = None  # what its workers' extension reports; None: it is not started for that
    defaults: dict[str, Any] = field(default_factory=dict)  # what generation_config.json says of sampling

    # faults
    ignored: frozenset[str] = frozenset()  # fields of a completion that it does not know
    clip: int | None = None  # ids of the prompt that it reads
    most: int | None = None  # ids after which it says `length`
    crowd: bool = False  # the last id depends on how many requests are in flight
    warm: bool = False  # a warm cache gives other numbers
    logprobs: str = "raw"  # --logprobs-mode, in the words of the settings
    passes_off: float = 0.0  # what it adds to the log-probabilities of ids in a prompt
    per_event: int = 1  # ids in one event
    hold_at: int | None = None  # waits before that id until `go`
    edit: Edit | None = None  # (number, event) -> what is sent in its place, for each event of a stream
    instead: dict[str, Handler] = field(default_factory=dict)  # path -> handler

    # what it saw
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of /v1/completions
    asked: list[str] = field(default_factory=list)  # paths
    aborted: int = 0  # clients that left in mid-answer
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.go, self.held = asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Condition()
        self._cache: set[tuple[Any, ...]] = set()
        self._runner: web.AppRunner | None = None
        self._generated = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self._runner, self.port = runner, runner.addresses[0][1]

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def restart(self, **changes: Any) -> None:
        """Another start on the same port, with a cold cache."""
        await self.stop()
        self.starts += 1
        self._cache.clear()
        for name, value in changes.items():
            assert hasattr(self, name)
            setattr(self, name, value)
        await self.start()

    async def until(self, true: Callable[[], bool]) -> None:
        """Until what it saw is so."""
        async with self._changed:
            await self._changed.wait_for(true)

    # --- routes

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.instead:
            return await self.instead[request.path](request)
        wanted = None if self.key is None else f"Bearer {self.key}"
        if wanted is not None and request.path.startswith("/v1/") and request.headers.get("Authorization") != wanted:
            return _json({"error": "Unauthorized"}, status=401)
        routes = {
            "/version": ("GET", self._version), "/health": ("GET", self._health),
            "/v1/models": ("GET", self._models), "/metrics": ("GET", self._metrics),
            "/tokenize": ("POST", self._tokenize), "/detokenize": ("POST", self._detokenize),
            "/v1/completions": ("POST", self._completions),
        }  # fmt: skip
        if self.ranks is not None:
            routes["/collective_rpc"] = ("POST", self._collective_rpc)
        if request.path not in routes:
            return _json({"detail": "Not Found"}, status=404)
        method, route = routes[request.path]
        if request.method != method:
            return _json({"detail": "Method Not Allowed"}, status=405)
        return await route(request)

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return _json({"version": self.version})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "0"})  # web.Response would name a type of content
        await response.prepare(request)
        return response

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return _json({"object": "list", "data": [self._card(name) for name in (self.name, *self.others)]})

    def _card(self, name: str) -> dict[str, Any]:
        allowed = {
            f"allow_{what}": what not in ("create_engine", "search_indices", "fine_tuning")
            for what in ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
        }
        permission = {
            "id": "modelperm-0", "object": "model_permission", "created": 0, **allowed, "organization": "*",
            "group": None, "is_blocking": False,
        }  # fmt: skip
        return {
            "id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": self.root, "parent": None,
            "max_model_len": self.context, "permission": [permission],
        }  # fmt: skip

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        labels = f'engine="0",model_name="{self.name}"'
        cache = f'block_size="{BLOCK}",cache_dtype="{self.cache_dtype}",enable_prefix_caching="True",engine="0"'
        lines = (
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
            f"process_start_time_seconds {1.7e9 + self.starts}",
            f"vllm:num_requests_running{{{labels}}} {float(self.in_flight)}",
            f"vllm:prefix_cache_hits_total{{{labels}}} 0.0",
            f"vllm:generation_tokens_total{{{labels}}} {float(self._generated)}",
            f"vllm:cache_config_info{{{cache}}} 1.0",
        )
        text = "".join(f"{line}\n" for line in lines)
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"})

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("model") != self.name:
            return self._no_model(body)
        if "messages" in body:
            if self.template is None:
                return _bad("no chat template", None)
            ids = encode(rendered(body["messages"]))
        elif "prompt" in body:
            ids = encode(body["prompt"])
        else:
            return _bad("Field required", "body.prompt", kind="Bad Request")
        told = {"count": len(ids), "max_model_len": self.context, "tokens": ids, "token_strs": None}
        return _json(told)

    async def _collective_rpc(self, request: web.Request) -> web.StreamResponse:
        assert (await request.json())["method"] == METHOD
        return _json({"results": self.ranks})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return _json({"prompt": text_of(body["tokens"], special=True)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        fault = self._fault(body)
        if fault is not None:
            return fault
        body = self.defaults | {name: value for name, value in body.items() if name not in self.ignored}
        answer = Completion(self, body)
        self.in_flight += 1
        try:
            if body.get("stream"):
                return await self._stream(request, answer)
            async for _ in answer.made():
                pass
            return _json(answer.whole())
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.in_flight -= 1
            self._generated += len(answer.ids)
            async with self._changed:
                self._changed.notify_all()

    def _fault(self, body: dict[str, Any]) -> web.Response | None:
        if body.get("model") != self.name:
            return self._no_model(body)
        prompt = body["prompt"]
        if len(body.get("stop") or ()) > 4:
            return _bad("List should have at most 4 items", "body.stop", kind="Bad Request")
        checks = (
            (body.get("max_tokens", 1) < 1, "max_tokens must be at least 1", "max_tokens"),
            (not 0 <= (body.get("temperature") or 0) <= 2, "temperature must be in [0, 2]", "temperature"),
            (not 0 < body.get("top_p", 1) <= 1, "top_p must be in (0, 1]", "top_p"),
            (abs(body.get("frequency_penalty") or 0) > 2, "frequency_penalty must be in [-2, 2]", None),
            (len(prompt) >= self.context, "your prompt exceeds this limit", "input_tokens"),
            (not isinstance(prompt, str) and max(prompt) >= VOCABULARY, "out of vocabulary", None),
        )
        return next((_bad(message, param) for wrong, message, param in checks if wrong), None)

    def _no_model(self, body: dict[str, Any]) -> web.Response:
        return _bad(f"The model `{body.get('model')}` does not exist.", "model", kind="NotFoundError", code=404)

    # --- a stream

    async def _stream(self, request: web.Request, answer: Completion) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type, response.charset = "text/event-stream", "utf-8"
        await response.prepare(request)
        number = 0
        async for event in answer.events():
            for sent in (event,) if self.edit is None else self.edit(number, event):
                if sent is CUT:
                    assert request.transport is not None
                    request.transport.abort()
                    raise ConnectionResetError
                await response.write(sent if isinstance(sent, bytes) else frame(sent))
            number += 1
        await response.write_eof()
        return response

    # --- its model

    async def before(self, place: int) -> None:
        """Between two ids others have their turn."""
        if place == self.hold_at:
            self.held.set()
            await self.go.wait()
        await asyncio.sleep(0)

    def cached(self, salt: Any, prompt: Sequence[int]) -> int:
        """How many of the prompt's ids it need not compute; from now on it knows all of them."""
        blocks = [(salt, *prompt[: n * BLOCK]) for n in range(1, (len(prompt) - 1) // BLOCK + 1)]
        known = sum(block in self._cache for block in blocks)
        self._cache.update(blocks)
        return known * BLOCK


def frame(event: Any) -> bytes:
    """As it goes over the wire."""
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), status=status, headers={"Content-Type": "application/json"})


def _bad(message: str, param: str | None, *, kind: str = "BadRequestError", code: int = 400) -> web.Response:
    return _json({"error": {"message": message, "type": kind, "param": param, "code": code}}, status=code)


@asynccontextmanager
async def running(**told: Any) -> AsyncIterator[FakeVllm]:
    with contextlib.ExitStack() as stack:
        if "port" not in told:  # its own, also while it is stopped
            told["port"] = stack.enter_context(KeptPort("127.0.0.1")).number
        server = FakeVllm(**told)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


async def _serve(told: argparse.Namespace) -> None:
    if told.folder is not None:
        write_model_folder(told.folder)
    ranks = None if told.ranks is None else json.loads(told.ranks.read_text())
    name = {} if ranks is None else {"fingerprint": f"vllm-0.32.0-pp{len(ranks)}-0a1b2c3d"}
    port = {} if told.port is None else {"port": told.port}
    async with running(starts=told.starts, ranks=ranks, **name, **port) as server:
        print(server.port, flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="fake_vllm")
    parser.add_argument("--folder", type=Path, help="where its model folder is written")
    parser.add_argument("--port", type=int)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--ranks", type=Path, help="JSON: what its workers report")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))
