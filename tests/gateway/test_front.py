"""Requests find their handlers, by the path alone or by looking for it, and every answer is marked."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from mesh.engine.reference import ReferenceEngine
from tests.gateway.serving import CHAT, House, ask, house

BODY = json.dumps(ask()).encode()
MARKS = ("server: mesh", "x-content-type-options: nosniff", "cache-control: no-store")


async def said(gate: House, method: str, target: str, *more: str, body: bytes = b"") -> tuple[int, list[str], bytes]:
    """Status, the head's lines in small letters, body: of one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    head = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *more]
    head += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    writer.write("\r\n".join((*head, "", "")).encode() + body)
    try:
        line, _, rest = (await reader.read()).partition(b"\r\n")
        lines, _, answer = rest.partition(b"\r\n\r\n")
        return int(line.split()[1]), lines.decode().lower().split("\r\n"), answer
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", CHAT, 200),
        ("POST", f"{CHAT}?api-version=1", 200),
        ("POST", CHAT.replace("chat", "%63hat"), 200),
        ("POST", f"http://elsewhere{CHAT}", 200),
        ("POST", f"{CHAT}/", 404),
        ("POST", f"/{CHAT}", 404),
        ("POST", CHAT.replace("/chat/", "%2Fchat/"), 404),
        ("GET", CHAT, 405),
        ("OPTIONS", CHAT, 405),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/v1/models/reference", 200),
        ("HEAD", "/v1/models/reference", 200),
        ("GET", "/v1/models/another", 404),
    ],
)
def test_requests_find_their_routes_and_answers_are_marked(
    tmp_path: Path, method: str, target: str, status: int
) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine()) as gate:
            found, head, body = await said(gate, method, target, body=BODY if method == "POST" else b"")
            assert found == status, body
            assert [line for line in head if line.startswith(("server:", "x-content-", "cache-"))] == sorted(
                MARKS, key=head.index
            )
            assert ("allow: post" in head) is (status == 405)
            assert method == "HEAD" or json.loads(body)

    asyncio.run(main())


def test_a_stream_is_marked(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine()) as gate:
            status, head, _ = await said(gate, "POST", CHAT, body=json.dumps(ask(stream=True)).encode())
            assert status == 200
            assert set(MARKS) < set(head)

    asyncio.run(main())


async def answered(gate: House, version: str, connection: str) -> tuple[str, dict[str, str], bytes]:
    """Status line, head and body of an answer to a client that says nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    head = ("Host: localhost", f"Connection: {connection}", "Content-Type: application/json")
    writer.write("\r\n".join((f"POST {CHAT} {version}", *head, f"Content-Length: {len(BODY)}", "", "")).encode() + BODY)
    line, *lines, _, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    told = dict(one.lower().split(": ", 1) for one in lines)
    assert len(told) == len(lines)
    body = await reader.readexactly(int(told["content-length"]))
    writer.close()
    await writer.wait_closed()
    return line, told, body


def test_an_answer_says_the_same_whether_or_not_its_connection_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine()) as gate:
            ways = (
                ("HTTP/1.1", "keep-alive"),
                ("HTTP/1.1", "close"),
                ("HTTP/1.0", "keep-alive"),
                ("HTTP/1.0", "close"),
            )
            alike = set()
            for version, connection in ways:
                line, told, body = await answered(gate, version, connection)
                assert line == f"{version} 200 OK"
                told_of_it = {"HTTP/1.1": "close", "HTTP/1.0": "keep-alive"}[version]
                assert told.pop("connection", None) == (told_of_it if connection == told_of_it else None)
                assert parsedate_to_datetime(told["date"]).tzinfo is UTC
                assert told["mesh-receipt"] == json.loads(body)["mesh"]["receipt_id"]
                alike.add((tuple(sorted(told)), told["content-type"], told["server"], told["cache-control"]))
            assert len(alike) == 1

    asyncio.run(main())


def test_whoever_asks_before_sending_is_told_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine()) as gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            head = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(BODY)}")
            writer.write("\r\n".join((f"POST {CHAT} HTTP/1.1", *head, "Expect: 100-continue", "", "")).encode())
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_another_expectation_fails_like_every_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine()) as gate:
            status, head, body = await said(gate, "POST", CHAT, "Expect: a miracle", body=BODY)
            assert status == 417
            assert set(MARKS) < set(head)
            assert json.loads(body)["error"]["message"] == "expectation failed"

    asyncio.run(main())
