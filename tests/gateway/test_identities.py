"""What backends are, and what a gateway does with one that is no longer that."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.identity.shard import ShardIdentity
from mesh.replay.replayer import replay
from mesh.schema.disclosure import Disclosure
from tests.gateway.serving import Reply, Scripted, ask, house
from tests.gateway.test_grants import granting, token
from tests.identity.identities import OTHER, block, cut, identity
from tests.support.tiny_gguf import write_tiny_gguf

HANDSHAKE = "/mesh/v1/handshake"
MISMATCH = (409, "ERROR_CODE_FINGERPRINT_MISMATCH")


class Identified(Scripted):
    def __init__(self, identity: ShardIdentity | None, gap: str | None = None, **engine: Any) -> None:
        super().__init__([b"a", b"b"], **engine)
        self.identity, self.identity_gap = identity, gap


def told(reply: Reply) -> list[tuple[str, str, str]]:
    assert reply.code == MISMATCH
    assert reply.error["retryable"] is False
    return [(one["backend"], one["reason"], one["field"]) for one in reply.error["reasons"]]


def test_backends_show_what_they_are(tmp_path):
    async def main() -> None:
        engine = Identified(identity())
        other = Identified(None, "recipe.kv_dtype: not known", recipe_id="b")
        plain = Scripted([b"a"], recipe_id="c")
        async with house(tmp_path, engine, others=(other, plain), shared="any") as gate:
            one, two, three = (await gate.get("/mesh/v1/backends")).json["backends"]
            assert ShardIdentity.from_map(one["identity"]) == identity()
            assert (one["identity_gap"], one["taken_out"], one["aliases"]) == (None, None, ["any"])
            assert one["runtime_recipe_digest"] == identity().recipe.runtime_recipe_digest
            assert one["model_artifact_digest"] == identity().artifact.model_artifact_digest
            assert (two["identity"], two["identity_gap"]) == (None, "recipe.kv_dtype: not known")
            assert three["identity_gap"] == "this backend has no identity"
            (shown, *_) = (await gate.get("/mesh/v1/steward")).json["engines"]
            assert shown["runtime_recipe_digest"] == identity().recipe.runtime_recipe_digest
            assert two["runtime_recipe_digest"] is None

    asyncio.run(main())


def test_receipts_name_what_served(tmp_path):
    async def main() -> None:
        async with house(tmp_path, Identified(identity())) as gate:
            assert (await gate.post(ask(model="scripted"))).status == 200
            block = (await gate.last_receipt(1)).value.engine
            key = tuple(map(bytes.fromhex, identity().fingerprint.key))
            assert (block.model_artifact_digest, block.runtime_recipe_digest) == key

    asyncio.run(main())


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (identity(recipe__kv_dtype="f16"), "cache-layout: kv_dtype is 'f16', expected 'q8_0'"),
        (identity(artifact__content_digest=OTHER), f"artifact: digest of the whole model is '{OTHER}'"),
        (None, "no longer says what it is"),
    ],
)
def test_a_backend_that_is_another_is_taken_out_by_its_axis(tmp_path, now, words):
    async def main() -> None:
        engine, other = Identified(identity()), Identified(identity(), recipe_id="b")
        async with house(tmp_path, engine, others=(other,), shared="any") as gate:
            assert (await gate.get("/readyz")).status == 200
            engine.identity = now
            reply = await gate.post(ask(model="scripted"))
            assert reply.code == (503, "identity-changed")
            assert words in reply.error["message"]
            assert (await gate.post(ask(model="any"))).json["model"] in ("any", "b")
            assert other.serves == 1
            assert engine.serves == 0
            shown = (await gate.get("/mesh/v1/backends")).json["backends"]
            assert words in shown[0]["taken_out"]
            assert shown[1]["taken_out"] is None
            ready = await gate.get("/readyz")
            assert ready.status == 503
            assert words in ready.json["reasons"][0]
            assert gate.steward.reader.count() == 1
            engine.identity = identity(recipe__recipe_id="renamed")
            assert (await gate.post(ask(model="scripted"))).status == 200

    asyncio.run(main())


def test_a_backend_that_becomes_another_while_a_request_waits_does_not_serve_it(tmp_path):
    async def main() -> None:
        engine = Identified(identity(), slots=1)
        engine._hold_at = 0
        async with house(tmp_path, engine) as gate:
            first = asyncio.create_task(gate.post(ask(model="scripted")))
            await engine.held.wait()
            second = asyncio.create_task(gate.post(ask(model="scripted")))
            (backend,) = gate.gateway.backends.all
            while not backend.room.waiting:
                await asyncio.sleep(0.002)
            engine.identity = identity(recipe__kv_layout="paged")
            engine.go.set()
            assert (await first).status == 200
            reply = await second
            assert reply.code == (503, "identity-changed")
            assert "kv_layout" in reply.error["message"]
            assert engine.serves == 1

    asyncio.run(main())


def test_a_handshake_opens_for_an_equal_and_for_nobody_else(tmp_path):
    async def main() -> None:
        async with house(
            tmp_path, Identified(identity()), others=(Identified(None, recipe_id="b"),), shared="any"
        ) as gate:
            equal = cut(1, 2, recipe__recipe_id="theirs")
            for shown in ({"fingerprint": equal.fingerprint.to_map()}, {"identity": equal.to_map()}):
                for model in ({}, {"model": "scripted"}, {"model": "any"}):
                    reply = await gate.post({**shown, **model}, path=HANDSHAKE)
                    assert reply.status == 200
                    assert reply.json == {
                        "compatible": True, "backend": "scripted", "fingerprint": identity().fingerprint.to_map(),
                    }  # fmt: skip
            other = identity(recipe__kv_dtype="f16", artifact__content_digest=OTHER)
            shown = {"fingerprint": other.fingerprint.to_map(), "model": "scripted"}
            assert told(await gate.post(shown, path=HANDSHAKE)) == [
                ("scripted", "artifact", "model_artifact_digest"), ("scripted", "fingerprint", "runtime_recipe_digest"),
            ]  # fmt: skip
            assert told(await gate.post({"identity": other.to_map()}, path=HANDSHAKE)) == [
                ("scripted", "artifact", "source_digest"), ("scripted", "cache-layout", "kv_dtype"),
                ("b", "fingerprint", "identity"),
            ]  # fmt: skip
            reply = await gate.post({"fingerprint": {}, "model": "scripted"}, path=HANDSHAKE)
            assert told(reply) == [("scripted", "fingerprint", "fingerprint")]
            assert "model_artifact_digest" in reply.error["message"]
            assert gate.steward.reader.count() == 0

    asyncio.run(main())


def test_a_handshake_with_a_backend_that_was_taken_out_does_not_open(tmp_path):
    async def main() -> None:
        engine = Identified(identity())
        async with house(tmp_path, engine) as gate:
            engine.identity = identity(recipe__kv_dtype="f16")
            reply = await gate.post({"identity": identity().to_map()}, path=HANDSHAKE)
            assert told(reply) == [("scripted", "fingerprint", "identity")]
            assert "kv_dtype" in reply.error["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "fingerprint"),
        ({"fingerprint": {}, "identity": {}}, "fingerprint"),
        ({"fingerprint": {}, "model": 5}, "model"),
        ({"fingerprint": {}, "more": 1}, "more"),
        ({"identity": block(recipe__kv_dtype=None)}, "identity"),
        ({"identity": block(artifact__revision="main")}, "identity"),
        ({"identity": block(shard_end=9)}, "identity"),
        ({"identity": block(shard_end=2.5)}, "identity"),
        ({"identity": 5}, "identity"),
    ],
)
def test_a_handshake_that_is_none_is_refused(tmp_path, body, param):
    async def main() -> None:
        async with house(tmp_path, Identified(identity())) as gate:
            reply = await gate.post(body, path=HANDSHAKE)
            assert (reply.status, reply.error["param"]) == (400, param)
            assert (await gate.post({"fingerprint": {}, "model": "none"}, path=HANDSHAKE)).status == 404

    asyncio.run(main())


def test_a_number_that_is_no_integer_is_called_what_it_is(tmp_path):
    """The gateway's reader of JSON has a type of its own for it."""

    async def main() -> None:
        async with house(tmp_path, Identified(identity())) as gate:
            reply = await gate.post({"identity": block(shard_end=2.5)}, path=HANDSHAKE)
            assert "shard_end: a number that is no integer" in reply.error["message"]
            reply = await gate.post({"fingerprint": 2.5}, path=HANDSHAKE)
            assert "fingerprint: a number that is no integer" in reply.error["message"]

    asyncio.run(main())


