"""What charts are drawn from: sums that are those of the receipts, and nothing where nothing is known."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.gateway import recent
from mesh.gateway.recent import Recent, Row
from mesh.gateway.summary import summed
from mesh.gateway.sums import MAX_GROUPS, POINTS, grouped, series
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.gateway.serving import Scripted, ask, house, script
from tests.support.meters import SteadyMeter

S = 10**9


def row(seq: int = 0, **fields: Any) -> Row:
    told: dict[str, Any] = {
        "caller": "loopback", "model": "m", "finish": "stop", "started_ns": 0, "ended_ns": S, "tokens_in": 1,
        "tokens_out": 10, "tokens_accepted": 10, "basis": "measured", "uj": 1_000_000,
    }  # fmt: skip
    return Row(seq, **told | fields)


def test_summary_adds_up_what_the_receipts_say(tmp_path: Path) -> None:
    async def main() -> None:
        engine = ReferenceEngine(work_per_token=500)
        dying = Scripted([b"a", b"b"], recipe_id="dying", die_at=1)
        meters = [SteadyMeter("reference", 700)]
        async with house(tmp_path, engine, others=[dying], meters=meters) as gate:
            for n in range(3):
                await gate.post(ask(f"{n}"))
            await gate.post(ask(model="dying"))
            told = (await gate.get("/mesh/v1/summary")).json
            receipts = [
                verify(entry.envelope, RECEIPT_TYPE, {gate.steward.public}).value
                for entry in gate.steward.reader.receipts()
            ]
            total = told["total"]
            assert total["serves"] == 4
            assert Counter(total["finishes"]) == Counter(receipt.outcome.finish for receipt in receipts)
            assert Counter(total["bases"]) == Counter(receipt.energy.basis for receipt in receipts)
            assert total["tokens_out"] == sum(receipt.outcome.tokens_out or 0 for receipt in receipts)
            assert sum(total["uj"].values()) == sum(receipt.energy.uj or 0 for receipt in receipts) == total["token_uj"]
            assert total["tokens"] == 24
            models = {group["name"]: group for group in told["by_model"]}
            assert models["reference"]["uj"] == total["uj"]
            assert models["dying"]["uj"] == {}
            assert "tokens" not in models["dying"]
            assert [group["name"] for group in told["by_caller"]] == ["loopback"]
            assert told["complete"] is True
            assert len(told["series"]) == POINTS
            await gate.post(ask("one more"))
            assert (await gate.get("/mesh/v1/summary?window_s=900")).json["total"]["serves"] == 5
            for query in ("window_s=1", "window_s=604801", "window_s=x", "hours=1"):
                assert (await gate.get(f"/mesh/v1/summary?{query}")).status == 400

    asyncio.run(main())


def test_live_tells_meters_by_their_readings_and_backends_by_their_slots(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, slots=1)
        async with house(tmp_path, engine, meters=[SteadyMeter("scripted", 5)]) as gate:
            held = [asyncio.ensure_future(gate.post(script())) for _ in range(2)]
            await engine.held.wait()
            while gate.gateway.backends.all[0].room.waiting == 0:
                await asyncio.sleep(0.001)
            first = (await gate.get("/mesh/v1/live")).json
            assert first["backends"] == [{"model": "scripted", "slots": 1, "running": 1, "waiting": 1}]
            assert first["receipts"] == 0
            (meter,) = first["meters"]
            assert (meter["domain"], meter["method"], meter["modelled"]) == ("lamp:scripted", "lamp", True)
            engine.go.set()
            await asyncio.gather(*held)
            second = (await gate.get("/mesh/v1/live")).json
            assert second["epoch"] == first["epoch"]
            assert second["receipts"] == 2
            uj = second["meters"][0]["uj"] - meter["uj"]
            ns = int(second["meters"][0]["read_ns"]) - int(meter["read_ns"])
            # the lamp's 5 W, but for the microsecond that it is rounded to at either end
            assert abs(uj - 5 * ns / 1000) <= 10

    asyncio.run(main())


def test_live_without_a_meter_has_none_and_a_meter_without_a_reading_has_no_figure(tmp_path: Path) -> None:
    class Blind(SteadyMeter):
        def read(self) -> Any:
            return [type(reading)(reading.domain, reading.at_ns, None, "unplugged") for reading in super().read()]

    async def main() -> None:
        async with house(tmp_path / "a") as gate:
            assert (await gate.get("/mesh/v1/live")).json["meters"] == []
        async with house(tmp_path / "b", meters=[Blind("reference", 1)]) as gate:
            await gate.post(ask())
            (meter,) = (await gate.get("/mesh/v1/live")).json["meters"]
            assert "uj" not in meter
            assert meter["reason"] in ("unplugged", "no-reading")
            told = (await gate.get("/mesh/v1/summary")).json
            assert told["total"]["uj"] == {}
            assert not any("watts" in point for point in told["series"])

    asyncio.run(main())


def test_series_spreads_a_serve_over_its_span_and_loses_nothing() -> None:
    rows = [row(started_ns=S // 2, ended_ns=5 * S // 2)]
    points = series(rows, 0, S)
    assert [point["tokens_per_s"] for point in points[:4]] == [2.5, 5.0, 2.5, 0.0]
    assert [point["watts"] for point in points[:4]] == [0.25, 0.5, 0.25, 0.0]
    begun_before = series([row(started_ns=-S, ended_ns=S)], 0, S)
    assert begun_before[0] == {"tokens_per_s": 5.0, "watts": 0.5}
    at_once = series([row(started_ns=3 * S, ended_ns=3 * S)], 0, S)
    assert sum(point["watts"] for point in at_once) == 1.0
    clock_set_back = series([row(started_ns=90 * S, ended_ns=2 * S)], 0, S)
    assert sum(point["tokens_per_s"] for point in clock_set_back) == 10.0
    later = series([row(started_ns=200 * S, ended_ns=201 * S), row(started_ns=-3 * S, ended_ns=-S)], 0, S)
    assert not any(point["tokens_per_s"] for point in later)


def test_series_has_no_tokens_where_serves_ran_and_none_was_counted() -> None:
    uncounted = row(started_ns=0, ended_ns=S, tokens_out=None)
    points = series([uncounted, row(started_ns=5 * S, ended_ns=6 * S)], 0, S)
    assert points[0] == {"watts": 1.0, "without_count": 1}
    assert points[1] == {"tokens_per_s": 0.0, "watts": 0.0}
    both = series([uncounted, row()], 0, S)
    assert both[0] == {"tokens_per_s": 10.0, "watts": 2.0, "without_count": 1}


def test_series_has_no_watts_where_serves_ran_and_none_is_known() -> None:
    unknown = row(started_ns=0, ended_ns=S, basis="absent", uj=None)
    known = row(started_ns=5 * S, ended_ns=6 * S)
    assert not any("watts" in point for point in series([unknown], 0, S))
    points = series([unknown, known], 0, S)
    assert points[0] == {"tokens_per_s": 10.0, "without_figure": 1}
    assert points[1] == {"tokens_per_s": 0.0, "watts": 0.0}
    assert points[5] == {"tokens_per_s": 10.0, "watts": 1.0}
    both = series([unknown, row()], 0, S)
    assert both[0] == {"tokens_per_s": 20.0, "watts": 1.0, "without_figure": 1}


def test_groups_come_by_energy_and_leave_out_what_is_not_known() -> None:
    rows = [
        row(model="b", uj=5, basis="modelled"),
        row(model="a", uj=None, basis="absent", tokens_out=None, tokens_accepted=None, tokens_in=None),
        row(model="c", uj=7, basis="measured", tokens_accepted=0),
        row(model="c", uj=1 << 60, basis="allocated"),
    ]
    told = [group.view() for group in grouped(rows, lambda each: each.model)]
    assert [group["name"] for group in told] == ["c", "b", "a"]
    assert told[0]["uj"] == {"measured": 7, "allocated": str(1 << 60)}
    assert (told[0]["token_uj"], told[0]["tokens"]) == (str(1 << 60), 10)
    assert told[2] == {"name": "a", "serves": 1, "finishes": {"stop": 1}, "bases": {"absent": 1}, "uj": {}}


def test_summary_says_what_it_leaves_out() -> None:
    now_ns = 10_000 * S
    rows = tuple(row(seq, caller=f"key:{seq}", ended_ns=now_ns - S, started_ns=now_ns - 2 * S) for seq in range(5, 120))
    told = summed(rows, None, now_ns, 3600)
    assert told["complete"] is False
    assert told["from_seq"] == 5
    assert len(told["by_caller"]) == MAX_GROUPS
    assert told["by_caller_left_out"] == 15
    assert "by_model_left_out" not in told
    older = row(4, ended_ns=S)
    assert summed((older, *rows), None, now_ns, 3600)["complete"] is True
    own = summed(rows, "key:7", now_ns, 3600)
    assert own["total"]["serves"] == 1
    assert [group["name"] for group in own["by_caller"]] == ["key:7"]


def test_newest_rows_are_read_once_and_no_more_are_kept_than_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "_BATCH", 2)

    async def main() -> None:
        async with house(tmp_path) as gate:
            rows = Recent(gate.steward.reader, kept=3)
            assert await rows.rows() == ()
            for n in range(5):
                await gate.post(ask(f"{n}"))
            late = Recent(gate.steward.reader, kept=3)
            for each in (rows, late):
                assert [one.seq for one in await each.rows()] == [2, 3, 4]
            await gate.post(ask("more"))
            first, second = await asyncio.gather(late.rows(), late.rows())
            assert [one.seq for one in first] == [one.seq for one in second] == [3, 4, 5]

    asyncio.run(main())
