"""The list of checkpoints: pages, oldest first, each as it was signed."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from mesh.schema.envelope import CHECKPOINT_TYPE, verify
from tests.gateway.serving import House, ask, house

LIST = "/mesh/v1/checkpoints"


def opened(gate: House, item: dict[str, Any]) -> Any:
    data = base64.urlsafe_b64decode(item["envelope"] + "==")
    return verify(data, CHECKPOINT_TYPE, {gate.steward.public}).value


def test_checkpoints_come_oldest_first_in_pages(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            assert (await gate.get(LIST)).json == {"checkpoints": []}
            for n in range(5):
                await gate.steward.checkpoint()
                await gate.post(ask(f"{n}"))
            counts, query = [], "?limit=2"
            while query:
                told = (await gate.get(LIST + query)).json
                assert len(told["checkpoints"]) <= 2
                counts += [opened(gate, item).count for item in told["checkpoints"]]
                query = f"?limit=2&after={told['next']}" if "next" in told else ""
            assert counts == [0, 1, 2, 3, 4]
            whole = (await gate.get(LIST)).json
            assert [item["number"] for item in whole["checkpoints"]] == [1, 2, 3, 4, 5]
            assert "next" not in whole

    asyncio.run(main())


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "after=-1", "after=x", "before=1", "limit=1&limit=2"])
def test_a_query_that_is_none_is_refused(tmp_path: Path, query: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            assert (await gate.get(f"{LIST}?{query}")).status == 400

    asyncio.run(main())
