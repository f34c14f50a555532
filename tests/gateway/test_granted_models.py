"""A grant over two real models that differ in one byte: it reaches the one it names, while that is what it was."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.protocol import Served, TokenSink
from mesh.schema.ids import ContentId
from mesh.schema.request import ServeRequest
from tests.gateway.granting import granting, post, token
from tests.gateway.serving import House
from tests.support.models import smollm2_path

pytestmark = [pytest.mark.deep, pytest.mark.real_model]


class Asked(GgufEngine):
    """Remembers what it was asked to do: each of these goes to the child."""

    asked: list[str]

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        self.asked.append("render")
        return await super().render(messages, tools)

    async def encode(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        self.asked.append("encode")
        return await super().encode(text, special=special, bare=bare)

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self.asked.append("serve")
        return await super().serve(request, prompt, sink)


async def start(path: Path) -> Asked:
    # one slot: how two serves go together is not asked here, and need not be measured
    engine = await Asked.start(GgufConfig(path, path.stem, slots=1, context_tokens=128, watts_u=15_000_000))
    assert isinstance(engine, Asked)
    engine.asked = []
    return engine


def changed_copy(source: Path, target: Path) -> Path:
    """The same model but for the last bit of one weight."""
    shutil.copyfile(source, target)
    reader = gguf.GGUFReader(target, "r+")
    tensor = next(one for one in reader.tensors if one.name == "blk.0.attn_q.weight")
    tensor.data.reshape(-1)[-1] ^= 1
    reader.data.flush()
    return target


def test_of_two_real_models_a_grant_reaches_the_one_it_names_until_its_file_is_another(tmp_path: Path) -> None:
    async def main() -> None:
        packaged = smollm2_path()
        mine = Path(shutil.copyfile(packaged, tmp_path / "mine.gguf"))
        first, second = await asyncio.gather(start(mine), start(changed_copy(packaged, tmp_path / "other.gguf")))
        assert first.weights_digest != second.weights_digest
        async with granting(tmp_path / "state", first, second) as house:
            await check(house, first, second, mine)

    async def check(house: House, first: Asked, second: Asked, mine: Path) -> None:
        one, other = (
            token({"model-in": [engine.weights_digest], "fidelity-at-least": 1, "max-uj": 2**62})
            for engine in (first, second)
        )
        for name in ("any", "mine", "any"):
            served = await post(house, one, model=name, max_tokens=2)
            receipt = house.receipt(served.headers["Mesh-Receipt"]).value
            assert ContentId(receipt.engine.weights_digest) == first.weights_digest
            assert ContentId(receipt.outcome.weights_digest) == first.weights_digest
        assert second.asked == []
        refused = await post(house, one, model="other", max_tokens=2)
        assert refused.code == (403, "grant_refused")
        assert refused.error["grant"]["offered"] == ContentId(second.weights_digest).text
        assert second.asked == []

        count, before = house.steward.reader.count(), mine.stat()
        staged = Path(shutil.copyfile(mine.with_name("other.gguf"), mine.with_name("staged")))
        os.utime(staged, ns=(before.st_atime_ns, before.st_mtime_ns))
        staged.replace(mine)  # of the same size and age
        first.asked.clear()
        for name in ("any", "mine"):
            refused = await post(house, one, model=name, max_tokens=2)
            assert refused.code == (503, "weights-changed")
            assert "mine.gguf: inode was" in refused.error["message"]
            assert "restart the gateway" in refused.error["message"]
        assert (first.asked, second.asked, house.steward.reader.count()) == ([], [], count)
        # it is the file that is refused, and nobody else
        assert (await post(house, other, model="any", max_tokens=2)).json["mesh"]["recipe_id"] == "other"
        both = token({"model-in": sorted([first.weights_digest, second.weights_digest])})
        assert (await post(house, both, model="any", max_tokens=2)).json["mesh"]["recipe_id"] == "other"
        assert first.asked == []

    asyncio.run(main())