def test_two_backends_that_differ_in_the_type_of_their_cache_are_told_apart(tmp_path: Path):
    async def main() -> None:
        path = write_tiny_gguf(tmp_path / "tiny.gguf")
        near = await GgufEngine.start(GgufConfig(path, "near"))
        wide = await GgufEngine.start(GgufConfig(path, "wide", kv_type="f16"))
        async with granting(tmp_path / "state", near, wide) as gate:  # type: ignore[arg-type]
            for engine, other in ((near, wide), (wide, near)):
                grant = token({"recipe-in": [bytes.fromhex(engine.identity.recipe.runtime_recipe_digest)]})
                bearer = {"Authorization": f"Bearer {grant}"}
                body = ask(model="any", temperature=0, mesh={"disclose": True})
                reply = await gate.post(body, **bearer)
                assert reply.status == 200
                sealed = gate.receipt(reply.json["mesh"]["receipt_id"])
                assert sealed.value.engine.recipe_id == engine.recipe_id
                refused = await gate.post({**body, "model": other.recipe_id}, **bearer)
                assert refused.code == (403, "grant_refused")
                assert refused.error["grant"]["caveat"] == "recipe-in"
                disclosed = Disclosure.from_bytes(base64.urlsafe_b64decode(reply.json["mesh"]["disclosure"] + "=="))
                trust = {gate.steward.public}
                verdict = await replay(sealed.envelope, disclosed, other, trust)
                assert (verdict.kind, verdict.reason) == ("not-replayable", "other-recipe")
                kinds = {near.recipe_id: "q8_0", wide.recipe_id: "f16"}
                assert verdict.detail == (
                    f"kv_dtype: the receipt has {kinds[engine.recipe_id]!r}, this engine {kinds[other.recipe_id]!r}"
                )
                assert (await replay(sealed.envelope, disclosed, engine, trust)).kind == "verified"

    asyncio.run(main())
