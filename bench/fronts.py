"""Processes that answer completions, and how they are asked: one server of models and what may stand in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.measure import process_cpu_ns
from bench.venvs import ROOT, python_of
from mesh.engine.server_port import KeptPort

CHUNKS = 32  # tokens of an answer, each an event of its own on the way from the server
_PROXY = Path(__file__).parent / "peers" / "reverse_proxy.py"
_LITELLM = "litellm[proxy]==1.108.7"  # 1.107 was withdrawn
_START_S = 240.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Front:
    """A process that answers completions at `url`. `started_s` is from its start to its first answer."""

    process: subprocess.Popen[str]
    url: str
    key: str | None = None
    started_s: float = 0.0

    def cpu_us(self, requests: int, callers: int, *, streamed: bool) -> float:
        """Microseconds of its CPU time for one request."""
        start = process_cpu_ns(self.process.pid)
        asyncio.run(self._ask(requests, callers, streamed=streamed))
        return (process_cpu_ns(self.process.pid) - start) / requests / 1000

    def added_us(self, server: Front, requests: int) -> float:
        """Microseconds that a caller who is alone waits longer than for the `server` behind it, in the medians. Both
        are asked in turns, a request each: they take turns with whatever else the machine does, too."""
        here, there = asyncio.run(self._in_turns(server, requests))
        return (statistics.median(here) - statistics.median(there)) * 1e6

    def memory_mib(self) -> float:
        """What it and its children hold: what is private to each, and what one of them shares, the most that any does.
        The pages of one interpreter's code are there once, however many processes run on them."""
        process = psutil.Process(self.process.pid)
        held = [one.memory_full_info() for one in (process, *process.children(recursive=True))]
        return float(sum(one.uss for one in held) + max(one.rss - one.uss for one in held)) / _MIB

    async def _in_turns(self, server: Front, requests: int) -> tuple[list[float], list[float]]:
        async with aiohttp.ClientSession() as session:
            here, there = list[float](), list[float]()
            for number in range(requests):
                for took, url in ((here, self.url), (there, server.url)):
                    took += await _caller(session, url, iter((number,)), streamed=False)
            return here, there

    async def _ask(self, requests: int, callers: int, *, streamed: bool) -> list[float]:
        """Seconds that each request took."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        connector = aiohttp.TCPConnector(limit=callers)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            numbers = iter(range(requests))  # each caller takes the next one
            took = await asyncio.gather(
                *(_caller(session, self.url, numbers, streamed=streamed) for _ in range(callers))
            )
        return [seconds for one in took for seconds in one]


async def _caller(session: aiohttp.ClientSession, url: str, numbers: Iterator[int], *, streamed: bool) -> list[float]:
    took = []
    for number in numbers:
        body = {
            "model": "tiny", "prompt": f"question {number}: how far is it from here to there?",
            "max_tokens": CHUNKS, "temperature": 0, "ignore_eos": True,
            **({"stream": True, "stream_options": {"include_usage": True}} if streamed else {}),
        }  # fmt: skip
        start = time.perf_counter()
        async with session.post(url + "/v1/completions", json=body) as response:
            _check(response.status, await response.read(), streamed=streamed)
        took.append(time.perf_counter() - start)
    return took


def _check(status: int, body: bytes, *, streamed: bool) -> None:
    """That an answer is whole: it says how many tokens it has. In a stream that is said in the event before the last
    word; how many events there are is not looked at, since the gateway joins what has come in."""
    if status != 200:
        raise RuntimeError(f"answered {status}: {body[:200]!r}")
    if streamed:
        *_, body, done = (block[6:] for block in body.split(b"\n\n") if block.startswith(b"data: "))
        if done != b"[DONE]":
            raise RuntimeError(f"a stream that ends in {done[:200]!r}")
    tokens = json.loads(body)["usage"]["completion_tokens"]
    if tokens != CHUNKS:
        raise RuntimeError(f"an answer of {tokens} tokens, expected {CHUNKS}")


@contextmanager
def upstream(folder: Path) -> Iterator[Front]:
    """A server that only looks like vLLM; its model is written to `folder`/model."""
    with running(sys.executable, "-m", "tests.support.fake_vllm", "--folder", str(folder / "model")) as process:
        yield Front(process, f"http://127.0.0.1:{line(process).strip()}")


@contextmanager
def gateway(folder: Path, url: str, *flags: str, state: str = "state") -> Iterator[Front]:
    """`mesh serve` in front of `url`, its ledger on disk."""
    began = time.perf_counter()
    with running(
        sys.executable, "-m", "mesh.cli.main", "serve", "--vllm", url, "--weights", str(folder / "model"),
        "--dtype", "float32", "--device", "cpu", "--state", str(folder / state), "--port", "0", "--json",
        *flags,
    ) as process:  # fmt: skip
        yield _answering(Front(process, told(process)["url"]), began)


@contextmanager
def reverse_proxy(url: str, *loop: str) -> Iterator[Front]:
    """On asyncio's own loop, or that of the package `loop`."""
    began = time.perf_counter()
    with running(sys.executable, "-I", str(_PROXY), url, *loop) as process:
        yield _answering(Front(process, f"http://127.0.0.1:{line(process).strip()}"), began)


@contextmanager
def least_gateway(folder: Path, url: str) -> Iterator[Front]:
    began = time.perf_counter()
    with running(sys.executable, "-m", "bench.peers.least_gateway", url, str(folder / "least.sqlite")) as process:
        yield _answering(Front(process, f"http://127.0.0.1:{line(process).strip()}"), began)


@contextmanager
def litellm(folder: Path, url: str) -> Iterator[Front]:
    """The LiteLLM proxy with one worker, no database and nothing that calls out. Raises PeerMissing."""
    python = python_of("litellm", _LITELLM)
    key = f"sk-{secrets.token_hex(24)}"
    model = {"model": "text-completion-openai/tiny", "api_base": f"{url}/v1", "api_key": "none"}
    config = folder / "litellm.yaml"
    config.write_text(  # YAML holds JSON
        json.dumps(
            {
                "model_list": [{"model_name": "tiny", "litellm_params": model}],
                "litellm_settings": {"telemetry": False, "num_retries": 0},
                "general_settings": {"disable_spend_logs": True, "master_key": key},
            }
        )
    )
    environment = {
        "PATH": os.environ.get("PATH", ""), "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    began = time.perf_counter()
    with (
        KeptPort("127.0.0.1") as port,
        running(
            str(python.parent / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port.number),
            "--num_workers", "1", "--telemetry", "False", environment=environment,
        ) as process,
    ):  # fmt: skip
        yield _answering(Front(process, f"http://127.0.0.1:{port.number}", key), began)


def _answering(front: Front, began: float) -> Front:
    """The same, once it has answered."""
    while True:
        try:
            asyncio.run(front._ask(1, 1, streamed=False))
        except (aiohttp.ClientConnectionError, RuntimeError):
            if front.process.poll() is not None or time.perf_counter() - began > _START_S:
                raise
            time.sleep(0.02)
        else:
            return Front(front.process, front.url, front.key, time.perf_counter() - began)


@contextmanager
def running(*command: str, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said:
        raise RuntimeError(f"{process.args!r} ended with exit {process.wait()} before it served")
    return said


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What `mesh serve --json` prints once it serves."""
    lines = [line(process)]
    while lines[-1] != "}\n":
        lines.append(line(process))
    said: dict[str, Any] = json.loads("".join(lines))
    return said
