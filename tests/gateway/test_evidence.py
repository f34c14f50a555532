"""The mesh's own routes: what anyone may look up, and what only the caller of a serve gets."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from blake3 import blake3

from mesh.engine.reference import ReferenceEngine
from mesh.replay.replayer import replay
from mesh.schema.canonical import decode_map
from mesh.schema.disclosure import DISCLOSURE_TYPE, Disclosure, settings_digest
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId, steward_text
from tests.gateway.serving import Scripted, ask, content, house, script

YEAR_NS = 365 * 24 * 3600 * 10**9
JSON = "application/json"


def test_receipt_is_found_by_its_id_and_by_its_serve(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            answer = await gate.post(ask())
            for name in (answer.headers["Mesh-Receipt"], answer.headers["Mesh-Serve"]):
                found = await gate.get(f"/mesh/v1/receipts/{name}")
                assert (found.status, found.headers["Content-Type"]) == (200, "application/cose")
                sealed = verify(found.body, RECEIPT_TYPE, {gate.steward.public})
                assert sealed.id.text == found.headers["Mesh-Receipt"] == answer.headers["Mesh-Receipt"]
                assert found.headers["Mesh-Serve"] == answer.headers["Mesh-Serve"]

    asyncio.run(main())


def test_receipt_in_json_is_a_view_without_large_integers(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            answer = await gate.post(ask())
            name = answer.headers["Mesh-Receipt"]
            view = (await gate.get(f"/mesh/v1/receipts/{name}", Accept=JSON)).json
            receipt = gate.receipt(name).value
            assert (view["view_of"], view["receipt_id"]) == ("application/cose", name)
            told = view["receipt"]
            assert told["started_ns"] == str(receipt.started_ns)
            assert told["steward"] == steward_text(receipt.steward)
            assert told["serve_id"] == answer.headers["Mesh-Serve"]
            assert told["request_id"] == ContentId(receipt.request_id).text
            assert told["outcome"]["tokens_out"] == 8
            assert "prev" not in told
            both = await gate.get(f"/mesh/v1/receipts/{name}", Accept=f"application/cose, {JSON}")
            assert both.headers["Content-Type"] == "application/cose"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("b3:" + "00" * 32, (404, "receipt_not_found")),
        ("01a22b33-12aa-763a-92c7-75a269ee873e", (404, "receipt_not_found")),
        ("b3:xyz", (400, "invalid_id")),
        ("01A22B33-12AA-763A-92C7-75A269EE873E", (400, "invalid_id")),
        ("nothing", (400, "invalid_id")),
    ],
)
def test_receipt_that_is_not_there_is_not_found(tmp_path: Path, name: str, code: tuple[int, str]) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for path in (f"/mesh/v1/receipts/{name}", f"/mesh/v1/receipts/{name}/disclosure"):
                assert (await gate.get(path)).code == code

    asyncio.run(main())


def test_receipt_of_a_running_serve_is_said_to_come(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"a", b"b"], hold_at=1)
        async with house(tmp_path, engine) as gate:
            async with gate.http.post("/v1/chat/completions", json=script(stream=True)) as response:
                path = f"/mesh/v1/receipts/{response.headers['Mesh-Serve']}"
                assert (await gate.get(path)).code == (404, "not_sealed_yet")
                engine.go.set()
                await response.read()
            assert (await gate.get(path)).status == 200

    asyncio.run(main())


def test_settings_are_found_before_and_after_the_first_serve(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            (engine,) = (await gate.get("/mesh/v1/steward")).json["engines"]
            path = f"/mesh/v1/settings/{engine['settings_digest']}"
            before = await gate.get(path)
            await gate.post(ask())
            after = await gate.get(path)
            assert before.body == after.body
            assert after.headers["Content-Type"] == "application/cbor"
            settings = decode_map(after.body, max_bytes=1 << 16)
            assert settings_digest(settings).text == engine["settings_digest"]
            assert (await gate.get(path, Accept=JSON)).json["settings"] == settings
            assert (await gate.get("/mesh/v1/settings/b3:" + "00" * 32)).code == (404, "settings_not_found")
            assert (await gate.get("/mesh/v1/settings/x")).code == (400, "invalid_id")

    asyncio.run(main())


def test_steward_says_who_it_is_and_how_far_it_reaches(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, keep_ns=2 * 24 * 3600 * 10**9) as gate:
            empty = (await gate.get("/mesh/v1/steward")).json
            assert (empty["receipts"], empty["head"], empty["disclosures_kept_days"]) == (0, None, 2)
            answer = await gate.post(ask())
            told = (await gate.get("/mesh/v1/steward")).json
            assert (told["receipts"], told["head"]) == (1, answer.headers["Mesh-Receipt"])
            assert told["steward"] == steward_text(gate.steward.public)
            assert told["engines"][0]["backend_id"] == ReferenceEngine().backend_id

    asyncio.run(main())


def test_model_names_may_hold_slashes(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine("org/name")) as gate, gate.sdk() as client:
            assert (await client.models.retrieve("org/name")).id == "org/name"
            assert (await gate.get("/v1/models/org/name")).json["object"] == "model"
            assert (await gate.get("/v1/models/other")).code == (404, "model_not_found")

    asyncio.run(main())


def test_kept_disclosure_goes_to_the_caller_of_the_serve_alone(tmp_path: Path) -> None:
    digests = ["b3:" + blake3(name.encode()).hexdigest() for name in ("one", "two")]

    async def main() -> None:
        async with house(tmp_path, keys=digests, keep_ns=YEAR_NS) as gate:
            answer = await gate.post(ask("my secret"), Authorization="Bearer one")
            receipt_id = answer.headers["Mesh-Receipt"]
            path = f"/mesh/v1/receipts/{receipt_id}/disclosure"
            mine = await gate.get(path, Authorization="Bearer one")
            assert (mine.status, mine.headers["Content-Type"]) == (200, DISCLOSURE_TYPE)
            assert mine.headers["Cache-Control"] == "no-store"
            disclosure = Disclosure.from_bytes(mine.body)
            verdict = await replay(
                gate.receipt(receipt_id).envelope, disclosure, ReferenceEngine(), {gate.steward.public}
            )
            assert (verdict.kind, verdict.prompt, verdict.output) == ("verified", "checked", "matches")
            theirs = await gate.get(path, Authorization="Bearer two")
            assert theirs.code == (403, "other_caller")
            assert b"secret" not in theirs.body
            assert (await gate.get(path)).status == 401
            # the receipt says nothing of the content, so it is not only theirs
            assert (await gate.get(f"/mesh/v1/receipts/{receipt_id}", Authorization="Bearer two")).status == 200

    asyncio.run(main())


def test_what_was_not_kept_cannot_be_disclosed(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            answer = await gate.post(ask())
            reply = await gate.get(f"/mesh/v1/receipts/{answer.headers['Mesh-Receipt']}/disclosure")
            assert reply.code == (404, "not_kept")

    asyncio.run(main())


SECRET, SPOKEN = "the prompt is a secret", "and so is the answer"


def everything_written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("streamed", [False, True])
def test_prompt_and_answer_are_written_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> bytes:
        async with house(tmp_path, Scripted([SPOKEN.encode()])) as gate:
            reply = await gate.post(script(SECRET, stream=streamed, user="someone"), Idempotency_Key="k")
            assert content(reply) == SPOKEN
            # also what is refused, and what fails
            assert (await gate.post(script(SECRET, unknown=SECRET))).status == 400
            assert (await gate.post(script(SECRET, max_tokens=2**30))).status == 400
            return everything_written(tmp_path)

    written = asyncio.run(main()) + everything_written(tmp_path)
    packed = b"".join(ord(c).to_bytes(4, "little") for c in SECRET)
    for said in (SECRET.encode(), SPOKEN.encode(), packed, b"someone"):
        assert said not in written
        assert said.decode("latin-1") not in caplog.text
    assert "caller=loopback serve=01" in caplog.text


def test_kept_prompt_is_written_where_the_operator_wants_it(tmp_path: Path) -> None:
    async def main() -> bytes:
        async with house(tmp_path, Scripted([SPOKEN.encode()]), keep_ns=YEAR_NS) as gate:
            await gate.post(script(SECRET))
            return everything_written(tmp_path)

    assert SECRET.encode() in asyncio.run(main())
