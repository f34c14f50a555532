"""SmolLM2 through the gateway: two streams at once say what each says alone, and every receipt replays."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.replay.replayer import replay
from mesh.schema.disclosure import Disclosure
from mesh.schema.ids import ContentId
from tests.gateway.serving import NONCE, House, Reply, content, house
from tests.support.models import smollm2_path

pytestmark = pytest.mark.real_model


@dataclass(frozen=True)
class Real:
    """A gateway over the real model, and the loop that it runs in: loading it takes longer than all that is asked."""

    runner: asyncio.Runner
    engine: GgufEngine
    gate: House


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    path = smollm2_path()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> Real:
            engine = await GgufEngine.start(GgufConfig(path, "smollm2"))
            gate = await stack.enter_async_context(house(tmp_path_factory.mktemp("state"), engine))
            return Real(runner, engine, gate)

        yield runner.run(start())
        runner.run(stack.aclose())


def body(question: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 12,
        "stream": True,
        "mesh": {"disclose": True, "nonce": NONCE},
        **fields,
    }


GREEDY = [body("Name three colours.", temperature=0), body("What is rain? 🌧", temperature=0)]
SEEDED = body("Tell me about the sea.", temperature=0.8, top_p=0.9, seed=7)


async def check_replays(gate: House, engine: GgufEngine, reply: Reply) -> None:
    mesh = reply.events[-1]["mesh"]
    disclosure = Disclosure.from_bytes(base64.urlsafe_b64decode(mesh["disclosure"] + "=="))
    verdict = await replay(gate.receipt(mesh["receipt_id"]).envelope, disclosure, engine, {gate.steward.public})
    assert (verdict.kind, verdict.output, verdict.prompt) == ("verified", "matches", "checked")


def test_streams_side_by_side_equal_each_alone_and_replay(real: Real) -> None:
    async def main(engine: GgufEngine, gate: House) -> None:
        alone = [await gate.post(one) for one in GREEDY]
        together = await asyncio.gather(*(gate.post(one) for one in GREEDY))
        plain = [await gate.post({**one, "stream": False}) for one in GREEDY]
        seeded = [await gate.post(SEEDED) for _ in range(2)]
        texts = [content(reply) for reply in alone]
        assert all(texts)
        assert [content(reply) for reply in together] == [content(reply) for reply in plain] == texts
        assert content(seeded[0]) == content(seeded[1])
        for reply in (*together, seeded[0]):
            await check_replays(gate, engine, reply)
        receipt = gate.receipt(plain[0].headers["Mesh-Receipt"]).value
        assert receipt.engine.deterministic
        assert ContentId(receipt.engine.weights_digest) == engine.weights_digest
        stopped = await gate.post(body("Count from one to nine, with digits.", temperature=0, stop=["3"]))
        assert "3" not in content(stopped)
        await check_replays(gate, engine, stopped)
        (told,) = (await gate.get("/mesh/v1/steward")).json["engines"]
        assert told["determinism"]

    real.runner.run(main(real.engine, real.gate))


def test_tokens_are_counted_as_they_are_served(real: Real) -> None:
    async def main(gate: House) -> None:
        text = "東京 🙂 def f(x): return x<|im_end|>"
        ids = (await gate.post({"content": text}, path="/tokenize")).json["tokens"]
        plain = (await gate.post({"content": text, "parse_special": False}, path="/tokenize")).json["tokens"]
        assert len(plain) > len(ids)
        back = await gate.post({"tokens": plain}, path="/detokenize")
        assert back.json["content"] == text
        messages = [{"role": "user", "content": "hi 🙂"}]
        chat = (await gate.post({"messages": messages}, path="/tokenize")).json["count"]
        served = await gate.post({"model": "smollm2", "messages": messages, "max_tokens": 1})
        assert served.json["usage"]["prompt_tokens"] == chat

    real.runner.run(main(real.gate))
