"""What Prometheus and the log are told: the sums of the ledger, and nothing of what was said or by whom."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from pathlib import Path

import pytest
from blake3 import blake3

from mesh.engine.reference import ReferenceEngine
from mesh.gateway.metrics import SEAL_BUCKETS_S
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.gateway.serving import House, Scripted, ask, house, raw_request, script
from tests.support.meters import SteadyMeter

KEY = "sk-a-secret-of-this-test"
DIGEST = "b3:" + blake3(KEY.encode()).hexdigest()
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\+?[0-9.e+-]+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')

Series = tuple[str, frozenset[tuple[str, str]]]


async def scraped(gate: House) -> dict[Series, str]:
    """Every sample, after a look at the format: each family has its help and its type before its samples."""
    reply = await gate.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples: dict[Series, str] = {}
    family = ""
    for line in reply.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram")
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found, line
            assert family
            assert found[1].startswith(family)
            series = found[1], frozenset(LABEL.findall(found[2] or ""))
            assert series not in samples
            samples[series] = found[3]
    return samples


def series(name: str, **labels: str) -> Series:
    return name, frozenset(labels.items())


def test_sums_are_those_of_the_ledger(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"some ", b"words"], recipe_id="scripted", hold_at=1)
        engine.go.set()
        dying = Scripted([b"a", b"b"], recipe_id="dying", die_at=1)
        other = ReferenceEngine('a "name"\\', work_per_token=500)
        meters = [SteadyMeter("scripted", 700), SteadyMeter(other.recipe_id, 3)]
        async with house(tmp_path, engine, others=[dying, other], meters=meters) as gate:
            for n in range(4):
                assert (await gate.post(script(stream=n % 2 == 0))).status == 200
                assert (await gate.post(ask(model=other.recipe_id))).status == 200
                await gate.post(ask(model="dying"))
            engine.go.clear()
            held = engine.holding
            _, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            writer.write(raw_request(script(stream=True)))
            while engine.holding == held:
                await asyncio.sleep(0.001)
            writer.transport.abort()
            await gate.last_receipt(13)
            samples = await scraped(gate)
            sums: Counter[Series] = Counter()
            uj: Counter[Series] = Counter()
            for entry in gate.steward.reader.receipts():
                receipt = verify(entry.envelope, RECEIPT_TYPE, {gate.steward.public}).value
                model, outcome, energy = receipt.engine.recipe_id, receipt.outcome, receipt.energy
                name = model.replace("\\", "\\\\").replace('"', '\\"')
                sums[series("mesh_serves_total", model=name, finish=outcome.finish)] += 1
                sums[series("mesh_energy_receipts_total", model=name, basis=energy.basis)] += 1
                sums[series("mesh_seal_seconds_count", model=name)] += 1
                for kind, count in (
                    ("prompt", outcome.tokens_in), ("output", outcome.tokens_out),
                    ("delivered", outcome.tokens_delivered), ("cached", outcome.cache_hit_tokens),
                ):  # fmt: skip
                    sums[series("mesh_tokens_total", model=name, kind=kind)] += count or 0
                if energy.uj is not None:
                    uj[series("mesh_energy_joules_total", model=name, basis=energy.basis)] += energy.uj
            assert len(uj) == 2
            assert {found[0] for found in sums} <= {found[0] for found in samples}
            for found, value in samples.items():
                if found in sums or found[0] in {name for name, _ in sums}:
                    assert int(value) == sums[found], found
                elif found[0] == "mesh_energy_joules_total":
                    whole, _, part = value.partition(".")
                    assert int(whole) * 10**6 + int(part) == uj.pop(found)
            assert not uj
            assert sum(sums[found] for found in sums if found[0] == "mesh_serves_total") == 13
            assert samples[series("mesh_joules_per_token", model="scripted")] != "0.000000000"
            assert series("mesh_joules_per_token", model="dying") not in samples

    asyncio.run(main())


def test_seal_latency_is_a_histogram(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for _ in range(3):
                await gate.post(ask())
            samples = await scraped(gate)
            bounds = [str(bound) for bound in SEAL_BUCKETS_S] + ["+Inf"]
            counts = [int(samples[series("mesh_seal_seconds_bucket", model="reference", le=le)]) for le in bounds]
            assert counts == sorted(counts)
            assert counts[-1] == int(samples[series("mesh_seal_seconds_count", model="reference")]) == 3
            assert float(samples[series("mesh_seal_seconds_sum", model="reference")]) > 0

    asyncio.run(main())


def test_room_and_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, slots=1)
        async with house(tmp_path, engine, queue=1) as gate:
            held = [asyncio.ensure_future(gate.post(script())) for _ in range(2)]
            while gate.gateway.backends.all[0].room.waiting == 0:
                await asyncio.sleep(0.001)
            for body in (script(), script(), ask(model="other"), script(unknown=1)):
                assert (await gate.post(body)).status >= 400
            await gate.get("/nowhere")
            samples = await scraped(gate)
            model = {"model": "scripted"}
            assert [samples[series(f"mesh_{name}", **model)] for name in ("slots", "running", "queue_length")] == [
                "1", "1", "1",
            ]  # fmt: skip
            refused = {dict(labels)["reason"]: n for (name, labels), n in samples.items() if "refusals" in name}
            assert refused == {
                "overloaded": "2",
                "model_not_found": "1",
                "unknown_parameter": "1",
                "unknown_route": "1",
            }
            engine.go.set()
            await asyncio.gather(*held)
            assert (await scraped(gate))[series("mesh_running", **model)] == "0"

    asyncio.run(main())


def test_metrics_want_a_key_where_serving_does_and_can_be_turned_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path / "a", keys=[DIGEST]) as gate:
            assert (await gate.get("/metrics")).code == (401, "missing_api_key")
            assert (await gate.get("/metrics", Authorization=f"Bearer {KEY}")).status == 200
        async with house(tmp_path / "b", metrics=False) as gate:
            assert (await gate.get("/metrics")).code == (404, "unknown_route")

    asyncio.run(main())


def test_neither_metrics_nor_log_hold_content_or_keys_and_metrics_no_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        engine = Scripted([b"an answer ", b"of words"])
        async with house(tmp_path, engine, keys=[DIGEST], key=KEY) as gate:
            reply = await gate.post(script("a question", user="somebody"))
            assert reply.status == 200
            text = (await gate.get("/metrics")).body.decode()
            (serve,) = [record for record in caplog.records if record.name == "mesh.serves"]
            fields = serve.fields  # type: ignore[attr-defined]
            assert (fields["model"], fields["finish"], fields["tokens_out"]) == ("scripted", "stop", 3)
            assert fields["receipt"] == reply.headers["Mesh-Receipt"]
            assert fields["serve"] == reply.headers["Mesh-Serve"]
            logged = "".join(f"{record.getMessage()} {record.__dict__.get('fields')}" for record in caplog.records)
            for secret in ("question", "answer", "words", KEY, "somebody"):
                assert secret not in text
                assert secret not in logged
            assert DIGEST[3:19] not in text
            assert DIGEST[3:19] not in str(fields)

    asyncio.run(main())
