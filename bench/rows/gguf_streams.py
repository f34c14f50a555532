"""Two streams at once of a GGUF model: through the gateway, sealed, and from a bare llama-server."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from bench import fronts
from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides
from bench.scratch import scratch
from bench.venvs import ROOT
from mesh.cli.engines import packaged_model
from mesh.errors import UsageError

STREAMS, TOKENS, QUICK = 2, 128, 16
_SERVER = Path(__file__).parent.parent / "peers" / "llama_server.py"
_FULL_SERVES = 10
# Each round has prompts of its own that differ from the first word on: no side has computed any of it before.
_PROMPTS = ("{}. Write a long story about a lighthouse keeper.", "{}. Explain how a steam engine works in detail.")
_NUMBERS = itertools.count(1)


@contextmanager
def _sides(plan: Plan) -> Iterator[Sides]:
    try:
        model = packaged_model()
    except UsageError as e:
        raise PeerMissing("the packaged model is not installed") from e
    tokens = TOKENS if plan.serves >= _FULL_SERVES else QUICK
    with (
        scratch("streams") as folder,
        fronts.running(
            sys.executable, "-m", "mesh.cli.main", "serve", "--gguf", str(model), "--name", "m", "--slots",
            str(STREAMS), "--state", str(folder), "--port", "0", "--json",
        ) as gateway,
        _bare(model) as bare,
    ):  # fmt: skip
        url = fronts.told(gateway)["url"]
        yield Sides(lambda: _rate(url, tokens), lambda: _rate(bare, tokens), "xllamacpp's Server")


@contextmanager
def _bare(model: Path) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, str(_SERVER), str(model), str(STREAMS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    ) as process:  # fmt: skip
        try:
            url = fronts.line(process).strip()
            yield url if url.startswith("http") else f"http://{url}"
        finally:
            process.terminate()


def _rate(url: str, tokens: int) -> float:
    """Tokens a second of all streams together."""
    prompts = [prompt.format(next(_NUMBERS)) for prompt in _PROMPTS]
    start = time.perf_counter()
    asyncio.run(_all(url, prompts, tokens))
    return STREAMS * tokens / (time.perf_counter() - start)


async def _all(url: str, prompts: Sequence[str], tokens: int) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        await asyncio.gather(*(_stream(session, url, prompt, tokens) for prompt in prompts))


async def _stream(session: aiohttp.ClientSession, url: str, prompt: str, tokens: int) -> None:
    body = {
        "model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    counted = None
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"answered {response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                counted = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", counted)
    if counted != tokens:
        raise RuntimeError(f"an answer of {counted} tokens, expected {tokens}")


COMPARISON = Comparison(
    name="GGUF tokens a second, two streams, vs llama-server",
    unit="tokens/s wall",
    ours="SmolLM2 Q4_1 through the gateway, streamed and sealed",
    peer="llama-server itself, the same settings, one decode thread and two slots each",
    goal=Goal(">=", 0.95),
    sides=_sides,
    rounds=7,
)
