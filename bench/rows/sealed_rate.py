"""Sealed serves a second over HTTP, 64 callers at once, on the reference engine."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench import fronts
from bench.measure import Comparison, Goal, Plan, Sides
from bench.scratch import scratch

FLOOR = 1000.0
_TOKENS = 8


@contextmanager
def _sides(plan: Plan, *, flags: Sequence[str]) -> Iterator[Sides]:
    with (
        scratch("rate") as folder,
        fronts.running(
            sys.executable, "-m", "mesh.cli.main", "serve", "--reference", "--state", str(folder), "--port", "0",
            "--json", *flags,
        ) as process,
    ):  # fmt: skip
        port = int(fronts.told(process)["url"].rpartition(":")[2])

        def ours() -> float:
            start = time.perf_counter()
            asyncio.run(_load(port, plan.callers, plan.serves))
            return plan.callers * plan.serves / (time.perf_counter() - start)

        yield Sides(ours, lambda: FLOOR)


async def _load(port: int, callers: int, each: int) -> None:
    """Callers that cost as little as can be, so that it is the gateway that is measured and not they."""
    await asyncio.gather(*(_caller(port, number, each) for number in range(callers)))


async def _caller(port: int, number: int, each: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for serve in range(each):
        body = {
            "model": "reference", "max_tokens": _TOKENS,
            "messages": [{"role": "user", "content": f"question {serve} of caller {number}"}],
        }  # fmt: skip
        data = json.dumps(body).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 ") or b"\r\nMesh-Receipt: " not in head:
            raise RuntimeError(f"answered {head[:200]!r}")
        length = head.partition(b"\r\nContent-Length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()
    await writer.wait_closed()


def _comparison(how: str, *flags: str) -> Comparison:
    return Comparison(
        name=f"sealed serves a second, reference engine, 64 at once{how}",
        unit="serves/s wall",
        ours=f"whole requests over HTTP, answers of {_TOKENS} tokens, receipts on disk; callers on the same cores",
        peer="what was asked for",
        goal=Goal(">=", 1),
        sides=partial(_sides, flags=flags),
        limit="one thread of Python does all but the ledger's part and shares two cores with that and with the callers;"
        " a fifth of its time is aiohttp's server, a seventh reading the body strictly, a seventh the engine itself",
    )


COMPARISONS = (_comparison(""), _comparison(", on asyncio", "--no-uvloop"))
