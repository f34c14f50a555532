"""Gateways with something to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mesh.engine.reference import ReferenceEngine
from mesh.schema.ids import ContentId, steward_text
from tests.browser.browsing import Tab
from tests.gateway.serving import House, Scripted, ask, house
from tests.support.meters import SteadyMeter
from tests.support.stewards import KEY

MODEL = "tiny-llm-135m"
MARKUP = '<img src=x onerror="document.title=1">\u202egnp.exe'
LONG = "name-" + "o" * 190 + "-long"
WEIGHTS = ContentId.of_bytes(b"weights")
STEWARD = steward_text(KEY.public)
SECRET = "sk-a-secret-of-this-test"


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[House]:
    """A gateway that has served: a metered model, hostile names, one that dies, one without a meter."""
    engine = ReferenceEngine(MODEL, work_per_token=2000, weights_digest=WEIGHTS)
    dying = Scripted([b"a", b"b"], recipe_id="dies-in-mid-serve", die_at=1)
    others = [ReferenceEngine(MARKUP), ReferenceEngine(LONG), dying]
    meters = [SteadyMeter(MODEL, 9), SteadyMeter(MARKUP, 3)]
    async with house(folder / "state", engine, others=others, meters=meters, **options) as gate:
        bearer = {"Authorization": f"Bearer {SECRET}"} if options.get("keys") else {}
        for n in range(3):
            await gate.post(ask(f"{n}", model=MODEL, max_tokens=60 + n), **bearer)
        for model in (MARKUP, LONG, "dies-in-mid-serve"):
            await gate.post(ask(model=model), **bearer)
        yield gate


def entry(gate: House, seq: int) -> Any:
    return next(gate.steward.reader.receipts(after_seq=seq - 1, limit=1))


def forged(envelope: bytes) -> bytes:
    """One whose signature has another byte."""
    return envelope[:-1] + bytes([envelope[-1] ^ 1])


async def rows(tab: Tab) -> list[dict[str, str]]:
    """What the lines of a list say, by their headings."""
    told: list[dict[str, str]] = await tab.page.evaluate(
        """() => [...document.querySelectorAll(".receipts tbody tr")].map((row) => Object.fromEntries(
            [...row.cells].map((cell) => [cell.dataset.label, cell.innerText.replace(/\\s+/g, " ").trim()])))"""
    )
    return told


async def row_count(tab: Tab) -> int:
    return len(await rows(tab))


def seen(test: Callable[[Path], Any]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
