"""`POST /mesh/v1/decide`: a decision is a serve like any other, whose receipt commits to no output."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.replay.replayer import replay
from mesh.schema.disclosure import Disclosure
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import ServeRequest, decision_digest, payload_digest
from tests.gateway.serving import (
    DECIDE,
    NONCE,
    YES_NO,
    Ahead,
    Deciding,
    Reply,
    Scripted,
    ask,
    house,
    question,
    run_ahead,
)
from tests.support.tiny_gguf import write_tiny_gguf


def disclosure_of(reply: Reply) -> Disclosure:
    return Disclosure.from_bytes(base64.urlsafe_b64decode(reply.json["mesh"]["disclosure"] + "=="))


def test_a_model_decides_and_the_receipt_says_which(tmp_path: Path) -> None:
    async def main() -> None:
        tiny = write_tiny_gguf(tmp_path / "tiny.gguf")
        engine = await GgufEngine.start(GgufConfig(tiny, "tiny", watts_u=5_000_000))
        meter = CpuTimeMeter("tiny", lambda: engine.pid, 5_000_000)
        async with house(tmp_path / "state", engine, meters=[meter], keep_ns=10**15) as gate:  # type: ignore[arg-type]
            options = ["yes", "no", "maybe ☂"]
            body = question("tiny", options=options, mesh={"nonce": NONCE, "disclose": True})
            reply = await gate.post(body, path=DECIDE)
            assert reply.status == 200
            told = reply.json
            assert (told["object"], told["model"]) == ("mesh.decision", "tiny")
            assert [one["option"] for one in told["options"]] == options
            assert [one["tokens"] for one in told["options"]] == [3, 2, 9]
            best = max(told["options"], key=lambda one: one["logprob"])
            assert told["decision"] == {"index": best["index"], "option": best["option"]}
            assert sum(one["probability"] for one in told["options"]) == pytest.approx(1)
            assert all(
                one["probability"] == pytest.approx(best["probability"] * math.exp(one["logprob"] - best["logprob"]))
                for one in told["options"]
            )
            sealed = gate.receipt(reply.headers["Mesh-Receipt"])
            receipt = sealed.value
            assert told["mesh"]["receipt_id"] == sealed.id.text
            assert receipt.output_commitment is None
            outcome = receipt.outcome
            assert (outcome.finish, outcome.decision, outcome.tokens_out) == ("stop", best["index"], 0)
            usage = {"prompt_tokens": outcome.tokens_in, "completion_tokens": 0, "total_tokens": outcome.tokens_in}
            assert told["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 0}}
            assert (receipt.max_tokens, receipt.engine.deterministic) == (1, False)
            assert receipt.energy.basis in ("modelled", "unresolved")
            disclosure = disclosure_of(reply)
            assert disclosure.output is None
            assert disclosure.request.id == receipt.request_id
            assert disclosure.request.decision == decision_digest(options, bytes.fromhex(NONCE))
            assert len(disclosure.payload_ids) == outcome.tokens_in == disclosure.request.prompt_tokens
            kept = await gate.get(f"/mesh/v1/receipts/{sealed.id.text}/disclosure")
            assert kept.body == disclosure.to_cbor()
            verdict = await replay(sealed.envelope, disclosure, engine, {gate.steward.public})
            assert (verdict.kind, verdict.row, verdict.reason) == ("not-replayable", 3, "no-commitment")
            assert "typed decision" in (verdict.detail or "")
            # the same again, and as text: other numbers, as the end of an answer is not asked for
            again = await gate.post(body, path=DECIDE)
            assert again.json["options"] == told["options"]
            text = {"model": "tiny", "prompt": "Is it? ", "options": options}
            going_on = await gate.post(text, path=DECIDE)
            ended = await gate.post({**text, "ignore_eos": False}, path=DECIDE)
            for open_end, whole in zip(going_on.json["options"], ended.json["options"], strict=True):
                assert open_end["logprob"] > whole["logprob"]
            as_ids = await gate.post({**text, "prompt": [3 + byte for byte in b"Is it? "]}, path=DECIDE)
            assert as_ids.json["options"] == going_on.json["options"]
            long = await gate.post({**text, "prompt": "x " * 2000}, path=DECIDE)
            assert long.code == (400, "context_length_exceeded")
            assert gate.steward.reader.count() == 5

    asyncio.run(main())


def test_what_is_asked_is_what_the_engine_is_handed(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Deciding()
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(question(), path=DECIDE)
            assert reply.json["decision"] == {"index": 1, "option": "no"}
            ((request, prompt, options),) = engine.asked
            assert bytes(prompt).decode() == "user: is it?\nassistant:"
            assert [bytes(option).decode() for option in options] == YES_NO
            payload = [*prompt, *b"yesno"]
            assert request.prompt_tokens == len(payload) == reply.json["usage"]["prompt_tokens"]
            assert (request.sampling.ignore_eos, request.sampling.temperature_u) == (False, 0)
            shown = await gate.post(question(mesh={"disclose": True}), path=DECIDE)
            assert payload_digest(disclosure_of(shown).payload_ids) == payload_digest(payload)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"options": None}, "options", "missing"),
        ({"options": []}, "options", "0 of them, expected 2 to 64"),
        ({"options": ["yes"]}, "options", "1 of them"),
        ({"options": [str(i) for i in range(65)]}, "options", "65 of them"),
        ({"options": "yes"}, "options", "expected an array"),
        ({"options": ["yes", 7]}, "options[1]", "expected text"),
        ({"options": ["yes", None]}, "options[1]", "expected text"),
        ({"options": ["yes", ""]}, "options[1]", "empty"),
        ({"options": ["yes", "no", "yes"]}, "options[2]", "the same as options[0]"),
        ({"options": ["yes", "n" * 4097]}, "options[1]", "4097 bytes"),
        ({"options": ["yes", "\u00ad"]}, "options[1]", "no tokens"),
        ({"options": ["yes", "no", "YES"]}, "options[2]", "the same tokens as options[0]"),
        ({"messages": None}, "prompt", "missing"),
        ({"messages": []}, "messages", "empty"),
        ({"prompt": "Is it?"}, "prompt", "not beside messages"),
        ({"messages": None, "prompt": []}, "prompt", "no tokens"),
        ({"temperature": 1}, "temperature", "unknown field"),
        ({"max_tokens": 3}, "max_tokens", "unknown field"),
        ({"stream": True}, "stream", "whole"),
        ({"model": None}, "model", "missing"),
        ({"mesh": {"nonce": "x"}}, "mesh.nonce", "32 bytes"),
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_refused_with_its_field(
    tmp_path: Path, fields: dict[str, Any], param: str, why: str
) -> None:
    async def main() -> None:
        engine = Deciding()
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(question(**fields), path=DECIDE)
            assert reply.status == 400
            assert (reply.error["param"], reply.error["type"]) == (param, "invalid_request_error")
            assert why in reply.error["message"]
            assert (engine.asked, gate.steward.reader.count()) == ([], 0)

    asyncio.run(main())


def test_an_engine_that_makes_none_is_refused_by_name_and_another_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine(), others=[Deciding()], shared="either") as gate:
            reply = await gate.post(question("reference"), path=DECIDE)
            assert reply.code == (400, "unsupported_parameter")
            assert reply.error["param"] == "options"
            assert "makes no typed decisions" in reply.error["message"]
            assert (await gate.post(question("none"), path=DECIDE)).code == (404, "model_not_found")
            assert gate.steward.reader.count() == 0
            found = await gate.post(question("either"), path=DECIDE)
            assert found.json["mesh"]["recipe_id"] == "deciding"
            over = await gate.post(question("either", mesh={"joule_ceiling_uj": 5}), path=DECIDE)
            assert over.code == (400, "no_candidate")
            assert "joule ceiling" in over.error["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda served: replace(served, decided=None), "decision-missing"),
        (lambda served: replace(served, decided=(-1.0,)), "decision-missing"),
        (lambda served: replace(served, outcome=without(served.outcome, "decision")), "decision-missing"),
        (lambda served: replace(served, outcome=with_(served.outcome, decision=2)), "decision-missing"),
        (lambda served: replace(served, outcome=with_(served.outcome, finish="length")), "length-differs"),
        (lambda served: replace(served, outcome=with_(served.outcome, tokens_in=1)), "count-differs"),
        (lambda served: replace(served, tokens=(5,)), "stream-differs"),
    ],
)  # fmt: skip
def test_a_decision_that_is_none_is_sealed_as_a_failure(
    tmp_path: Path, change: Callable[[Served], Served], reason: str
) -> None:
    async def main() -> None:
        engine = Deciding()
        engine.change = change
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(question(), path=DECIDE)
            assert reply.code == (502, "engine-failed")
            receipt = gate.receipt(reply.error["mesh"]["receipt_id"]).value
            assert (receipt.outcome.finish, receipt.outcome.reason) == ("engine-error", reason)
            assert (receipt.outcome.decision, receipt.output_commitment) == (None, None)

    asyncio.run(main())


def with_(outcome: ServeOutcome, **fields: Any) -> ServeOutcome:
    return ServeOutcome.of(**outcome.to_map() | fields)


def without(outcome: ServeOutcome, name: str) -> ServeOutcome:
    return ServeOutcome.of(**{field: value for field, value in outcome.to_map().items() if field != name})


def test_an_answer_is_no_decision(tmp_path: Path) -> None:
    class Both(Scripted):
        async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
            served = await super().serve(request, prompt, sink)
            return replace(served, outcome=with_(served.outcome, decision=0))

    async def main() -> None:
        async with house(tmp_path, Both([b"hello"])) as gate:
            reply = await gate.post(ask(model="scripted"))
            assert reply.code == (502, "engine-failed")
            assert gate.receipt(reply.error["mesh"]["receipt_id"]).value.outcome.reason == "decision-uncalled"

    asyncio.run(main())


def test_an_engine_that_fails_is_sealed_and_another_may_decide(tmp_path: Path) -> None:
    async def main() -> None:
        broken, whole = Deciding(), Deciding(recipe_id="whole")
        broken.fails = True
        async with house(tmp_path, broken, others=[whole], shared="either") as gate:
            reply = await gate.post(question(), path=DECIDE)
            assert reply.code == (502, "engine-failed")
            receipt = gate.receipt(reply.error["mesh"]["receipt_id"]).value
            assert (receipt.outcome.finish, receipt.output_commitment) == ("engine-error", None)
            either = await gate.post(question("either"), path=DECIDE)
            assert (either.status, either.json["mesh"]["recipe_id"]) == (200, "whole")
            assert len(either.json["mesh"]["failed_before"]) == 1

    asyncio.run(main())


def test_a_deadline_and_a_client_that_leaves_are_sealed_without_a_decision(tmp_path: Path) -> None:
    async def main(loop: Ahead) -> None:
        engine = Deciding(holds=True)
        async with house(tmp_path, engine, deadline_s=60) as gate:
            asking = asyncio.ensure_future(gate.post(question(), path=DECIDE))
            await engine.held.wait()
            loop.ahead += 60
            late = await asking
            assert late.code == (504, "deadline_exceeded")
            engine.held.clear()
            leaving = asyncio.ensure_future(gate.post(question(), path=DECIDE))
            await engine.held.wait()
            leaving.cancel()
            receipts = [gate.receipt(late.error["mesh"]["receipt_id"]), await gate.last_receipt(2)]
            for sealed, reason in zip(receipts, ("deadline", "client-gone"), strict=True):
                outcome = sealed.value.outcome
                assert (outcome.finish, outcome.reason, outcome.decision) == ("cancelled", reason, None)
                assert sealed.value.output_commitment is None

    run_ahead(main)


def test_a_decision_waits_its_turn_and_a_full_queue_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Deciding(holds=True, slots=1)
        async with house(tmp_path, engine, queue=0) as gate:
            first = asyncio.ensure_future(gate.post(question(), path=DECIDE))
            await engine.held.wait()
            turned_away = await gate.post(question(), path=DECIDE)
            assert turned_away.code == (429, "overloaded")
            assert "Retry-After" in turned_away.headers
            engine.go.set()
            assert (await first).status == 200

    asyncio.run(main())


def test_a_repeated_key_gives_the_first_decision(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Deciding()
        async with house(tmp_path, engine) as gate:
            first = await gate.post(question(), path=DECIDE, Idempotency_Key="k")
            again = await gate.post(question(), path=DECIDE, Idempotency_Key="k")
            assert (again.body, again.headers["Idempotency-Replayed"]) == (first.body, "true")
            other = await gate.post(question(options=["yes", "never"]), path=DECIDE, Idempotency_Key="k")
            assert other.code == (422, "idempotency_mismatch")
            assert len(engine.asked) == gate.steward.reader.count() == 1

    asyncio.run(main())


def test_an_option_that_cannot_be_has_a_number_and_no_infinity(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Deciding()
        async with house(tmp_path, engine) as gate:
            engine.change = lambda served: replace(served, decided=(-math.inf, -0.5))
            reply = await gate.post(question(), path=DECIDE)
            assert [one["logprob"] for one in reply.json["options"]] == [-9999.0, -0.5]
            assert [one["probability"] for one in reply.json["options"]] == [0.0, 1.0]
            engine.change = lambda served: replace(served, decided=(-math.inf, -math.inf))
            reply = await gate.post(question(), path=DECIDE)
            assert [one["probability"] for one in reply.json["options"]] == [0.5, 0.5]

    asyncio.run(main())


def test_a_decision_is_counted_as_a_serve(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Deciding()) as gate:
            metrics = (await gate.get("/metrics")).body.decode()
            assert 'mesh_serves_total{model="deciding"' not in metrics
            await gate.post(question(), path=DECIDE)
            metrics = (await gate.get("/metrics")).body.decode()
            assert 'mesh_serves_total{model="deciding",finish="stop"} 1' in metrics

    asyncio.run(main())
