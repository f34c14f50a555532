"""A vLLM server over HTTP: what is asked of it, bounded in connections, time and bytes. The engine's only way out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import aiohttp

from mesh.engine.vllm_stream import Event, EventReader, error_text
from mesh.errors import EngineError, EngineFailed, EngineUnavailable, EngineUnsupported, UsageError
from mesh.schema.limits import MAX_TOKEN_ID

CONNECT_S: Final = 5
PROBE_S: Final = 10  # a server that lives answers what it is in this time, however busy
TEXT_S: Final = 60  # tokenizing the longest prompt
MAX_ANSWER_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 16
_PROBE_IDLE_S: Final = 3600
# Less than the 5 s after which the server closes a connection that is idle: a completion that is sent on one just then
# would fail, and cannot be sent again.
_WORK_IDLE_S: Final = 3

_METRIC = re.compile(rb"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)", re.M)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class ModelCard:
    """An entry of /v1/models. `root` is the folder or repository that the server says it loaded."""

    name: str
    root: str | None
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """What /metrics says about the server itself: `started_s` is its process's start, Unix time in its own spelling;
    `cache` the labels of its cache configuration. None and empty where it does not say."""

    started_s: str | None
    cache: Mapping[str, str]


def server_url(text: str) -> str:
    """The server's root, without a trailing slash or `/v1`. Raises UsageError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as e:
        raise UsageError(f"vllm server: {text[:80]!r} is not a url: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise UsageError(f"vllm server: {text[:80]!r} is not a url like http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise UsageError("vllm server: its url holds a credential, which would be printed; give a key file instead")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


class VllmServer:
    """`key` is the bearer token that it wants. Completions share `connections`; questions about the server itself go
    over one connection of their own that is kept open, so that `met_again` can tell: a server that was replaced cannot
    answer on the connection of the one before."""

    def __init__(self, url: str, *, key: str | None, connections: int, idle_s: float) -> None:
        self.url = server_url(url)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=idle_s)
        self._work = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_WORK_IDLE_S),
            headers=headers, timeout=timeout,
        )  # fmt: skip
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._on_connection)
        self._probes = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=_PROBE_IDLE_S), headers=headers,
            timeout=aiohttp.ClientTimeout(total=PROBE_S, sock_connect=CONNECT_S), trace_configs=[trace],
        )  # fmt: skip
        self._new_connection = False

    async def close(self) -> None:
        await self._work.close()
        await self._probes.close()

    async def version(self) -> str:
        version = (await self._get("/version")).get("version")
        if type(version) is not str or not re.fullmatch(r"[A-Za-z0-9._+-]{1,64}", version):
            raise EngineUnsupported(f"{self._name}: /version names none: no vLLM")
        return version

    async def models(self) -> list[ModelCard]:
        cards = (await self._get("/v1/models")).get("data")
        if type(cards) is not list or not all(isinstance(card, dict) and type(card.get("id")) is str for card in cards):
            raise EngineUnsupported(f"{self._name}: /v1/models is not a list of models")
        return [ModelCard(card["id"], _text(card.get("root")), _count(card.get("max_model_len"))) for card in cards]

    async def met_again(self) -> tuple[list[ModelCard], bool]:
        """Its models, and whether it surely is the server that was asked before: it answered on a connection that was
        open then. Raises EngineUnavailable where it says itself that it cannot serve: what answers may be a front whose
        engine has died."""
        self._new_connection = False
        async with self._asking(self._probes.get(self.url + "/health", allow_redirects=False)) as response:
            await self._read(response)
            if response.status not in (200, 404):  # not every server in vLLM's place has it
                raise EngineUnavailable(f"{self._name}: says that it is not well ({response.status})")
        cards = await self.models()
        return cards, not self._new_connection

    async def metrics(self) -> Metrics:
        async with self._asking(self._probes.get(self.url + "/metrics", allow_redirects=False)) as response:
            if response.status != 200:
                return Metrics(None, {})
            return read_metrics(await self._read(response))

    async def encode(self, model: str, text: str, *, additions: bool) -> list[int]:
        """Token ids of a text; with `additions` those that the tokenizer puts around one (a beginning of text)."""
        body = {"model": model, "prompt": text, "add_special_tokens": additions}
        return self._tokens(await self._post("/tokenize", body))

    async def encode_chat(self, model: str, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation under the server's own chat template."""
        body = {"model": model, "messages": [dict(message) for message in messages], "add_generation_prompt": True}
        return self._tokens(await self._post("/tokenize", body))

    async def decode(self, model: str, ids: Sequence[int]) -> str:
        text = (await self._post("/detokenize", {"model": model, "tokens": list(ids)})).get("prompt")
        if type(text) is not str:
            raise EngineUnsupported(f"{self._name}: /detokenize gave no text")
        return text

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One whole completion."""
        async with self._asking(
            self._work.post(self.url + "/v1/completions", json=body, allow_redirects=False)
        ) as response:
            return await self._object(response)

    @asynccontextmanager
    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Event]]:
        """A completion's events. Leaving the block before their end closes the connection, which is how the server
        learns that nobody wants more."""
        async with self._asking(
            self._work.post(self.url + "/v1/completions", json=body, allow_redirects=False)
        ) as response:
            if response.status != 200:
                await self._refused(response)
            try:
                yield self._events(response)
            finally:
                response.close()

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
        reader = EventReader()
        while data := await response.content.readany():
            for event in reader.feed(data):
                yield event

    # --- plumbing

    @property
    def _name(self) -> str:
        return f"vllm server at {self.url}"

    async def _on_connection(self, session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
        self._new_connection = True

    @asynccontextmanager
    async def _asking(self, request: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """aiohttp's exceptions in our words."""
        try:
            async with request as response:
                yield response
        except aiohttp.ClientConnectorError as e:
            raise EngineUnavailable(f"{self._name}: cannot be reached: {e.strerror or e.os_error}") from None
        except (TimeoutError, aiohttp.ServerTimeoutError):
            raise EngineFailed(f"{self._name}: nothing came for too long") from None
        except (aiohttp.ClientError, ConnectionError) as e:
            raise EngineFailed(f"{self._name}: the connection broke: {type(e).__name__}") from None

    async def _get(self, path: str) -> dict[str, Any]:
        async with self._asking(self._probes.get(self.url + path, allow_redirects=False)) as response:
            return await self._object(response)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=TEXT_S, sock_connect=CONNECT_S)
        async with self._asking(
            self._work.post(self.url + path, json=body, timeout=timeout, allow_redirects=False)
        ) as response:
            return await self._object(response)

    async def _object(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        if response.status != 200:
            await self._refused(response)
        data = await self._read(response)
        try:
            answer = await asyncio.to_thread(json.loads, data) if len(data) > _READ_BYTES else json.loads(data)
        except (ValueError, RecursionError):
            raise EngineUnsupported(f"{self._name}: {response.url.path} gave no JSON") from None
        if not isinstance(answer, dict):
            raise EngineUnsupported(f"{self._name}: {response.url.path} gave no object")
        return answer

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        data = bytearray()
        while part := await response.content.readany():
            data += part
            if len(data) > MAX_ANSWER_BYTES:
                raise EngineFailed(f"{self._name}: {response.url.path} gave over {MAX_ANSWER_BYTES} bytes")
        return bytes(data)

    async def _refused(self, response: aiohttp.ClientResponse) -> NoReturn:
        """Raises what the status means. The server's own message is left out: it may quote the prompt."""
        try:
            answer = json.loads(await self._read(response))
        except (ValueError, RecursionError):
            answer = None
        error = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else None
        what = f"{self._name}: {response.url.path} answered {response.status}" + (
            f" ({error_text(error)})" if error else ""
        )
        raise _class_of(response.status)(what)

    def _tokens(self, answer: Mapping[str, Any]) -> list[int]:
        ids = answer.get("tokens")
        if type(ids) is not list or not all(type(i) is int and 0 <= i <= MAX_TOKEN_ID for i in ids):
            raise EngineUnsupported(f"{self._name}: /tokenize gave no token ids")
        return ids


def _class_of(status: int) -> type[EngineError]:
    if status in (401, 403, 404, 405):
        return EngineUnsupported
    return EngineUnavailable if status in (429, 502, 503, 504) else EngineFailed


def read_metrics(text: bytes) -> Metrics:
    """Out of Prometheus' text format."""
    started, cache = None, {}
    for line in _METRIC.finditer(text):
        if line["name"] == b"process_start_time_seconds":
            started = line["value"].decode(errors="replace")
        elif line["name"] == b"vllm:cache_config_info":
            cache = dict(_LABEL.findall((line["labels"] or b"").decode(errors="replace")))
    return Metrics(started, cache)


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
