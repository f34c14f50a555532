"""`mesh chat` against a real gateway."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

from mesh.engine.reference import ReferenceEngine
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from tests.support.stewards import running

API_KEY = "a secret of this test"


@dataclass(frozen=True)
class Server:
    url: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway on a thread of its own, which asks for a key."""
    folder = tmp_path_factory.mktemp("gateway")
    digest = f"b3:{blake3(API_KEY.encode()).hexdigest()}"
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> int:
        steward = await stack.enter_async_context(running(folder))
        gateway = Gateway(steward, [ReferenceEngine()], GatewayConfig(), keys=[digest])
        stack.push_async_callback(gateway.stop)
        return await gateway.start("127.0.0.1", 0)

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(autouse=True)
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_API_KEY", API_KEY)


def test_chat_streams_the_answer_and_names_the_receipt(mesh, server: Server) -> None:
    result = mesh("chat", "--url", server.url, "--message", "hello", "--max-tokens", "5")
    assert result.code == 0
    assert len(result.out.split()) == 5
    assert result.err.startswith("receipt b3:")
    assert result.err.endswith(" tokens in, 5 out\n")


def test_chat_saves_what_verify_and_replay_take(mesh, server: Server, trusted, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    told = mesh(
        "chat", "--url", f"{server.url}/v1/", "--message", "hello", "--max-tokens", "5", "--system", "be brief",
        "--disclose", folder, "--trust", trusted, "--json",
    ).json  # fmt: skip
    assert told["verified"] is True
    assert told["usage"]["completion_tokens"] == 5
    receipt, disclosure = told["receipt_file"], told["disclosure_file"]
    verified = mesh("verify", receipt, "--trust", trusted, "--json").json
    assert verified["listed"][0]["receipt_id"] == told["receipt_id"]
    replayed = mesh("replay", receipt, disclosure, "--trust", trusted, "--reference", "--json")
    assert (replayed.code, replayed.json["verdict"], replayed.json["prompt"]) == (0, "verified", "checked")


def test_chat_refuses_a_receipt_of_a_steward_that_is_not_trusted(mesh, server: Server, stranger) -> None:
    argv = ("chat", "--url", server.url, "--message", "hello", "--max-tokens", "2", "--trust", stranger)
    assert mesh(*argv).code == 11


def test_chat_carries_the_conversation_on(mesh, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n\nnever asked\n"))
    result = mesh("chat", "--url", server.url, "--max-tokens", "3")
    assert result.code == 0
    assert len(result.out.splitlines()) == 2
    first, second = (int(line.split(": ")[1].split()[0]) for line in result.err.splitlines())
    assert second > first  # the second prompt holds the first question and its answer


def test_chat_names_the_gateway_s_refusal(mesh, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    result = mesh("chat", "--url", server.url, "--message", "x", "--model", "none", "--json")
    assert (result.code, result.json["error"]["code"]) == (10, "model_not_found")
    monkeypatch.setenv("MESH_API_KEY", "wrong")
    assert mesh("chat", "--url", server.url, "--message", "x").code == 10
    monkeypatch.setenv("MESH_API_KEY", "größer€")
    assert mesh("chat", "--url", server.url, "--message", "x").code == 2


def test_chat_without_a_gateway_could_not_run(mesh) -> None:
    result = mesh("chat", "--url", "http://127.0.0.1:1", "--message", "x")
    assert (result.code, result.err) == (3, "mesh chat: http://127.0.0.1:1: connection refused\n")


@pytest.mark.parametrize(
    "url",
    [
        "nope",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:port",
        "http://[::1",
        "http://a..b",
        f"http://{'a' * 64}",
    ],
)
def test_chat_refuses_what_is_no_address(mesh, url: str) -> None:
    assert mesh("chat", "--url", url, "--message", "x").code == 2


@pytest.mark.parametrize("key", ["two\nlines", "\N{SNOWMAN}", "tail\r"])
def test_chat_refuses_a_key_that_no_header_can_carry_and_does_not_show_it(
    mesh, server: Server, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MESH_API_KEY", key)
    result = mesh("chat", "--url", server.url, "--message", "x")
    assert (result.code, result.err) == (2, "mesh chat: the API key holds characters that no header can carry\n")


def test_chat_json_is_for_one_message(mesh) -> None:
    assert mesh("chat", "--json").code == 2
