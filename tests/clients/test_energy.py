"""Clients that read a hosted service's energy find the gateway's, where they look for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mesh.gateway.energy import energy_fields
from tests.clients.conftest import Asked
from tests.gateway.serving import House, house
from tests.support.meters import SteadyMeter


def metered(gate: House, energy: dict[str, object]) -> None:
    """What a client has got is what the receipt that it names says."""
    receipt = gate.receipt(str(energy["receipt_id"]))
    assert energy == {**energy_fields(receipt.value.energy), "receipt_id": receipt.id.text}
    assert energy["energy_joules"] == (receipt.value.energy.uj or 0) / 1_000_000
    assert energy["basis"] == "modelled"


def test_llm_neuralwatt_logs_the_energy_of_plain_streamed_and_async_answers(tmp_path: Path, client: Asked) -> None:
    async def main() -> None:
        async with house(tmp_path, meters=[SteadyMeter("reference", uj_per_us=1_000)]) as gate:
            told = await client("neuralwatt_llm.py", gate.url + "/v1", model="reference")
            for way in ("plain", "streamed", "async"):
                metered(gate, told[way]["energy"])
                assert told[way]["text"].startswith(" w")
            ids = {told[way]["energy"]["receipt_id"] for way in told}
            assert len(ids) == 3

    asyncio.run(main())


def test_langchain_neuralwatt_finds_and_adds_up_the_energy(tmp_path: Path, client: Asked) -> None:
    async def main() -> None:
        async with house(tmp_path, meters=[SteadyMeter("reference", uj_per_us=1_000)]) as gate:
            told = await client("neuralwatt_langchain.py", gate.url + "/v1", model="reference")
            energies = [metadata["energy"] for metadata in told["metadata"]]
            for energy in energies:
                metered(gate, energy)
            summary = told["summary"]
            assert summary["calls"] == 2
            assert summary["energy_joules"] == pytest.approx(sum(energy["energy_joules"] for energy in energies))
            assert summary["energy_kwh"] * 3_600_000 == pytest.approx(summary["energy_joules"])
            assert told["streamed"].startswith(" w")

    asyncio.run(main())


def test_clients_are_told_that_there_is_no_figure(tmp_path: Path, client: Asked) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            told = await client("neuralwatt_llm.py", gate.url + "/v1", model="reference")
            for way in told:
                energy = told[way]["energy"]
                assert (energy["basis"], energy["reason"]) == ("absent", "no-meter")
                assert "energy_joules" not in energy
                assert "energy_kwh" not in energy

    asyncio.run(main())
