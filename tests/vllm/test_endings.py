"""Streams that end otherwise than by themselves: the server dies under them, or the client leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.support.stewards import running
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.asking import CHAT, chat, events
from tests.vllm.servers import ENVIRONMENT, FLAGS, START_S, RealServer

# Half a minute at the quickest. On a small machine the server is busier with computing than with telling: the first of
# 1,500 ids may come with the last.
CONTEXT = 32_768
LONG: dict[str, Any] = {"max_tokens": 30_000, "ignore_eos": True, "stream": True}


class Served:
    """`mesh serve --vllm-managed`, ready to be asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "mesh serve ended before it served"
        self.port = int(json.loads("".join(lines))["url"].rpartition(":")[2])

    def tree(self) -> list[psutil.Process]:
        """The server's processes and their keeper; the gateway has other children that outlive a server."""
        ours = psutil.Process(self.process.pid).children()
        keepers = [one for one in ours if "vllm_keeper" in "".join(one.cmdline())]
        return [process for keeper in keepers for process in (keeper, *keeper.children(recursive=True))]

    def get(self, path: str) -> tuple[int, Any]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", path, headers={"Accept": "application/json"})
            with connection.getresponse() as response:
                return response.status, json.loads(response.read())

    def answer(self, **fields: Any) -> tuple[int, Any]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(
                "POST", CHAT, json.dumps(chat("tiny", "hello", **fields)), {"Content-Type": "application/json"}
            )
            with connection.getresponse() as response:
                return response.status, json.loads(response.read())


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can go on for long."""
    return write_tiny_hf(tmp_path_factory.mktemp("patient") / "tiny", context=CONTEXT)


@pytest.fixture(scope="module")
def served(executable: Path, patient: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    command = [
        sys.executable, "-m", "mesh.cli.main", "serve", "--vllm-managed", patient, "--vllm-executable", executable,
        "--device", "cpu", "--name", "tiny", "--state", tmp_path_factory.mktemp("state"), "--port", "0", "--json", "--",
        "--dtype", "float32", *FLAGS, "--max-model-len", str(CONTEXT),
    ]  # fmt: skip
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Served(process)
            tree = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert not [one for one in tree if one.is_running()], "processes were left behind"
        finally:
            process.kill()


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.1)


def engine_core(one: psutil.Process) -> bool:
    return "EngineCore" in "".join(one.cmdline())


def api_server(one: psutil.Process) -> bool:
    return "serve" in one.cmdline() and "vllm_keeper" not in "".join(one.cmdline())


def everything(one: psutil.Process) -> bool:
    return True


@pytest.mark.parametrize("victim", [engine_core, api_server, everything])
def test_death_of_the_server_in_mid_stream_is_an_honest_end(
    served: Served, victim: Callable[[psutil.Process], bool]
) -> None:
    tree = served.tree()
    victims = [one for one in tree if victim(one)]
    assert victims

    async def cut() -> tuple[str, list[str]]:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as http,
            http.post(CHAT, json=chat("tiny", "hello", **LONG)) as response,
        ):
            seen = []
            async for line in events(response):
                seen.append(line)
                if len(seen) == 5:
                    for one in victims:
                        one.kill()
            return response.headers["Mesh-Serve"], seen

    serve_id, seen = asyncio.run(cut())
    assert "[DONE]" not in seen
    last = json.loads(seen[-1])
    assert last["error"]["code"] in ("engine-failed", "engine-unavailable")
    status, receipt = served.get(f"/mesh/v1/receipts/{serve_id}")
    assert status == 200
    outcome = receipt["receipt"]["outcome"]
    assert outcome["finish"] == "engine-error"
    assert outcome["tokens_out"] >= 3
    assert receipt["receipt"]["output_commitment"]

    wait_for("the old server's processes are gone", lambda: not [one for one in tree if one.is_running()], START_S)
    wait_for("the gateway is ready again", lambda: served.get("/readyz")[0] == 200, START_S)
    status, answer = served.answer(max_tokens=8)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 8


def test_client_that_leaves_stops_the_generation(server: RealServer, patient: Path, tmp_path: Path) -> None:
    server.be(patient, "--max-model-len", str(CONTEXT))

    async def main() -> None:
        engine = await VllmEngine.start(VllmConfig(server.url, weights=patient, dtype="float32", device="cpu"))
        async with running(tmp_path) as steward:
            gateway = Gateway(steward, [engine], GatewayConfig())
            port = await gateway.start("127.0.0.1", 0)
            try:
                before = server.metric("generation_tokens_total")
                async with (
                    aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
                    http.post(CHAT, json=chat("tiny", "hello", **LONG)) as response,
                ):
                    async for _ in events(response):
                        break
                    assert server.metric("num_requests_running") == 1
                    response.close()
                async with asyncio.timeout(60):
                    while steward.reader.count() < 1 or server.metric("num_requests_running") > 0:
                        await asyncio.sleep(0.01)
                assert server.metric("generation_tokens_total") - before < LONG["max_tokens"]
                (entry,) = steward.reader.receipts()
                outcome = verify(entry.envelope, RECEIPT_TYPE, {steward.public}).value.outcome
                assert outcome.finish == "cancelled"
                assert outcome.tokens_out < LONG["max_tokens"]
            finally:
                await gateway.stop()
                await engine.close()

    asyncio.run(main())
