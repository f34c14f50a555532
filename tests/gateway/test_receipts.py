"""The list of receipts: pages, searches, what each holds, and who may see whose."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from mesh.engine.reference import ReferenceEngine
from mesh.gateway import receipts
from mesh.schema.envelope import RECEIPT_TYPE, Sealed, verify
from mesh.schema.ids import serve_id_text
from tests.gateway.serving import House, Scripted, ask, house, script
from tests.support.meters import SteadyMeter

LIST = "/mesh/v1/receipts"
KEYS = ("sk-one-of-this-test", "sk-another-of-this-test")


def label(key: str) -> str:
    return f"key:{blake3(key.encode()).hexdigest()[:16]}"


def opened(gate: House, item: dict[str, Any]) -> Sealed:
    """The receipt of a line, checked, after a look at what the line says beside it."""
    data = base64.urlsafe_b64decode(item["envelope"] + "==")
    sealed = verify(data, RECEIPT_TYPE, {gate.steward.public})
    assert sealed.value.seq == item["seq"]
    assert sealed.id.text == item["receipt_id"]
    assert serve_id_text(sealed.value.serve_id) == item["serve_id"]
    return sealed


async def found(gate: House, query: str, **headers: str) -> list[int]:
    """The numbers of what a search finds, to its end."""
    numbers: list[int] = []
    more = ""
    while True:
        told = (await gate.get(f"{LIST}?{query}{more}", **headers)).json
        numbers += [opened(gate, item).value.seq for item in told["receipts"]]
        if "next" not in told:
            return numbers
        more = f"&before={told['next']}"


def test_receipts_come_newest_first_in_pages_without_gap_or_repeat(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            empty = (await gate.get(LIST)).json
            assert empty == {"count": 0, "searched": 0, "receipts": []}
            for n in range(7):
                await gate.post(ask(f"{n}"))
            first = (await gate.get(f"{LIST}?limit=3")).json
            assert (first["count"], first["next"]) == (7, 4)
            assert [item["seq"] for item in first["receipts"]] == [6, 5, 4]
            await gate.post(ask("meanwhile"))
            second = (await gate.get(f"{LIST}?limit=3&before=4")).json
            assert [item["seq"] for item in second["receipts"]] == [3, 2, 1]
            last = (await gate.get(f"{LIST}?limit=3&before=1")).json
            assert [item["seq"] for item in last["receipts"]] == [0]
            assert "next" not in last
            assert "next" not in (await gate.get(f"{LIST}?limit=3&before=3")).json
            assert await found(gate, "limit=2") == [7, 6, 5, 4, 3, 2, 1, 0]

    asyncio.run(main())


def test_receipt_is_found_by_either_id_and_by_its_beginning(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            answers = [await gate.post(ask(f"{n}")) for n in range(3)]
            for seq, answer in enumerate(answers):
                receipt, serve = answer.headers["Mesh-Receipt"], answer.headers["Mesh-Serve"]
                for name in (receipt, receipt[3:], receipt[:20], receipt[3:20], receipt.upper().replace("B3", "b3")):
                    assert await found(gate, f"id={name}") == [seq]
                for name in (serve, serve.replace("-", ""), serve[:-4]):
                    assert await found(gate, f"id={name}") == [seq]
                # a receipt id that is not one of a receipt, though a serve's begins like it
                assert await found(gate, f"id=b3:{serve[:-4]}") == []
                assert await found(gate, f"id={receipt}&finish=refused") == []
                assert await found(gate, f"id={receipt}&before={seq}") == []
            assert await found(gate, "id=" + "0" * 64) == []

    asyncio.run(main())


def test_receipts_are_found_by_what_they_say(tmp_path: Path) -> None:
    async def main() -> None:
        dying = Scripted([b"a", b"b"], recipe_id="dying", die_at=1)
        other = ReferenceEngine("Another/Model")
        meters = [SteadyMeter(other.recipe_id, 700)]
        async with house(tmp_path, ReferenceEngine(), others=[dying, other], meters=meters) as gate:
            await gate.post(ask())
            await gate.post(ask(model="dying"))
            await gate.post(ask(model=other.recipe_id))
            assert await found(gate, "model=another%2Fmod") == [2]
            assert await found(gate, "model=E&limit=1") == [2, 0]
            assert await found(gate, "finish=engine-error") == [1]
            assert await found(gate, "basis=absent") == [1, 0]
            assert await found(gate, "caller=LOOP") == [2, 1, 0]
            assert await found(gate, "caller=key") == []
            assert await found(gate, "model=reference&finish=length&basis=absent") == [0]
            assert await found(gate, "model=&finish=&id=") == [2, 1, 0]
            assert await found(gate, "from=2020-01-01T00:00:00Z") == [2, 1, 0]
            assert await found(gate, "until=2020-01-01T00:00:00Z") == []
            assert await found(gate, "from=2020-01-01T00:00:00Z&until=2250-01-01T00:00:00Z") == [2, 1, 0]

    asyncio.run(main())


def test_search_looks_at_so_many_and_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "SCANNED", 4)

    async def main() -> None:
        async with house(tmp_path, ReferenceEngine(), others=[ReferenceEngine("rare")]) as gate:
            await gate.post(ask(model="rare"))
            for n in range(9):
                await gate.post(ask(f"{n}"))
            told = (await gate.get(f"{LIST}?model=rare")).json
            assert told == {"count": 10, "searched": 4, "receipts": [], "next": 6}
            assert await found(gate, "model=rare") == [0]

    asyncio.run(main())


REFUSED = (
    ("limit=0", "invalid_value"),
    ("limit=201", "invalid_value"),
    ("limit=ten", "invalid_value"),
    ("limit=%C2%B2", "invalid_value"),
    ("before=-1", "invalid_value"),
    ("before=99999999999999999999999", "invalid_value"),
    ("finish=whenever", "invalid_value"),
    ("basis=guessed", "invalid_value"),
    ("from=yesterday", "invalid_value"),
    ("until=2026-11-30", "invalid_value"),
    ("id=b3:xyz", "invalid_id"),
    ("id=%3Cscript%3E", "invalid_id"),
    ("model=" + "m" * 257, "invalid_value"),
    ("modell=x", "unknown_parameter"),
    ("limit=1&limit=2", "duplicate_key"),
)


def test_question_that_cannot_be_answered_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for query, code in REFUSED:
                reply = await gate.get(f"{LIST}?{query}")
                assert reply.code == (400, code), query
                assert len(reply.error["message"]) < 300

    asyncio.run(main())


def test_list_holds_callers_by_their_labels_and_nothing_that_was_said(tmp_path: Path) -> None:
    async def main() -> None:
        digests = ["b3:" + blake3(key.encode()).hexdigest() for key in KEYS]
        engine = Scripted([b"an answer ", b"of words"])
        async with house(tmp_path, engine, keys=digests) as gate:
            for key in KEYS:
                bearer = {"Authorization": f"Bearer {key}"}
                assert (await gate.post(script("a question", user="somebody"), **bearer)).status == 200
            told = await gate.get(LIST, Authorization=f"Bearer {KEYS[0]}")
            assert [item["caller"] for item in told.json["receipts"]] == [label(KEYS[1]), label(KEYS[0])]
            assert await found(gate, f"caller={label(KEYS[1])}", Authorization=f"Bearer {KEYS[0]}") == [1]
            raw = told.body + b"".join(
                base64.urlsafe_b64decode(item["envelope"] + "==") for item in told.json["receipts"]
            )
            for secret in (*KEYS, "question", "answer", "words", "somebody"):
                assert secret.encode() not in raw

    asyncio.run(main())
