"""The `energy` of answers: other services' field names, the receipt's figures, and nothing where there is no figure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from mesh.gateway.energy import energy_fields
from mesh.schema.energy import Energy, EnergySource
from tests.gateway.serving import TEXT, Reply, Scripted, ask, house, script
from tests.support.meters import SteadyMeter

PAIR = {"energy_joules", "energy_kwh"}


def comment(reply: Reply) -> dict[str, Any]:
    """The one in a stream, which stands right before the end."""
    found = [line for line in reply.lines if line.startswith(": energy ")]
    assert found == reply.lines[-2:-1]
    assert reply.lines[-1] == "data: [DONE]"
    told: dict[str, Any] = json.loads(found[0].removeprefix(": energy "))
    return told


def figure(**fields: Any) -> Energy:
    """Three joules in two seconds."""
    source = EnergySource(domain="lamp", method="lamp", uj=3_000_000, resolution_ns=1)
    known = {"basis": "measured", "sources": [source], "span_ns": 2_000_000_000, "uj": 3_000_000} | fields
    return Energy.of(**{name: value for name, value in known.items() if value is not None})


def test_energy_of_a_serve_alone_has_joules_power_and_time() -> None:
    assert energy_fields(figure()) == {
        "energy_joules": 3.0, "energy_kwh": 3.0 / 3_600_000, "avg_power_watts": 1.5, "duration_seconds": 2.0,
        "basis": "measured",
    }  # fmt: skip


def test_energy_of_a_serve_in_company_names_the_rule_and_its_part_of_the_window() -> None:
    shared = figure(basis="allocated", rule="equal/1", window_uj=12_000_000, peak_sharers=4)
    told = energy_fields(shared)
    assert (told["attribution_method"], told["attribution_ratio"]) == ("equal/1", 0.25)
    assert told["basis"] == "allocated"


def test_energy_with_a_gap_says_how_much_was_observed() -> None:
    assert energy_fields(figure(basis="allocated", covered_ns=500_000_000))["covered_seconds"] == 0.5


@pytest.mark.parametrize(("basis", "reason"), [("absent", "no-meter"), ("unresolved", "counter-still")])
def test_energy_without_a_figure_says_why_and_has_no_number_for_it(basis: str, reason: str) -> None:
    told = energy_fields(figure(basis=basis, sources=[], uj=None, reason=reason))
    assert told == {"basis": basis, "reason": reason, "duration_seconds": 2.0}


def test_energy_of_no_known_span_has_neither_time_nor_power() -> None:
    assert energy_fields(Energy.of(basis="absent", sources=[], reason="not-begun")) == {
        "basis": "absent", "reason": "not-begun",
    }  # fmt: skip
    assert "avg_power_watts" not in energy_fields(figure(span_ns=0))


@pytest.mark.parametrize("path", [None, TEXT])
def test_answers_and_streams_carry_what_their_receipts_say(tmp_path: Path, path: str | None) -> None:
    async def main() -> None:
        async with house(tmp_path, meters=[SteadyMeter("reference", uj_per_us=1_000)]) as gate:
            to: dict[str, Any] = {} if path is None else {"path": path}
            call = ask() if path is None else {"model": "reference", "prompt": "hello", "max_tokens": 8}
            plain, streamed = await gate.post(call, **to), await gate.post(call | {"stream": True}, **to)
            for told, reply in ((plain.json["energy"], plain), (comment(streamed), streamed)):
                receipt = gate.receipt(reply.headers["Mesh-Serve"])
                assert told == {**energy_fields(receipt.value.energy), "receipt_id": receipt.id.text}
                assert told["basis"] == "modelled"
                assert told["energy_joules"] > 0

    asyncio.run(main())


def test_answer_without_a_meter_has_no_joules(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for told in ((await gate.post(ask())).json["energy"], comment(await gate.post(ask(stream=True)))):
                assert (told["basis"], told["reason"]) == ("absent", "no-meter")
                assert not told.keys() & PAIR

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_added_up_where_each_has_a_figure(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with house(tmp_path, meters=[SteadyMeter("reference", uj_per_us=1_000)]) as gate:
            reply = await gate.post(ask(n=3, stream=stream))
            told = comment(reply) if stream else reply.json["energy"]
            assert ", ".join(told["receipt_ids"]) == (
                ", ".join(e["mesh"]["receipt_id"] for e in sorted_finishes(reply)) if stream
                else reply.headers["Mesh-Receipt"]
            )  # fmt: skip
            each = [gate.receipt(name).value.energy for name in told["receipt_ids"]]
            assert told["energy_joules"] == sum(energy.uj or 0 for energy in each) / 1_000_000
            assert told["basis"] == "modelled"
            assert not told.keys() & {"duration_seconds", "avg_power_watts", "attribution_ratio", "receipt_id"}

    asyncio.run(main())


def sorted_finishes(reply: Reply) -> list[Any]:
    return sorted((e for e in reply.events if "mesh" in e), key=lambda e: int(e["mesh"]["index"]))


def test_choices_without_a_meter_have_no_sum(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            told = (await gate.post(ask(n=2))).json["energy"]
            assert (told["basis"], told["reason"], len(told["receipt_ids"])) == ("absent", "no-meter", 2)
            assert not told.keys() & PAIR

    asyncio.run(main())


def test_repeated_answer_repeats_its_energy(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, meters=[SteadyMeter("reference", uj_per_us=1_000)]) as gate:
            replies = [await gate.post(ask(stream=True), Idempotency_Key="k") for _ in range(2)]
            assert comment(replies[0]) == comment(replies[1])

    asyncio.run(main())


def test_stream_that_breaks_off_has_no_energy(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"a", b"b"], die_at=1)) as gate:
            reply = await gate.post(script(stream=True))
            assert not any(line.startswith(": energy") for line in reply.lines)

    asyncio.run(main())


def test_openai_client_takes_the_answer_and_passes_over_the_comment(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            house(tmp_path, meters=[SteadyMeter("reference", uj_per_us=1_000)]) as gate,
            gate.sdk() as client,
        ):
            answer = await client.chat.completions.create(**ask())
            assert isinstance(answer, openai.types.chat.ChatCompletion)
            assert answer.model_extra is not None
            assert answer.model_extra["energy"]["energy_joules"] > 0
            stream = await client.chat.completions.create(**ask(stream=True))
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason == "length"

    asyncio.run(main())
