"""What the HTTP parser refuses: answered in the shape of every other fault, logged in one line that quotes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from tests.gateway.serving import CHAT, house, raw_request, script

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
SECRET = b"sk-a-secret-of-this-test"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HEAD + b"Content-Length: -5\r\n\r\n{}", "the content-length is not valid"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", "the content-length is not valid"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "the chunks of the body are malformed"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n", "the chunks of the body are malformed"),
        (HEAD + b"Authorization: Bearer " + SECRET * 1000 + b"\r\n\r\n", "a line or a header is too long"),
        (HEAD + b"X: a\r\n" * 5000 + b"\r\n", "it has too many headers"),
        (HEAD + b"Authorization: " + SECRET + b"\0\r\n\r\n", "a header is malformed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the method is not valid"),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "the target is not valid"),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", "not a valid http/1.1 request"),
    ],
    ids=[
        "length",
        "two-lengths",
        "chunk",
        "later-chunk",
        "long-header",
        "headers",
        "header",
        "tls",
        "target",
        "version",
    ],
)
def test_request_that_cannot_be_read_is_told_why(
    tmp_path: Path, data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> bytes:
        async with house(tmp_path) as gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            writer.write(data)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

    head, _, body = asyncio.run(main()).partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    assert b"Server: mesh" in head
    error = {"message": words, "type": "invalid_request_error", "param": None, "code": "malformed_request"}
    assert json.loads(body) == {"error": error}
    (record,) = [record for record in caplog.records if record.name == "mesh.gateway.http"]
    assert (record.levelno, record.exc_info) == (logging.INFO, None)
    assert record.getMessage().startswith("request that cannot be read from 127.0.0.1: ")
    assert SECRET.decode() not in caplog.text


def test_request_with_two_keys_is_not_served_under_one_of_them(tmp_path: Path) -> None:
    async def main() -> bytes:
        async with house(tmp_path) as gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            twice = b"\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\nConnection: close\r\nHost:"
            writer.write(raw_request(script()).replace(b"\r\nHost:", twice, 1))
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert gate.steward.reader.count() == 0
            return answer

    head, _, body = asyncio.run(main()).partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    error = json.loads(body)["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "Idempotency-Key")
