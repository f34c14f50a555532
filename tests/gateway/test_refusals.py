"""What is turned down before any work: each with its status, in OpenAI's shape, without a receipt."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
from pathlib import Path
from typing import Any

import openai
import pytest
import yarl
from blake3 import blake3

from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineUnavailable, UsageError
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from tests.gateway.serving import CHAT, TEXT, House, Reply, Scripted, ask, house, raw_request, script
from tests.support.stewards import running

JSON = {"Content-Type": "application/json"}
KEY = "sk-a-secret-of-this-test"
DIGEST = "b3:" + blake3(KEY.encode()).hexdigest()


async def send(gate: House, data: bytes, path: str = CHAT, **headers: str) -> Reply:
    named = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    async with gate.http.post(path, data=io.BytesIO(data), headers=named) as response:
        return Reply(response.status, response.headers.copy(), await response.read())


# SG-01, SG-03
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_hostile_bodies_are_refused_and_nothing_is_charged(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with house(tmp_path, max_body_bytes=1 << 20) as gate:
            bomb = gzip.compress(b"a" * 200_000_000, compresslevel=1)
            assert len(bomb) < 1 << 20
            rows: list[tuple[bytes, dict[str, str], tuple[int, str]]] = [
                (b'{"cap":1,"cap":9}', {}, (400, "duplicate_key")),
                (b'{"model":"reference","mesh":{"disclose":true,"disclose":false}}', {}, (400, "duplicate_key")),
                (b"[" * 100_000, {}, (400, "malformed_body")),
                (b'{"a":' + b"[" * 100_000, {}, (400, "malformed_body")),
                (b'{"max_tokens":' + b"9" * 5000 + b"}", {}, (400, "malformed_body")),
                (b"\xff{}", {}, (400, "malformed_body")),
                (b"{" + b" " * (1 << 20) + b"}", {}, (413, "body_too_large")),
                (bomb, {"Content_Encoding": "gzip"}, (413, "body_too_large")),
                (b"(\xb5/\xfd\x04X", {"Content_Encoding": "zstd"}, (415, "unsupported_encoding")),
                (b"{}", {"Content_Encoding": "br"}, (415, "unsupported_encoding")),
                (b"{}", {"Content_Type": "text/plain"}, (415, "unsupported_media_type")),
                (b"{}", {"Content_Type": "application/x-www-form-urlencoded"}, (415, "unsupported_media_type")),
            ]
            for data, headers, code in rows:
                reply = await send(gate, data, path, **headers)
                assert reply.code == code
                if code[0] == 413:
                    assert str(1 << 20) in reply.error["message"]
            assert gate.steward.reader.count() == 0
            assert (await gate.post(ask())).status == 200

    asyncio.run(main())


def test_compressed_request_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await send(gate, gzip.compress(json.dumps(ask()).encode()), Content_Encoding="gzip")
            assert reply.status == 200

    asyncio.run(main())


def test_long_prompt_is_served_off_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(ask("x" * 200_000))
            assert (reply.status, reply.json["usage"]["prompt_tokens"] > 200_000) == (200, True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "another"}, (404, "model_not_found")),
        ({"messages": None}, (400, "invalid_value")),
        ({"unknown": 1}, (400, "unknown_parameter")),
        ({"tools": [{}]}, (400, "invalid_value")),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, (400, "unsupported_parameter")),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}, (400, "unsupported_parameter")),
        ({"n": 17}, (400, "invalid_value")),
        ({"logprobs": True}, (400, "unsupported_parameter")),
        ({"stop": ["x"]}, (400, "no_candidate")),  # the reference engine cannot
        ({"mesh": {"fidelity_floor": 3}}, (400, "no_candidate")),
        ({"mesh": {"joule_ceiling_uj": 1}}, (400, "no_candidate")),
    ],
)
def test_request_that_cannot_be_served_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: tuple[int, str]
) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for streamed in (False, True):
                reply = await gate.post(ask(stream=streamed, **fields))
                assert reply.code == code
                assert reply.error["type"] == "invalid_request_error"
                assert "Mesh-Serve" not in reply.headers
            if code[1] == "no_candidate":
                assert list(reply.error["reasons"]) == ["reference"]
            assert gate.steward.reader.count() == 0

    asyncio.run(main())


@pytest.mark.parametrize("prompt", [[], "", [31_999, 32_000], [2**32 - 1]])
def test_prompt_without_known_tokens_is_refused(tmp_path: Path, prompt: Any) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post({"model": "reference", "prompt": prompt}, path=TEXT)
            assert (reply.status, reply.error["param"]) == (400, "prompt")

    asyncio.run(main())


def test_unknown_routes_have_the_same_shape(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            assert (await gate.get("/v1/nothing")).code == (404, "unknown_route")
            wrong = await gate.get(CHAT)
            assert (wrong.code, wrong.headers["Allow"]) == ((405, "method_not_allowed"), "POST")
            async with gate.http.options(CHAT, headers={"Origin": "https://evil.example"}) as response:
                assert (response.status, "Access-Control-Allow-Origin" in response.headers) == (405, False)

    asyncio.run(main())


def test_page_of_another_name_for_this_machine_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            assert (await gate.post(ask(), Host="evil.example")).code == (403, "host_not_loopback")
            assert (await gate.get("/mesh/v1/steward", Host=f"localhost:{gate.port}")).status == 200

    asyncio.run(main())


def test_other_address_without_keys_is_not_bound(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as steward:
            gateway = Gateway(steward, [ReferenceEngine()], GatewayConfig())
            with pytest.raises(UsageError, match="not loopback"):
                await gateway.start("0.0.0.0", 0)
            await gateway.stop()
            guarded = Gateway(steward, [ReferenceEngine()], GatewayConfig(), keys=[DIGEST])
            assert await guarded.start("0.0.0.0", 0)
            await guarded.stop()

    asyncio.run(main())


def test_two_engines_of_one_name_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as steward:
            with pytest.raises(UsageError, match="one model name"):
                Gateway(steward, [ReferenceEngine(), ReferenceEngine()], GatewayConfig())

    asyncio.run(main())


def test_keys_guard_everything_but_health(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST]) as gate:
            for path in ("/v1/models", "/mesh/v1/steward", "/mesh/v1/receipts/x", "/nothing"):
                refused = await gate.get(path)
                assert refused.code == (401, "missing_api_key")
                assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert (await gate.post(ask(), Authorization="Bearer sk-wrong")).code == (401, "invalid_api_key")
            assert (await gate.get("/healthz")).status == (await gate.get("/readyz")).status == 200
            async with gate.sdk(api_key="sk-wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
            async with gate.sdk(api_key=KEY) as client:
                answer: Any = await client.chat.completions.create(**ask())
            entry = gate.steward.reader.by_serve(gate.receipt(answer.mesh["receipt_id"]).value.serve_id)
            assert entry is not None
            assert entry.caller == f"key:{DIGEST[3:19]}"

    asyncio.run(main())
    assert KEY not in caplog.text
    assert "sk-wrong" not in caplog.text


def test_path_cannot_forge_lines_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mesh.access")

    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST]) as gate:
            path = yarl.URL("/mesh/v1/receipts/x%0AGET%20forged%1B%5B31m", encoded=True)
            async with gate.http.get(path) as response:
                assert response.status == 401

    asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "mesh.access"]
    assert line.isprintable()
    assert "/mesh/v1/receipts/x%0AGET%20forged%1B%5B31m 401" in line


def test_line_that_is_not_http_is_not_quoted_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with house(tmp_path) as gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            writer.write(f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\0\r\n\r\n".encode())
            assert b" 400 " in (await reader.read()).partition(b"\r\n")[0]
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())
    assert any(record.name == "mesh.gateway.http" for record in caplog.records)
    assert KEY not in caplog.text


def test_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, body_timeout_s=1) as gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            writer.write(raw_request(ask())[:-1])
            assert b" 408 " in await reader.readline()
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_full_queue_is_told_when_to_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, slots=1)
        async with house(tmp_path, engine, queue=1) as gate:
            running_one = asyncio.ensure_future(gate.post(script()))
            await engine.held.wait()
            waiting = asyncio.ensure_future(gate.post(script()))
            while gate.gateway.backends.all[0].room.waiting == 0:
                await asyncio.sleep(0)
            refused = await gate.post(script())
            assert refused.code == (429, "overloaded")
            assert refused.error["type"] == "rate_limit_error"
            assert int(refused.headers["Retry-After"]) >= 1
            engine.go.set()
            assert [(await each).status for each in (running_one, waiting)] == [200, 200]
            assert (engine.serves, gate.steward.reader.count()) == (2, 2)

    asyncio.run(main())


def test_request_that_leaves_the_queue_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, slots=1)
        async with house(tmp_path, engine) as gate:
            running_one = asyncio.ensure_future(gate.post(script()))
            await engine.held.wait()
            room = gate.gateway.backends.all[0].room
            waiting = asyncio.ensure_future(gate.post(script()))
            while room.waiting == 0:
                await asyncio.sleep(0)
            waiting.cancel()
            while room.waiting == 1:
                await asyncio.sleep(0)
            engine.go.set()
            assert (await running_one).status == 200
            assert (await gate.post(script())).status == 200
            assert gate.steward.reader.count() == 2

    asyncio.run(main())


def test_engine_that_is_not_ready_is_said_so(tmp_path: Path) -> None:
    class Loading(ReferenceEngine):
        loading = True

        async def ready(self) -> None:
            if self.loading:
                raise EngineUnavailable("reference engine: loads its model", retry_after_s=17)

    async def main() -> None:
        engine = Loading()
        async with house(tmp_path, engine) as gate:
            refused = await gate.post(ask())
            assert refused.code == (503, "engine-unavailable")
            assert refused.headers["Retry-After"] == "17"
            assert (await gate.get("/healthz")).status == 200
            ready = await gate.get("/readyz")
            assert (ready.status, ready.json["reasons"]) == (503, ["reference: reference engine: loads its model"])
            engine.loading = False
            assert (await gate.get("/readyz")).status == (await gate.post(ask())).status == 200
            assert gate.steward.reader.count() == 1

    asyncio.run(main())


def test_what_nobody_foresaw_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ReferenceEngine):
        async def encode(self, text: str, *, special: bool) -> list[int]:
            raise RuntimeError(f"cannot encode {text}")

    async def main() -> None:
        async with house(tmp_path, Broken()) as gate:
            reply = await gate.post(ask("my secret"))
            assert reply.code == (500, "internal")
            assert b"secret" not in reply.body

    asyncio.run(main())
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
