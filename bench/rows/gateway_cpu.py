"""CPU time of the gateway for one request, beside a reverse proxy that hands the same request on.

Three processes and this one: a server that only looks like vLLM, the gateway in front of it with its ledger on disk,
and the proxy in front of it. Only the gateway's and the proxy's own CPU time count. The proxy does nothing but hand
on; the gateway tokenizes over HTTP, looks whether the server is still the one it knows, checks and counts every id,
and seals a receipt. It reads a stream from the server for plain answers too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

from bench.measure import Comparison, Plan, Sides, process_cpu_ns
from bench.scratch import scratch
from bench.venvs import ROOT

_PROXY = Path(__file__).parent.parent / "peers" / "reverse_proxy.py"
_CALLERS = 8
_CHUNKS = 32  # tokens of an answer, each an event of its own on the way from the server
_REQUESTS_PER_CALL = 8  # a request costs a thousand times what the calls of other rows do


class _Front:
    """A process that answers completions at `url`."""

    def __init__(self, process: subprocess.Popen[str], url: str, *, streamed: bool) -> None:
        self._pid, self._url, self._streamed = process.pid, url, streamed

    def round(self, requests: int) -> float:
        """Microseconds of its CPU time for one request."""
        start = process_cpu_ns(self._pid)
        asyncio.run(self._ask(requests))
        return (process_cpu_ns(self._pid) - start) / requests / 1000

    async def _ask(self, requests: int) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CALLERS)) as session:
            numbers = iter(range(requests))  # each caller takes the next one
            await asyncio.gather(*(self._caller(session, numbers) for _ in range(_CALLERS)))

    async def _caller(self, session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        for number in numbers:
            body = {
                "model": "tiny", "prompt": f"question {number}: how far is it from here to there?",
                "max_tokens": _CHUNKS, "temperature": 0, "ignore_eos": True,
                **({"stream": True, "stream_options": {"include_usage": True}} if self._streamed else {}),
            }  # fmt: skip
            async with session.post(self._url + "/v1/completions", json=body) as response:
                _check(response.status, await response.read(), streamed=self._streamed)


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
    if tokens != _CHUNKS:
        raise RuntimeError(f"an answer of {tokens} tokens, expected {_CHUNKS}")


@contextmanager
def _sides(plan: Plan, *, streamed: bool) -> Iterator[Sides]:
    requests = max(_CALLERS, plan.cpu_calls // _REQUESTS_PER_CALL)
    with scratch("gateway") as folder, ExitStack() as stack:
        model = folder / "model"
        server = stack.enter_context(_running("-m", "tests.support.fake_vllm", "--folder", str(model)))
        url = f"http://127.0.0.1:{_line(server).strip()}"
        gateway = stack.enter_context(
            _running(
                "-m", "mesh.cli.main", "serve", "--vllm", url, "--weights", str(model), "--dtype", "float32",
                "--device", "cpu", "--state", str(folder / "state"), "--port", "0", "--json",
            )
        )  # fmt: skip
        front = _Front(gateway, _told(gateway)["url"], streamed=streamed)
        proxy = stack.enter_context(_running("-I", str(_PROXY), url))
        peer = _Front(proxy, f"http://127.0.0.1:{_line(proxy).strip()}", streamed=streamed)
        yield Sides(partial(front.round, requests), partial(peer.round, requests), f"aiohttp {version('aiohttp')}")


@contextmanager
def _running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.terminate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with exit {process.wait()} before it served")
    return line


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What `mesh serve --json` prints once it serves."""
    lines = [_line(process)]
    while lines[-1] != "}\n":
        lines.append(_line(process))
    told: dict[str, Any] = json.loads("".join(lines))
    return told


def _comparison(name: str, *, streamed: bool) -> Comparison:
    answer = f"an answer of {_CHUNKS} tokens, {'streamed' if streamed else 'plain'}, {_CALLERS} callers"
    return Comparison(
        name=name,
        unit="us CPU",
        ours=f"the gateway's process for {answer}: receipt sealed, ledger on disk",
        peer="a reverse proxy of 40 lines for the same request, which only hands on",
        goal=None,
        sides=partial(_sides, streamed=streamed),
    )


PLAIN = _comparison("gateway vs reverse proxy, plain", streamed=False)
STREAMED = _comparison("gateway vs reverse proxy, streamed", streamed=True)
