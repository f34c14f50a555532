"""Grants at the gateway: what reaches an engine, what is refused and how, and what the ledger counts."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import openai
import pytest
from blake3 import blake3

from mesh.errors import WeightsChanged
from mesh.grant.making import attenuate, close
from mesh.grant.terms import Terms
from mesh.grant.text import grant_text
from mesh.schema.outcome import Fidelity
from tests.gateway.granting import ISSUER, ONE, STEWARD, TWO, Counting, chain_of, granting, post, token
from tests.support.stewards import PROMPT, Client, request, running


class OtherWeights(Counting):
    """Serves what it did not promise."""

    async def serve(self, request: Any, prompt: Any, sink: Any) -> Any:
        promised, self.weights_digest = self.weights_digest, TWO
        try:
            return await super().serve(request, prompt, sink)
        finally:
            self.weights_digest = promised


def test_a_grant_serves_as_an_openai_key_and_the_receipt_names_it(folder):
    async def run():
        async with granting(folder) as house:
            grant = token({"model-in": [ONE]}, {"max-tokens": 8})
            async with house.sdk(api_key=grant) as client:
                answer = await client.chat.completions.create(
                    model="reference", messages=[{"role": "user", "content": "hi"}], max_tokens=8
                )
                assert answer.usage.completion_tokens == 8
            receipt = (await house.last_receipt(1)).value
            assert receipt.grant_id == chain_of(grant).id
            assert receipt.engine.weights_digest == ONE

    asyncio.run(run())


def test_a_grant_tokenizes_with_the_models_that_it_admits(folder):
    async def run():
        async with granting(folder) as house:
            for digest, status in ((ONE, 200), (TWO, 403)):
                bearer = {"Authorization": f"Bearer {token({'model-in': [digest]})}"}
                assert (await house.post({"content": "hi"}, path="/tokenize", **bearer)).status == status
                assert (await house.post({"tokens": [1]}, path="/detokenize", **bearer)).status == status
            assert house.steward.reader.count() == 0

    asyncio.run(run())


def test_the_bearer_of_a_grant_lists_and_sums_its_own_receipts_and_a_key_all(folder):
    async def run():
        key = "sk-of-the-operator"
        digest = "b3:" + blake3(key.encode()).hexdigest()
        async with granting(folder, keys=[digest]) as house:
            grants = [token({"max-tokens": 8}), token({"max-tokens": 8})]
            for grant in (*grants, grants[0], key):
                assert (await post(house, grant)).status == 200
            seen = {}
            for bearer in (*grants, key):
                headers = {"Authorization": f"Bearer {bearer}"}
                listed = (await house.get("/mesh/v1/receipts", **headers)).json["receipts"]
                callers = (await house.get("/mesh/v1/summary", **headers)).json["by_caller"]
                assert sum(group["serves"] for group in callers) == len(listed)
                assert {group["name"] for group in callers} == {item["caller"] for item in listed}
                seen[bearer] = [item["seq"] for item in listed]
            assert seen == {grants[0]: [2, 0], grants[1]: [1], key: [3, 2, 1, 0]}

    asyncio.run(run())


def test_a_closed_grant_serves_too(folder):
    async def run():
        async with granting(folder) as house:
            grant = grant_text(close(chain_of(token({"max-tokens": 8}))))
            assert (await post(house, grant)).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_names_block_caveat_and_offer_and_costs_nothing(folder, stream):
    async def run():
        engine = Counting(weights_digest=ONE)
        async with granting(folder, engine) as house:
            grant = token({}, {"model-in": [TWO]})
            refused = await post(house, grant, stream=stream)
            assert refused.code == (403, "grant_refused")
            assert refused.error["type"] == "permission_error"
            assert refused.error["grant"] == {
                "block": 1, "block_id": chain_of(grant).id.text, "caveat": "model-in",
                "stated": [TWO.text], "offered": ONE.text,
            }  # fmt: skip
            assert f"block 1 ({chain_of(grant).id}): model-in {TWO}, offered {ONE}" in refused.error["message"]
            assert engine.asked == []
            assert house.steward.reader.count() == 0
            async with house.sdk(api_key=grant) as client:
                with pytest.raises(openai.PermissionDeniedError, match="model-in"):
                    await client.chat.completions.create(model="reference", messages=[{"role": "user", "content": "x"}])

    asyncio.run(run())


REFUSED = {
    "model unknown": ({"model-in": [ONE]}, {"weights_digest": None}, {}, "model-in"),
    "recipe": ({"recipe-in": ["other"]}, {}, {}, "recipe-in"),
    "backend": ({"backend-in": ["a/b/c/d/e/f"]}, {}, {}, "backend-in"),
    "blueprint": ({"blueprint-in": [ONE]}, {}, {}, "blueprint-in"),
    "steward": ({"steward-in": [ISSUER.public]}, {}, {}, "steward-in"),
    "fidelity": ({"fidelity-at-least": 3}, {"fidelity": Fidelity.F2}, {}, "fidelity-at-least"),
    "tokens": ({"max-tokens": 7}, {}, {}, "max-tokens"),
    "tokens by default": ({"max-tokens": 7}, {}, {"max_tokens": None}, "max-tokens"),
    "energy": ({"max-uj": 7}, {}, {}, "max-uj"),
    "energy unknown": ({"max-uj": 10**9}, {"est_uj_per_token": None}, {}, "max-uj"),
    "too early": ({"not-before": 2**62}, {}, {}, "not-before"),
    "too late": ({"not-after": 1}, {}, {}, "not-after"),
    "total of tokens": ({**STEWARD, "total-tokens": 7}, {}, {}, "total-tokens"),
    "total of energy": ({**STEWARD, "total-uj": 7}, {}, {}, "total-uj"),
    "unknown": ({"on-weekdays": True}, {}, {}, "on-weekdays"),
}


@pytest.mark.parametrize(("caveats", "engine", "fields", "caveat"), REFUSED.values(), ids=list(REFUSED))
def test_every_caveat_refuses_before_a_serve(folder, caveats, engine, fields, caveat):
    async def run():
        serving = Counting(**{"weights_digest": ONE, "est_uj_per_token": 1, **engine})
        async with granting(folder, serving) as house:
            refused = await post(house, token(caveats), **fields)
            assert (refused.status, refused.error["grant"]["caveat"]) == (403, caveat)
            assert "serve" not in serving.asked
            assert house.steward.reader.count() == 0
            assert house.steward.reader.open_intents() == []
            assert (await post(house, token(), **fields)).status == 200

    asyncio.run(run())


def test_a_prompt_can_be_what_is_too_much(folder):
    """Known only once the prompt is read, and refused before it is served."""

    async def run():
        engine = Counting(weights_digest=ONE, est_uj_per_token=1)
        async with granting(folder, engine) as house:
            grant = token({**STEWARD, "max-uj": 30, "total-tokens": 90})
            assert (await post(house, grant, content="x" * 40)).error["grant"]["caveat"] == "max-uj"
            assert "serve" not in engine.asked

    asyncio.run(run())


def test_of_two_backends_one_is_reached_and_never_the_other(folder):
    async def run():
        # the other would be chosen by its price
        first = Counting("first", weights_digest=ONE, est_uj_per_token=9)
        second = Counting("second", weights_digest=TWO, est_uj_per_token=1)
        async with granting(folder, first, second) as house:
            grant = token({"model-in": [ONE]})
            for _ in range(5):
                served = await post(house, grant, model="any")
                assert served.json["mesh"]["recipe_id"] == "first"
            assert (await post(house, grant, model="second")).code == (403, "grant_refused")
            assert (second.asked.count("serve"), first.asked.count("serve")) == (0, 5)
            assert (await post(house, token(), model="any")).json["mesh"]["recipe_id"] == "second"

    asyncio.run(run())


def test_an_engine_with_other_weights_than_promised_is_refused_and_sealed_so(folder):
    async def run():
        async with granting(folder, OtherWeights(weights_digest=ONE)) as house:
            grant = token({"model-in": [ONE]})
            answer = await post(house, grant)
            assert answer.status == 502
            receipt = (await house.last_receipt(1)).value
            assert (receipt.outcome.finish, receipt.outcome.reason) == ("refused", "other-weights")
            assert (receipt.output_commitment, receipt.grant_id) == (None, chain_of(grant).id)

    asyncio.run(run())


def test_an_engine_replaced_between_admission_and_serve_is_noticed(folder):
    async def run():
        engine = Counting(weights_digest=ONE)
        async with running(folder) as steward:
            terms = Terms(chain_of(token({"model-in": [ONE]})))
            admitted = await steward.admit(request(), [engine], caller="x", grant=terms)
            engine.weights_digest, engine.process = TWO, bytes(16)
            with pytest.raises(WeightsChanged, match="replaced"):
                await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id())
            assert steward.reader.count() == 0

    asyncio.run(run())


def test_disclosures_are_for_the_grant_that_made_the_serve(folder):
    async def run():
        async with granting(folder) as house:
            parent = token()
            child = grant_text(attenuate(chain_of(parent), {}, random=os.urandom))
            serve = (await post(house, child)).headers["Mesh-Serve"]
            path = f"/mesh/v1/receipts/{serve}/disclosure"
            assert (await house.get(path, Authorization=f"Bearer {parent}")).code == (403, "other_caller")
            assert (await house.get(path, Authorization=f"Bearer {child}")).code == (404, "not_kept")

    asyncio.run(run())
