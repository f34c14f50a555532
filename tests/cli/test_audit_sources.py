"""Where an audit takes receipts and disclosures from: a real gateway asked by its operator, by a caller, by a guest."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from mesh.cli import audit_sources
from mesh.cli.audit_sources import GatewaySource, source_of
from mesh.cli.client import Gateway
from mesh.errors import StructureError
from mesh.schema.ids import steward_text
from tests.gateway.granting import granting, post, token
from tests.gateway.serving import ask, house
from tests.support.audits import make_day
from tests.support.meters import SteadyMeter
from tests.support.stewards import KEY as GATE

TRUST = steward_text(GATE.public)
KEYS = ("sk-one-of-this-test", "sk-another-of-this-test")
YEAR_NS = 365 * 24 * 3600 * 10**9


def test_a_gateway_is_audited_by_a_caller_who_has_the_disclosures_of_his_own_serves(
    mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_sources, "_PAGE", 3)  # so that there are several

    async def main() -> None:
        digests = [f"b3:{blake3(key.encode()).hexdigest()}" for key in KEYS]
        meters = [SteadyMeter("reference", 30)]
        async with house(tmp_path, keys=digests, key=KEYS[0], keep_ns=YEAR_NS, meters=meters) as gate:
            for n in range(8):
                headers = {"Authorization": f"Bearer {KEYS[n % 2]}"}
                assert (await gate.post(ask(f"{n}", max_tokens=4), **headers)).status == 200
                if n % 2:
                    await gate.steward.checkpoint()
            argv = ("audit", gate.url, "--trust", TRUST, "--reference", "--json")
            monkeypatch.setenv("MESH_API_KEY", KEYS[0])
            result = await asyncio.to_thread(mesh, *argv)
            told = result.json
            assert (result.code, told["faults"], told["receipts"], told["checkpoints"]) == (11, [], 8, 4)
            assert told["disclosures"] == {"gateway": 4, "other_caller": 4}
            assert told["replays"]["verdicts"] == {"verified": 4, "not-replayable": 4}
            assert [one["result"] for one in told["energy"]] == ["exact"]
            monkeypatch.setenv("MESH_API_KEY", "sk-of-nobody")
            assert (await asyncio.to_thread(mesh, *argv)).code == 10  # refused

    asyncio.run(main())


def test_the_bearer_of_a_grant_audits_its_own_serves_and_no_gap_is_a_fault(
    mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_sources, "_PAGE", 2)

    async def main() -> None:
        async with granting(tmp_path) as gate:
            grants = [token({"max-tokens": 8}), token({"max-tokens": 8})]
            for n in range(7):
                assert (await post(gate, grants[n % 2])).status == 200
            await gate.steward.checkpoint()
            monkeypatch.setenv("MESH_API_KEY", grants[0])
            result = await asyncio.to_thread(mesh, "audit", gate.url, "--trust", TRUST, "--json")
            told = result.json
            assert (result.code, told["receipts"], told["sources"][0]["partial"]) == (0, 4, True)
            assert [(gap["first_seq"], gap["last_seq"]) for gap in told["stewards"][0]["missing"]] == [
                (1, 1), (3, 3), (5, 5)
            ]  # fmt: skip

    asyncio.run(main())


class Answering(Gateway):
    """A gateway that answers what a test says, which no honest one does."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__("http://nowhere.invalid")
        object.__setattr__(self, "answers", answers)

    def get_json(self, path: str) -> Any:
        answers: Mapping[str, Any] = object.__getattribute__(self, "answers")
        return answers[path.partition("?")[0]]


GOOD = {
    "/mesh/v1/steward": {"receipts": 1}, "/mesh/v1/checkpoints": {"checkpoints": []},
    "/mesh/v1/receipts": {"receipts": []},
}  # fmt: skip
ITEM = {"seq": 0, "receipt_id": "b3:" + "00" * 32, "serve_id": "00" * 16, "envelope": "0oQ"}


@pytest.mark.parametrize(
    ("route", "answer", "error"),
    [
        ("steward", [], ConnectionError), ("steward", {"receipts": -1}, ConnectionError),
        ("steward", {"receipts": "9"}, ConnectionError), ("checkpoints", {}, ConnectionError),
        ("checkpoints", {"checkpoints": [], "next": 0}, ConnectionError),
        ("checkpoints", {"checkpoints": [], "next": "1"}, ConnectionError),
        ("checkpoints", {"checkpoints": [{}]}, StructureError), ("checkpoints", {"checkpoints": [3]}, StructureError),
        ("checkpoints", {"checkpoints": [{"envelope": "é"}]}, StructureError), ("receipts", [], ConnectionError),
        ("receipts", {"receipts": [ITEM | {"envelope": None}]}, StructureError),
        ("receipts", {"receipts": [ITEM | {"receipt_id": "x"}]}, StructureError),
        ("receipts", {"receipts": [ITEM | {"serve_id": "x"}]}, StructureError),
    ],
)  # fmt: skip
def test_a_gateway_that_answers_nonsense_is_named(route: str, answer: Any, error: type[Exception]) -> None:
    source = GatewaySource(Answering(GOOD | {f"/mesh/v1/{route}": answer}), partial=False)
    with pytest.raises(error, match=r"nowhere\.invalid"):
        list(source.envelopes())


def test_a_list_that_goes_round_is_given_up() -> None:
    answers = GOOD | {"/mesh/v1/receipts": {"receipts": [], "next": 5}}
    with pytest.raises(ConnectionError, match="does not come to an end"):
        list(GatewaySource(Answering(answers), partial=True).envelopes())


def test_what_a_gateway_says_beside_an_envelope_is_held_against_it() -> None:
    envelope = make_day(1).sealed[0].envelope
    listed = ITEM | {"envelope": base64.urlsafe_b64encode(envelope).rstrip(b"=").decode()}
    answers = GOOD | {"/mesh/v1/receipts": {"receipts": [listed]}}
    ((data, where, place),) = GatewaySource(Answering(answers), partial=False).envelopes()
    assert data == envelope
    assert where == "http://nowhere.invalid seq 0"
    assert place is not None
    assert (place.seq, place.receipt_id, place.serve_id) == (0, bytes(32), bytes(16))


def test_what_kind_a_source_is_follows_from_its_name(tmp_path: Path) -> None:
    archive = make_day(2).write(tmp_path)
    for name, ordered in ((archive, True), (tmp_path / "disclosures", False)):
        assert source_of(str(name), credential=None, complete=False, partial=False).about.ordered == ordered
    whole = source_of(str(archive), credential=None, complete=True, partial=False).about
    some = source_of(str(archive), credential=None, complete=False, partial=True).about
    assert (whole.whole, whole.partial, some.whole, some.partial) == (True, False, False, True)
    guest = source_of("http://nowhere.invalid", credential="mg1_x", complete=False, partial=False).about
    assert guest.partial
