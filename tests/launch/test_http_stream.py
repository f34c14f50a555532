"""Streams of completions as servers send them: timed, counted, and told apart from those that fail."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from mesh.launch.http_stream import Client, Streamed

OK = b"HTTP/1.1 200 OK\r\n"
BODY = {"model": "m", "prompt": "p", "stream": True}


def event(told: Any) -> bytes:
    return b"data: " + (told if isinstance(told, bytes) else json.dumps(told).encode()) + b"\n\n"


TOKENS = [
    event({"choices": [{"text": ""}]}),
    event({"choices": [{"text": "a"}]}),
    b": a comment\n\n",
    event({"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}]}),
    event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
    event(b"[DONE]"),
]


def chunked(pieces: Iterable[bytes]) -> bytes:
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def talk(answer: bytes, *, split: int | None = None, timeout_s: float = 20) -> Streamed:
    """What a client makes of a server that sends these bytes, in pieces of `split`, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):  # one that has read enough is gone
                await answered(reader, writer)
        finally:
            writer.transport.abort()
            ended.set()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        for at in range(0, len(answer), split or len(answer) or 1):
            writer.write(answer[at : at + (split or len(answer))])
            await writer.drain()
        writer.write_eof()
        await reader.read()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ticks = itertools.count(0, 10)
    client = Client(lambda: asyncio.open_connection("127.0.0.1", port), "x", lambda: next(ticks))
    async with server:
        got = await client.stream("/v1/completions", BODY, timeout_s=timeout_s)
        await ended.wait()
        return got


@pytest.mark.parametrize("split", [None, 1, 7])
@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(TOKENS),
        OK + b"Content-Length: %d\r\n\r\n" % len(b"".join(TOKENS)) + b"".join(TOKENS),
        OK + b"\r\n" + b"".join(TOKENS),
        OK + b"transfer-encoding: Chunked\r\n\r\n" + chunked([b"".join(TOKENS)]),
    ],
)
def test_stream_is_counted_and_timed_however_it_is_framed(answer: bytes, split: int | None) -> None:
    got = asyncio.run(talk(answer, split=split))
    assert (got.failed, got.prompt_tokens, got.output_tokens, got.finish) == (None, 7, 2, "length")
    assert got.first_ns is not None
    assert got.last_ns is not None
    assert 0 < got.first_ns <= got.last_ns <= got.total_ns


def test_events_of_one_read_came_at_one_time() -> None:
    """However long it takes to go through them, and however they are framed."""
    texts = [event({"choices": [{"text": "a"}]})] * 9
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked([*texts, event(b"[DONE]")])
    together = asyncio.run(talk(answer))
    assert (together.events, together.pieces, together.failed) == (9, 1, None)
    assert together.first_ns == together.last_ns
    apart = asyncio.run(talk(answer, split=1))
    assert apart.events == 9
    assert apart.pieces >= 1


def test_stream_without_usage_counts_no_tokens() -> None:
    got = asyncio.run(talk(OK + b"\r\n" + b"".join([*TOKENS[:4], TOKENS[5]])))
    assert (got.failed, got.prompt_tokens, got.output_tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the connection ended without an answer"),
        (b"SSH-2.0-x\r\n\r\n", "what answers is no HTTP server"),
        (b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n{}", "status 503"),
        (b"HTTP/1.1 400 x\r\n\r\n" + json.dumps({"error": {"message": "too\nlong"}}).encode(), "status 400: too long"),
        (b"HTTP/1.1 404 x\r\n\r\n<html>", "status 404"),
        (OK + b"\r\n" + TOKENS[1], "the stream broke off before its end"),
        (OK + b"\r\n" + TOKENS[5], "the stream ended without a token"),
        (OK + b"\r\n" + event(b"{"), "an event that is no json"),
        (OK + b"\r\n" + event(b"[]"), "an event that is no object"),
        (OK + b"\r\n" + event({"error": {"message": "out of memory"}}), "the engine failed: out of memory"),
        (OK + b"Content-Length: 999\r\n\r\n" + TOKENS[1], "bytes of an answer of 999"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "a chunk of size b'zz'"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\ndata", "broke off in a chunk"),
    ],
)
def test_stream_that_fails_says_why(answer: bytes, words: str) -> None:
    got = asyncio.run(talk(answer))
    assert got.failed is not None
    assert words in got.failed


def test_silent_server_and_one_that_is_not_there_are_failures() -> None:
    async def main() -> tuple[Streamed, Streamed]:
        ended = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            ended.set()

        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(lambda: asyncio.open_connection("127.0.0.1", port), "x", lambda: 0)
        async with server:
            silent = await client.stream("/", BODY, timeout_s=0.05)
            await ended.wait()
        return silent, await client.stream("/", BODY, timeout_s=20)

    silent, gone = asyncio.run(main())
    assert (silent.failed, gone.failed) == ("no end within 0.05 s", "nobody listens")
