"""Several backends behind one gateway: which of them gets a request, and what happens when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.grammars import Grammars
from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineFailed, EngineUnavailable, UsageError
from mesh.gateway.app import Gateway
from mesh.gateway.backends import Route
from mesh.gateway.config import GatewayConfig
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_PAYLOAD_BYTES
from mesh.schema.outcome import Fidelity
from mesh.schema.request import ServeRequest
from tests.gateway.serving import TEXT, House, Reply, Scoring, Scripted, ask, content, house
from tests.support.meters import SteadyMeter
from tests.support.stewards import running


class Failing(ReferenceEngine):
    """Fails every serve before its first token."""

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        raise EngineFailed("out of memory")


class Away(ReferenceEngine):
    async def ready(self) -> None:
        raise EngineUnavailable("connection refused")


def served_by(gate: House, reply: Reply) -> str:
    """The backend that the receipt names, which is the one that the answer names."""
    mesh = reply.json["mesh"] if "text/event-stream" not in reply.headers["Content-Type"] else last_mesh(reply)
    receipt = gate.receipt(mesh["receipt_id"]).value
    assert mesh["recipe_id"] == receipt.engine.recipe_id
    assert receipt.serve_id.hex() == reply.headers["Mesh-Serve"].replace("-", "")
    name: str = receipt.engine.recipe_id
    return name


def last_mesh(reply: Reply) -> Any:
    return next(event["mesh"] for event in reversed(reply.events) if "mesh" in event)


def shared(**fields: Any) -> dict[str, Any]:
    return ask(model="both", **fields)


def test_alias_is_served_by_the_one_with_least_load_and_a_name_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Scripted([b"x"], recipe_id="a", hold_at=0), Scripted([b"x"], recipe_id="b", hold_at=0)
        async with house(tmp_path, a, others=[b], shared="both") as gate:
            first = [asyncio.ensure_future(gate.post(shared())) for _ in range(4)]
            while a.holding + b.holding < 4:
                await asyncio.sleep(0.001)
            assert (a.holding, b.holding) == (2, 2)
            a.go.set()
            b.go.set()
            assert sorted([served_by(gate, await reply) for reply in first]) == ["a", "a", "b", "b"]
            assert (await first[0]).json["model"] == "both"
            for name in "ab":
                assert served_by(gate, await gate.post(ask(model=name))) == name

    asyncio.run(main())


def test_backend_that_its_receipts_say_costs_least_is_chosen(tmp_path: Path) -> None:
    async def main() -> None:
        dear, cheap = ReferenceEngine("dear", work_per_token=4000), ReferenceEngine("cheap", work_per_token=4000)
        meters = [SteadyMeter("dear", 1000), SteadyMeter("cheap", 1)]
        async with house(tmp_path, dear, others=[cheap], shared="both", meters=meters) as gate:
            for name in ("dear", "cheap"):
                assert (await gate.post(ask(model=name))).status == 200
            assert {served_by(gate, await gate.post(shared())) for _ in range(8)} == {"cheap"}
        # a new start learns it from the ledger
        async with house(tmp_path, ReferenceEngine("dear"), others=[ReferenceEngine("cheap")], shared="both") as gate:
            assert {served_by(gate, await gate.post(shared())) for _ in range(4)} == {"cheap"}

    asyncio.run(main())


def test_full_backend_is_passed_over_and_the_queue_is_the_last_resort(tmp_path: Path) -> None:
    async def main() -> None:
        engines = [Scripted([b"x"], recipe_id=name, hold_at=0, slots=1) for name in "ab"]
        async with house(tmp_path, engines[0], others=engines[1:], shared="both", queue=0) as gate:
            replies = [asyncio.ensure_future(gate.post(shared())) for _ in range(2)]
            while sum(engine.holding for engine in engines) < 2:
                await asyncio.sleep(0.001)
            assert [engine.holding for engine in engines] == [1, 1]
            refused = await gate.post(shared())
            assert refused.code == (429, "overloaded")
            assert int(refused.headers["Retry-After"]) >= 1
            for engine in engines:
                engine.go.set()
            assert {served_by(gate, await reply) for reply in replies} == {"a", "b"}

    asyncio.run(main())


def test_fidelity_context_and_ceiling_choose_and_a_refusal_lists_each(tmp_path: Path) -> None:
    async def main() -> None:
        small = ReferenceEngine("small", fidelity=Fidelity.F1, est_uj_per_token=1, context_tokens=100)
        large = ReferenceEngine("large", fidelity=Fidelity.F3, est_uj_per_token=100)
        async with house(tmp_path, small, others=[large], shared="both") as gate:
            assert served_by(gate, await gate.post(shared())) == "small"
            assert served_by(gate, await gate.post(shared(mesh={"fidelity_floor": 2}))) == "large"
            assert served_by(gate, await gate.post(shared(max_tokens=300))) == "large"
            assert served_by(gate, await gate.post(shared(mesh={"joule_ceiling_uj": 60}))) == "small"
            refused = await gate.post(shared(mesh={"fidelity_floor": 2, "joule_ceiling_uj": 60}))
            assert refused.code == (400, "no_candidate")
            reasons = refused.error["reasons"]
            assert reasons.keys() == {"small", "large"}
            assert "below the floor F2" in reasons["small"]
            assert "the ceiling is 60 uJ" in reasons["large"]
            unknown = await gate.post(ask(model="other"))
            assert "'small', 'large', 'both'" in unknown.error["message"]
            await large.close()
            away = await gate.post(shared(mesh={"fidelity_floor": 2}))
            assert away.code == (503, "engine-unavailable")
            assert "small: fidelity F1 is below the floor F2; large: reference engine: closed" in away.error["message"]

    asyncio.run(main())


def test_backend_that_is_not_ready_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        away = Away("away", est_uj_per_token=0)
        async with house(tmp_path, away, others=[ReferenceEngine("there")], shared="both") as gate:
            assert served_by(gate, await gate.post(shared())) == "there"
            assert (await gate.post(ask(model="away"))).code == (503, "engine-unavailable")
            assert gate.steward.reader.count() == 1

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_backend_that_fails_before_its_first_token_is_sealed_and_another_answers(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        failing, good = Failing("failing", est_uj_per_token=1), ReferenceEngine("good", est_uj_per_token=50)
        async with house(tmp_path, failing, others=[good], shared="both") as gate:
            reply = await gate.post(shared(stream=stream))
            assert (reply.status, served_by(gate, reply)) == (200, "good")
            assert content(reply)
            told = last_mesh(reply) if stream else reply.json["mesh"]
            (before,) = told["failed_before"]
            first = gate.receipt(before["receipt_id"]).value
            outcome = first.outcome
            assert (first.engine.recipe_id, outcome.finish, outcome.tokens_out) == ("failing", "engine-error", 0)
            # both were started, so both are sealed; the client is answered, and charged, by one
            assert gate.steward.reader.count() == 2
            alone = await gate.post(ask(model="failing", stream=stream))
            assert alone.code == (502, "engine-failed")

    asyncio.run(main())


def test_repeated_key_names_the_serve_that_answered_and_not_the_one_that_failed(tmp_path: Path) -> None:
    async def main() -> None:
        failing, good = Failing("failing", est_uj_per_token=1), ReferenceEngine("good", est_uj_per_token=50)
        async with house(tmp_path, failing, others=[good], shared="both", repeat_answers=0) as gate:
            first = await gate.post(shared(), Idempotency_Key="one")
            again = await gate.post(shared(), Idempotency_Key="one")
            assert again.headers["Idempotency-Replayed"] == "true"
            assert again.headers["Mesh-Receipt"] == first.headers["Mesh-Receipt"]
            assert gate.steward.reader.count() == 2
            assert (await gate.post(shared(max_tokens=1), Idempotency_Key="one")).code[0] == 422

    asyncio.run(main())


def test_as_many_are_tried_as_the_operator_says_and_the_last_failure_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        engines = [Failing(name, est_uj_per_token=1) for name in "abc"]
        async with house(tmp_path, engines[0], others=engines[1:], shared="both", attempts=2) as gate:
            reply = await gate.post(shared())
            assert reply.code == (502, "engine-failed")
            assert len(reply.error["mesh"]["failed_before"]) == 1
            assert gate.steward.reader.count() == 2

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_backend_that_fails_after_its_first_token_is_not_replaced(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        dying = Scripted([b"a", b"b"], recipe_id="dying", die_at=1, est_uj_per_token=1)
        good = ReferenceEngine("good", est_uj_per_token=50)
        async with house(tmp_path, dying, others=[good], shared="both") as gate:
            reply = await gate.post(shared(stream=stream))
            if stream and reply.status == 200:
                assert reply.events[-1]["error"]["code"] == "engine-failed"
                assert "data: [DONE]" not in reply.lines
            else:
                assert reply.code == (502, "engine-failed")
            assert (gate.steward.reader.count(), dying.serves) == (1, 1)

    asyncio.run(main())


def test_backends_that_read_a_prompt_in_different_ways_each_get_their_own_reading(tmp_path: Path) -> None:
    class Halves(ReferenceEngine):
        async def encode(self, text: str, *, special: bool) -> list[int]:
            return (await super().encode(text, special=special))[::2]

    async def main() -> None:
        halves = Halves("halves", est_uj_per_token=10, context_tokens=60)
        bytewise = ReferenceEngine("bytewise", est_uj_per_token=9, context_tokens=90)
        async with house(tmp_path, halves, others=[bytewise], shared="both") as gate:
            prompt = {"model": "both", "prompt": "x" * 80, "max_tokens": 8}
            reply = await gate.post(prompt, path=TEXT)
            assert (served_by(gate, reply), reply.json["usage"]["prompt_tokens"]) == ("halves", 40)
            reply = await gate.post(prompt | {"max_tokens": 30}, path=TEXT)
            assert reply.code == (400, "context_length_exceeded")

    asyncio.run(main())


def test_model_list_names_backends_and_what_they_share(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine("a"), others=[ReferenceEngine("b")], shared="both") as gate:
            models = {model["id"]: model for model in (await gate.get("/v1/models")).json["data"]}
            assert list(models) == ["a", "b", "both"]
            assert models["a"]["mesh"]["recipe_id"] == "a"
            assert models["both"]["mesh"] == {"backends": ["a", "b"]}
            assert (await gate.get("/v1/models/both")).json == models["both"]
            assert (await gate.get("/v1/models/c")).code == (404, "model_not_found")

    asyncio.run(main())


def test_names_that_would_say_two_things_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as steward:
            engines = [ReferenceEngine("a"), ReferenceEngine("b")]
            with pytest.raises(UsageError, match="alias 'b' of backend 'a' is the name of a backend"):
                Gateway(steward, engines, GatewayConfig(), routes=[Route(("b",)), Route()])
            with pytest.raises(UsageError, match="two backends serve one model name"):
                Gateway(steward, [engines[0], engines[0]], GatewayConfig(), routes=[Route(("x",)), Route(("x",))])
            with pytest.raises(UsageError, match="no name that a receipt can hold"):  # as a server may call its model
                Gateway(steward, [ReferenceEngine("two\nlines")], GatewayConfig())

    asyncio.run(main())


def test_receipt_of_an_alias_commits_to_what_the_client_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine("a"), others=[ReferenceEngine("b")], shared="both") as gate:
            reply = await gate.post(shared(mesh={"disclose": True}))
            (entry,) = gate.steward.reader.receipts()
            asked = ServeRequest.from_cbor(entry.request, max_bytes=MAX_PAYLOAD_BYTES)
            assert asked.model == "both"
            assert gate.receipt(reply.headers["Mesh-Receipt"]).value.request_id == asked.id
            assert json.loads(reply.body)["mesh"]["recipe_id"] in ("a", "b")

    asyncio.run(main())


class Held(Scripted):
    """One that can be told grammars."""

    def __init__(self, pieces: Sequence[bytes], **engine: Any) -> None:
        super().__init__(pieces, **engine)
        self.grammars = Grammars()
        self.learn = self.grammars.learn

    def refusal(self, request: ServeRequest) -> str | None:
        return self.grammars.refusal(request.sampling)


def test_each_backend_is_told_the_grammar_of_what_it_may_serve(tmp_path: Path) -> None:
    async def main() -> None:
        weights = ContentId.of_bytes(b"weights")
        engines = [Held([b"{}"], recipe_id=name, weights_digest=weights, hold_at=0, slots=1) for name in "ab"]
        async with house(tmp_path, engines[0], others=engines[1:], shared="both") as gate:
            body = shared(response_format={"type": "json_object"})
            asking = [asyncio.ensure_future(gate.post(body)) for _ in engines]
            while sum(engine.holding for engine in engines) < 2:
                await asyncio.sleep(0.001)
            for engine in engines:
                engine.go.set()
            replies = [await reply for reply in asking]
            assert sorted(served_by(gate, reply) for reply in replies) == ["a", "b"]
            assert [reply.json["mesh"]["format"] for reply in replies] == ["satisfied", "satisfied"]

    asyncio.run(main())


def test_backend_that_cannot_give_what_is_asked_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        weights = ContentId.of_bytes(b"weights")
        plain, able = (cls([b"x"], recipe_id=cls.__name__, weights_digest=weights) for cls in (Scripted, Scoring))
        async with house(tmp_path, plain, others=[able], shared="both") as gate:
            for _ in range(3):
                reply = await gate.post(shared(logprobs=True))
                assert served_by(gate, reply) == "Scoring"
            assert (await gate.post(ask(model="Scripted", logprobs=True))).code == (400, "unsupported_parameter")

    asyncio.run(main())
