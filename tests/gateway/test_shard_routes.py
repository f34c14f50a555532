"""A backend over several hosts: users come to it once a real forward has certified it, and receipts name it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mesh.errors import RecipeNotCertified
from mesh.identity.evidence import ForwardEvidence
from mesh.identity.shard_route import ShardRoute
from mesh.ledger import Ledger
from mesh.schema.canonical import decode_map
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_SETTINGS_BYTES
from tests.gateway.serving import Scripted, house, script
from tests.identity.identities import cut, identity
from tests.support.stewards import KEY

ROUTE = ShardRoute((cut(0, 2), cut(2, 4)), ("near", "far"))


def engine() -> Scripted:
    made = Scripted([b"a", b"b"])
    made.identity, made.shard_route = identity(), ROUTE  # type: ignore[attr-defined]
    return made


def known(folder: Path, *, evidence: ForwardEvidence | None = None) -> None:
    with Ledger.open(folder / "ledger.sqlite", steward=KEY.public) as ledger:
        ledger.register_recipe(ROUTE.shards[0]).result()
        if evidence is not None:
            ledger.certify_recipe(ROUTE.shards[0], evidence).result()


@pytest.mark.parametrize("status", ["unknown", "dark"])
def test_route_that_nothing_has_certified_serves_nobody(tmp_path, status):
    if status == "dark":
        known(tmp_path)

    async def main() -> None:
        with pytest.raises(RecipeNotCertified, match=f"recipe 'small': {status}, expected certified"):
            async with house(tmp_path, engine()):
                raise AssertionError

    asyncio.run(main())


def test_certified_route_serves_and_its_receipts_name_it(tmp_path):
    known(tmp_path, evidence=ROUTE.evidence(session="s", tokens=1, at_ns=0))

    async def main() -> None:
        async with house(tmp_path, engine()) as gate:
            path = f"/mesh/v1/routes/{ROUTE.digest.text}"
            before = await gate.get(path, Accept="application/cbor")
            assert (await gate.post(script())).status == 200
            assert (await gate.last_receipt(1)).value.engine.route_digest == ROUTE.digest
            for reply in (before, await gate.get(path, Accept="application/cbor")):
                assert (reply.status, reply.headers["Content-Type"]) == (200, "application/cbor")
                document = decode_map(reply.body, max_bytes=MAX_SETTINGS_BYTES)
                assert ContentId.of("route", document) == ROUTE.digest
            view = (await gate.get(path, Accept="application/json")).json
            assert view == {"view_of": "application/cbor", "digest": ROUTE.digest.text, "route": ROUTE.document}
            (shown,) = (await gate.get("/mesh/v1/backends")).json["backends"]
            assert shown["shard_route"] == {"route_digest": ROUTE.digest.text, "nodes": 2}
            unknown = await gate.get(f"/mesh/v1/routes/{ContentId.of_bytes(b'').text}")
            assert unknown.code == (404, "route_not_found")

    asyncio.run(main())


def test_route_is_there_when_its_backend_is_gone(tmp_path):
    known(tmp_path, evidence=ROUTE.evidence(session="s", tokens=1, at_ns=0))

    async def main() -> None:
        async with house(tmp_path, engine()) as gate:
            assert (await gate.post(script())).status == 200
        async with house(tmp_path, Scripted([b"a"])) as gate:
            reply = await gate.get(f"/mesh/v1/routes/{ROUTE.digest.text}", Accept="application/json")
            assert reply.json["route"] == ROUTE.document
            (shown,) = (await gate.get("/mesh/v1/backends")).json["backends"]
            assert shown["shard_route"] is None

    asyncio.run(main())
