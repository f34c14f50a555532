"""Asking a server: every way in which the answer can be no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from mesh.engine import vllm_http
from mesh.engine.vllm_http import VllmServer, read_metrics, server_url
from mesh.engine.vllm_stream import Chunk, Done, Usage
from mesh.errors import EngineError, EngineFailed, EngineUnavailable, EngineUnsupported, UsageError
from tests.support.fake_vllm import FakeVllm, running, silence, status
from tests.support.vllm_folder import encode

BODY: dict[str, Any] = {
    "model": "tiny", "prompt": [40, 41, 60], "max_tokens": 3, "temperature": 0, "ignore_eos": True,
    "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip

Ask = Callable[[VllmServer], Awaitable[Any]]


async def streamed(server: VllmServer) -> list[Any]:
    events: list[Any] = []

    def take(event: Any) -> bool:
        events.append(event)
        return True

    assert await server.stream(BODY, take)
    return events


async def whole(server: VllmServer) -> Any:
    return await server.complete({**BODY, "stream": False})


QUESTIONS: dict[str, tuple[str, Ask]] = {
    "version": ("/version", lambda server: server.version()),
    "models": ("/v1/models", lambda server: server.models()),
    "encode": ("/tokenize", lambda server: server.encode("tiny", "hi", additions=False)),
    "encode_chat": ("/tokenize", lambda server: server.encode_chat("tiny", [{"role": "user", "content": "hi"}])),
    "decode": ("/detokenize", lambda server: server.decode("tiny", [40])),
    "complete": ("/v1/completions", whole),
    "stream": ("/v1/completions", streamed),
}


@asynccontextmanager
async def asking(fake: FakeVllm, *, key: str | None = None, idle_s: float = 60) -> AsyncIterator[VllmServer]:
    server = VllmServer(fake.url, key=key, connections=4, idle_s=idle_s)
    try:
        yield server
    finally:
        await server.close()


def asked(ask: Ask, *, key: str | None = None, idle_s: float = 60, **told: Any) -> Any:
    async def main() -> Any:
        async with running(**told) as fake, asking(fake, key=key, idle_s=idle_s) as server:
            return await ask(server)

    return asyncio.run(main())


def failure(ask: Ask, kind: type[EngineError], **told: Any) -> str:
    with pytest.raises(EngineError) as caught:
        asked(ask, **told)
    assert type(caught.value) is kind
    assert str(caught.value).startswith("vllm server")
    return str(caught.value)


def raw(data: bytes, *, content_type: str = "application/json") -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=data, headers={"Content-Type": content_type})

    return answer


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://host/under/v1/", "https://host/under"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_a_url_is_the_root_of_a_server(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host:0", "http://host:70000", "http://host:x",
     "http://h/?a=1", "http://h/#x", "http://[::1"],
)  # fmt: skip
def test_what_is_no_url_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="vllm server"):
        server_url(text)


def test_a_credential_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        server_url("http://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


def test_a_server_answers() -> None:
    async def ask(server: VllmServer) -> None:
        assert await server.version() == "0.32.0"
        (card,) = await server.models()
        assert (card.name, card.root, card.context_tokens) == ("tiny", "tiny", 2048)
        assert (await server.metrics()).cache["block_size"] == "16"
        assert await server.encode("tiny", "hi", additions=False) == encode("hi")
        assert await server.decode("tiny", encode("hi")) == "hi"
        *chunks, usage, done = await streamed(server)
        assert isinstance(usage, Usage)
        assert isinstance(done, Done)
        ids = [token for chunk in chunks if isinstance(chunk, Chunk) for token in chunk.tokens or ()]
        assert ids == (await whole(server))["choices"][0]["token_ids"]

    asked(ask)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, EngineFailed), (401, EngineUnsupported), (403, EngineUnsupported), (404, EngineUnsupported),
        (405, EngineUnsupported), (429, EngineUnavailable), (500, EngineFailed), (502, EngineUnavailable),
        (503, EngineUnavailable), (504, EngineUnavailable), (204, EngineFailed), (302, EngineFailed),
    ],
)  # fmt: skip
def test_a_status_is_told_and_the_servers_words_are_not(question: str, code: int, kind: type[EngineError]) -> None:
    path, ask = QUESTIONS[question]
    told = failure(ask, kind, instead={path: status(code)})
    assert f"{path} answered {code}" in told
    assert "it is so" not in told


def test_a_key_is_sent_and_missed() -> None:
    async def main() -> None:
        async with running(key="k") as fake:
            async with asking(fake, key="k") as server:
                events = await streamed(server)
                assert sum(len(event.tokens or ()) for event in events if isinstance(event, Chunk)) == 3
                assert isinstance(events[-1], Done)
            for wrong in (None, "other"):
                async with asking(fake, key=wrong) as server:
                    with pytest.raises(EngineUnsupported, match=r"answered 401 \(Unauthorized\)"):
                        await server.models()

    asyncio.run(main())


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_redirect_is_not_followed(question: str) -> None:
    """It would take the prompt, and the key, to another host."""
    path, ask = QUESTIONS[question]

    async def away(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    assert f"{path} answered 307" in failure(ask, EngineFailed, instead={path: away})


def test_bodies_of_refusals_may_be_anything() -> None:
    for data in (b"", b"\xff", b"[1]", b"[" * 100_000, b'{"error": null}', b'{"detail": ["a"]}', b'{"error": "x\x1b"}'):

        async def refused(request: web.Request, data: bytes = data) -> web.StreamResponse:
            return web.Response(status=500, body=data)

        assert failure(whole, EngineFailed, instead={"/v1/completions": refused}).isprintable()


@pytest.mark.parametrize(
    ("question", "data", "words"),
    [
        ("version", b"{}", "names none: no vLLM"),
        ("version", b'{"version": 3}', "names none: no vLLM"),
        ("version", b'{"version": "1 2"}', "names none: no vLLM"),
        ("version", b"not json", "/version gave no JSON"),
        ("version", b"[]", "/version gave no object"),
        ("models", b"{}", "not a list of models"),
        ("models", b'{"data": [{"id": 3}]}', "not a list of models"),
        ("models", b'{"data": ["tiny"]}', "not a list of models"),
        ("encode", b"{}", "/tokenize gave no token ids"),
        ("encode", b'{"tokens": [1.5]}', "/tokenize gave no token ids"),
        ("encode", b'{"tokens": [true]}', "/tokenize gave no token ids"),
        ("encode_chat", b'{"tokens": [-1]}', "/tokenize gave no token ids"),
        ("decode", b'{"prompt": null}', "/detokenize gave no text"),
        ("complete", b"[" * 100_000, "/v1/completions gave no JSON"),
    ],
)
def test_an_answer_of_another_shape_is_named(question: str, data: bytes, words: str) -> None:
    path, ask = QUESTIONS[question]
    assert words in failure(ask, EngineUnsupported, instead={path: raw(data)})


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_http, "MAX_ANSWER_BYTES", 10_000)
    told = failure(whole, EngineFailed, instead={"/v1/completions": raw(b" " * 10_001)})
    assert "gave over 10000 bytes" in told


def test_fields_of_a_card_that_are_of_another_type_are_unknown() -> None:
    data = json.dumps({"data": [{"id": "a", "root": 3, "max_model_len": "8"}, {"id": "b", "max_model_len": 0}]})
    cards = asked(lambda server: server.models(), instead={"/v1/models": raw(data.encode())})
    assert [(card.root, card.context_tokens) for card in cards] == [(None, None), (None, None)]


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def main() -> None:
        async with running() as fake, asking(fake) as server:
            await fake.stop()
            for _, ask in QUESTIONS.values():
                with pytest.raises(EngineUnavailable, match="cannot be reached"):
                    await ask(server)
            await fake.start()
            assert await server.version() == "0.32.0"

    asyncio.run(main())


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROBE_S", "TEXT_S"):
        monkeypatch.setattr(vllm_http, name, 0.05)
    for path, ask in QUESTIONS.values():
        assert "nothing came for too long" in failure(ask, EngineFailed, instead={path: silence}, idle_s=0.05)


def test_a_stream_that_falls_silent_is_given_up() -> None:
    told = failure(streamed, EngineFailed, hold_at=2, idle_s=0.05)
    assert "nothing came for too long" in told


async def _hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _cut_short(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"version')
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("fault", [_hang_up, _cut_short])
def test_a_connection_that_breaks_is_a_failure(question: str, fault: Any) -> None:
    path, ask = QUESTIONS[question]
    assert "the connection broke" in failure(ask, EngineFailed, instead={path: fault})


def test_leaving_a_stream_is_seen_by_the_server() -> None:
    async def main() -> None:
        async with running(hold_at=2) as fake, asking(fake) as server:
            assert not await server.stream(BODY, lambda event: False)
            await fake.until(lambda: fake.aborted == 1)
            assert fake.in_flight == 0

    asyncio.run(main())


def test_no_more_connections_than_were_asked_for() -> None:
    async def main() -> None:
        async with running(hold_at=0) as fake, asking(fake) as server:
            tasks = [asyncio.create_task(streamed(server)) for _ in range(9)]
            await fake.held.wait()
            assert await server.version() == "0.32.0"  # what it is can be asked while all are busy
            assert fake.in_flight <= 4
            fake.go.set()
            answers = await asyncio.gather(*tasks)
            assert all(isinstance(answer[-1], Done) for answer in answers)

    asyncio.run(main())


def test_a_replaced_server_cannot_pass_for_the_one_before() -> None:
    async def main() -> None:
        async with running() as fake, asking(fake) as server:
            await server.version()
            assert [surely for _ in range(3) for _, surely in [await server.met_again()]] == [True] * 3
            await fake.restart()
            cards, surely = await server.met_again()
            assert [card.name for card in cards] == ["tiny"]
            assert not surely

    asyncio.run(main())


def test_metrics_are_read_or_absent() -> None:
    text = (
        b"# HELP a\nprocess_start_time_seconds 1.79602459633e+09\n"
        b'vllm:cache_config_info{block_size="128",odd="a\\"b,c=\\"d",enable_prefix_caching="True"} 1.0\nbroken{ 3\n\xff'
    )
    metrics = read_metrics(text)
    assert metrics.started_s == "1.79602459633e+09"
    assert metrics.cache["block_size"] == "128"
    assert metrics.cache["enable_prefix_caching"] == "True"
    assert read_metrics(b"") == vllm_http.Metrics(None, {})
    assert asked(lambda server: server.metrics(), instead={"/metrics": status(404)}) == vllm_http.Metrics(None, {})
