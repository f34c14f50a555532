"""What a gateway tells of the blueprints that it serves under."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mesh.engine.reference import ReferenceEngine
from tests.blueprint.bodies import body, verified
from tests.gateway.serving import ask, house


class Governed(ReferenceEngine):
    blueprint_id = verified().id


def test_blueprints_are_told_with_their_models_and_circuits(tmp_path: Path) -> None:
    blueprint = verified()
    name = f"sha256:{blueprint.id.hex()}"

    async def main() -> None:
        engines = [Governed("one"), Governed("two")]
        async with house(
            tmp_path, engines[0], others=[engines[1], ReferenceEngine("free")], blueprints=[blueprint]
        ) as gate:
            told = (await gate.get("/mesh/v1/blueprints")).json["blueprints"]
            assert told == [
                {"blueprint_id": name, "name": "tiny on a test", "lineage": bytes(range(16)).hex(), "revision": 3,
                 "signer": "a signer", "models": ["one", "two"]}
            ]  # fmt: skip
            drawn = (await gate.get(f"/mesh/v1/blueprints/{name}/circuit")).json
            circuit = body().circuit
            assert drawn["nodes"]["names"] == [node.name for node in circuit.nodes]
            assert drawn["edges"]["end"] == [edge.end for edge in circuit.edges]
            kinds = [drawn["kinds"][which] for which in drawn["nodes"]["kind"]]
            assert kinds == [node.kind for node in circuit.nodes]
            assert drawn["nodes"]["kernel"][3] == "lib.so::mul_mat"
            # by the format of its weights, whatever it sums up in
            assert drawn["formats"][drawn["nodes"]["format"][3]] == "Q4_1"
            assert drawn["formats"][drawn["nodes"]["computes"][3]] == "F32"
            reply = await gate.get(f"/mesh/v1/blueprints/sha256:{'0' * 64}/circuit")
            assert reply.code == (404, "blueprint_not_found")
            answer = await gate.post(ask(model="two"))
            receipt = gate.receipt(answer.json["mesh"]["receipt_id"]).value
            assert receipt.engine.blueprint_id == blueprint.id
            answer = await gate.post(ask(model="free"))
            assert gate.receipt(answer.json["mesh"]["receipt_id"]).value.engine.blueprint_id is None

    asyncio.run(main())


def test_circuits_are_for_those_who_may_use_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        digest = "b3:" + "0" * 64
        async with house(tmp_path, Governed("one"), keys=[digest], blueprints=[verified()]) as gate:
            assert (await gate.get("/mesh/v1/blueprints")).status == 401
            assert (await gate.get("/blueprint")).status == 200

    asyncio.run(main())
