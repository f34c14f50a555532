"""A vLLM server over HTTP: what is asked of it, bounded in connections, time and bytes. The engine's only way out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from mesh.engine.call_off import CallOff
from mesh.engine.http_pool import Left, Pool
from mesh.engine.http_response import AnswerReader
from mesh.engine.vllm_stream import (
    Chunk,
    Event,
    EventReader,
    Usage,
    error_text,
    joined,
    read_plain,
    read_tokens,
    read_whole,
)
from mesh.errors import EngineError, EngineFailed, EngineUnavailable, EngineUnsupported, UsageError
from mesh.schema.view import json_bytes

PROBE_S: Final = 10  # a server that lives answers what it is in this time, however busy
TEXT_S: Final = 60  # tokenizing the longest prompt
MAX_ANSWER_BYTES: Final = 64 << 20
_OFF_LOOP_BYTES: Final = 1 << 16  # answers of more are parsed in a thread
_COMPLETIONS: Final = "/v1/completions"
_TOKENIZE: Final = "/tokenize"
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
        (parts.hostname or "").encode("idna")  # as the resolver will: a name like `a..b` is none
    except ValueError as e:
        raise UsageError(f"vllm server: {text[:80]!r} is not a url: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise UsageError(f"vllm server: {text[:80]!r} is not a url like http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise UsageError("vllm server: its url holds a credential, which would be printed; give a key file instead")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


class VllmServer:
    """`key` is the bearer token that it wants. Completions share `connections`; questions about the server itself go
    over two of their own that are kept open, so that `met_again` can tell: a server that was replaced cannot answer on
    a connection of the one before. Raises UsageError for a url or a key that cannot be one."""

    def __init__(self, url: str, *, key: str | None, connections: int, idle_s: float) -> None:
        self.url = server_url(url)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("vllm server: its key holds characters that no header can carry")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._idle_s = idle_s
        self._name = f"vllm server at {self.url}"
        self._completions, self._tokenize = (f"{self._name}: {path}" for path in (_COMPLETIONS, _TOKENIZE))
        self._work = Pool(self.url, name=self._name, headers=headers, limit=connections, keep_s=_WORK_IDLE_S)
        self._probes = Pool(self.url, name=self._name, headers=headers, limit=2, keep_s=_PROBE_IDLE_S)

    async def close(self) -> None:
        await self._work.close()
        await self._probes.close()

    async def version(self) -> str:
        version = (await self._get("/version")).get("version")
        if type(version) is not str or not re.fullmatch(r"[A-Za-z0-9._+-]{1,64}", version):
            raise EngineUnsupported(f"{self._name}: /version names none: no vLLM")
        return version

    async def models(self) -> list[ModelCard]:
        return (await self._models())[0]

    async def _models(self) -> tuple[list[ModelCard], bool]:
        """The models, and whether they came on a connection that was kept."""
        answer = _Whole(f"{self._name}: /v1/models")
        kept = await self._probes.ask("GET", "/v1/models", None, answer, patience_s=PROBE_S, in_all=True, again=True)
        cards = (await self._object("/v1/models", answer)).get("data")
        if type(cards) is not list or not all(isinstance(card, dict) and type(card.get("id")) is str for card in cards):
            raise EngineUnsupported(f"{self._name}: /v1/models is not a list of models")
        models = [ModelCard(card["id"], _text(card.get("root")), _count(card.get("max_model_len"))) for card in cards]
        return models, kept

    async def met_again(self) -> tuple[list[ModelCard], bool]:
        """Its models, and whether it surely is the server that was asked before: it gave them on a connection that was
        open then. Raises EngineUnavailable where it says itself that it cannot serve: what answers may be a front whose
        engine has died."""
        # at once: whoever is alone waits for this look; the models first, which take a connection that was kept
        models, health = await asyncio.gather(self._models(), self._probe("/health"), return_exceptions=True)
        if isinstance(health, BaseException):
            raise health
        if health.status not in (200, 404):  # not every server in vLLM's place has it
            raise EngineUnavailable(f"{self._name}: says that it is not well ({health.status})")
        if isinstance(models, BaseException):
            raise models
        return models

    async def metrics(self) -> Metrics:
        answer = await self._probe("/metrics")
        return read_metrics(bytes(answer.body)) if answer.status == 200 else Metrics(None, {})

    async def ranks(self, method: str, *, patience_s: float) -> list[Any]:
        """What every worker of it answers to a method of its extension. Raises EngineUnsupported where it has none."""
        path = "/collective_rpc"
        answer = _Whole(f"{self._name}: {path}")
        body = json_bytes({"method": method, "timeout": patience_s})
        await self._work.ask("POST", path, body, answer, patience_s=patience_s, in_all=True)
        if answer.status in (404, 500):
            raise EngineUnsupported(
                f"{self._name}: its hosts do not report what they compute ({path} answered {answer.status}): start it "
                "with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls mesh.engine.vllm_rank.MeshRank"
            )
        told = (await self._object(path, answer)).get("results")
        if not isinstance(told, list):
            raise EngineUnsupported(f"{self._name}: {path} gave no list of answers")
        return told

    def encode(
        self, model: str, text: str, *, additions: bool, vocabulary: int | None = None
    ) -> Coroutine[Any, Any, list[int]]:
        """Token ids of a text; with `additions` those that the tokenizer puts around one (a beginning of text). They
        are less than `vocabulary`, where that is known here."""
        return self._tokens({"model": model, "prompt": text, "add_special_tokens": additions}, vocabulary)

    async def encode_chat(self, model: str, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation under the server's own chat template."""
        told = [dict(message) for message in messages]
        return await self._tokens({"model": model, "messages": told, "add_generation_prompt": True})

    async def decode(self, model: str, ids: Sequence[int]) -> str:
        answer = await self._post("/detokenize", {"model": model, "tokens": list(ids)})
        text = (await self._object("/detokenize", answer)).get("prompt")
        if type(text) is not str:
            raise EngineUnsupported(f"{self._name}: /detokenize gave no text")
        return text

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One whole completion, as the server spells it."""
        answer = _Whole(self._completions)
        await self._work.ask("POST", _COMPLETIONS, json_bytes(body), answer, patience_s=self._idle_s)
        return await self._object(_COMPLETIONS, answer)

    async def answer(self, body: Mapping[str, Any], *, until: CallOff, patience_s: float) -> tuple[Chunk, Usage]:
        """One whole completion, read. Raises Left where `until` is set before it is there."""
        answer = _Whole(self._completions)
        await self._work.ask("POST", _COMPLETIONS, json_bytes(body), answer, patience_s=patience_s, until=until)
        plain = read_plain(answer.body) if answer.status == 200 else None
        return read_whole(await self._object(_COMPLETIONS, answer)) if plain is None else plain

    async def stream(
        self, body: Mapping[str, Any], take: Callable[[Event], bool], *, until: CallOff | None = None
    ) -> bool:
        """A completion's events, each handed to `take` as it comes; whether that was to the end. It ends early where
        `take` returns false or `until` is set: the connection is closed then, which is how the server learns that
        nobody wants more. Raises what `take` does."""
        answer = _Streamed(self._completions, take)
        try:
            await self._work.ask("POST", _COMPLETIONS, json_bytes(body), answer, patience_s=self._idle_s, until=until)
        except Left:
            return False
        if answer.status != 200:
            self._refused(_COMPLETIONS, answer)
        return True

    # --- plumbing

    async def _probe(self, path: str) -> _Whole:
        answer = _Whole(f"{self._name}: {path}")
        await self._probes.ask("GET", path, None, answer, patience_s=PROBE_S, in_all=True, again=True)
        return answer

    async def _get(self, path: str) -> dict[str, Any]:
        return await self._object(path, await self._probe(path))

    async def _post(self, path: str, body: Mapping[str, Any]) -> _Whole:
        answer = _Whole(f"{self._name}: {path}")
        await self._work.ask("POST", path, json_bytes(body), answer, patience_s=TEXT_S, in_all=True, again=True)
        return answer

    async def _object(self, path: str, answer: _Whole) -> dict[str, Any]:
        if answer.status != 200:
            self._refused(path, answer)
        data = bytes(answer.body)
        try:
            told = await asyncio.to_thread(json.loads, data) if len(data) > _OFF_LOOP_BYTES else json.loads(data)
        except (ValueError, RecursionError):
            raise EngineUnsupported(f"{self._name}: {path} gave no JSON") from None
        if not isinstance(told, dict):
            raise EngineUnsupported(f"{self._name}: {path} gave no object")
        return told

    def _refused(self, path: str, answer: _Whole) -> NoReturn:
        """Raises what the status means. The server's own message is left out: it may quote the prompt."""
        try:
            told = json.loads(answer.body)
        except (ValueError, RecursionError):
            told = None
        error = told.get("error", told.get("detail")) if isinstance(told, dict) else None
        what = f"{self._name}: {path} answered {answer.status}" + (f" ({error_text(error)})" if error else "")
        raise _class_of(answer.status)(what)

    async def _tokens(self, body: Mapping[str, Any], vocabulary: int | None = None) -> list[int]:
        answer = _Whole(self._tokenize)
        await self._work.ask("POST", _TOKENIZE, json_bytes(body), answer, patience_s=TEXT_S, in_all=True, again=True)
        ids = read_tokens(answer.body) if answer.status == 200 else None
        if ids is None:
            await self._object(_TOKENIZE, answer)  # which says where it is no answer at all
            raise EngineUnsupported(f"{self._tokenize} gave no token ids")
        if vocabulary is not None and ids and max(ids) >= vocabulary:
            raise EngineUnsupported("vllm server: tokenized a text to ids that the tokenizer folder does not have")
        return ids


class _Whole(AnswerReader):
    """An answer that is kept to its end; `who` gave it."""

    def __init__(self, who: str) -> None:
        self.body = bytearray()
        self._who = who

    def take(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_ANSWER_BYTES:
            raise EngineFailed(f"{self._who} gave over {MAX_ANSWER_BYTES} bytes")


class _Streamed(_Whole):
    """One whose events are taken as they come, those that came together in one turn; a refusal is kept."""

    def __init__(self, who: str, take: Callable[[Event], bool]) -> None:
        super().__init__(who)
        self._events, self._each = EventReader(), take

    def take(self, data: bytes) -> None:
        if self.status != 200:
            super().take(data)
            return
        plain = self._events.plain(data)
        if plain is not None:
            self._hand_on(plain)
            return
        events: list[Event] = []
        try:
            for event in self._events.feed(data):
                events.append(event)
        finally:  # what came before a fault counts
            self._hand_on(joined(events))

    def _hand_on(self, events: Iterable[Event]) -> None:
        for event in events:
            if not self._each(event):
                raise Left


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
