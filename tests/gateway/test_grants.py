"""Grants at the gateway: what reaches an engine, what is refused and how, and what the ledger counts."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from blake3 import blake3

from mesh.errors import Unauthorized, UsageError, WeightsChanged
from mesh.gateway.grants import GrantTokens, Revocations
from mesh.grant.making import attenuate, close
from mesh.grant.terms import Terms
from mesh.grant.text import grant_text
from mesh.ledger import Ledger, Total
from mesh.meter.metering import Metering
from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, verify
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity
from mesh.schema.trust import Trust, Window
from mesh.steward.steward import Steward
from tests.gateway.granting import ISSUER, ONE, STEWARD, TWO, Counting, chain_of, granting, post, token
from tests.gateway.serving import DECIDE, Deciding, question
from tests.support.stewards import KEY, PROMPT, Client, request, running

NOW_NS = 1_790_000_000_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


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


BAD_TOKENS = {
    "no grant": ("mg1_AAAA", "invalid_grant"),
    "damaged": (None, "invalid_grant"),
    "another issuer's": (token({}, key=SigningKey(b"\x22" * 32)), "untrusted_issuer"),
    "no such kind": ("sk-123", "invalid_api_key"),
}


@pytest.mark.parametrize(("bad", "code"), BAD_TOKENS.values(), ids=list(BAD_TOKENS))
def test_what_is_no_good_grant_is_no_key(folder, bad, code):
    async def run():
        async with granting(folder) as house:
            good = token({"max-tokens": 8})
            presented = bad or good[:60] + ("A" if good[60] != "A" else "B") + good[61:]
            refused = await post(house, presented)
            assert refused.code == (401, code)
            assert presented not in refused.error["message"]

    asyncio.run(run())


def test_static_keys_and_grants_stand_side_by_side(folder):
    async def run():
        async with granting(folder, keys=[ContentId.of_bytes(b"sk-static").text]) as house:
            assert (await post(house, "sk-static")).status == 200
            assert (await post(house, token())).status == 200
            receipts = [house.receipt(ContentId(e.receipt_id).text).value for e in house.steward.reader.receipts()]
            assert [receipt.grant_id is None for receipt in receipts] == [True, False]
            balance = await house.get("/mesh/v1/grant/balance", Authorization="Bearer sk-static")
            assert balance.code == (400, "no_grant")

    asyncio.run(run())


def test_an_issuer_is_trusted_while_he_is(folder):
    async def run():

        async with granting(folder) as house:
            now = [NOW_NS]
            tokens = GrantTokens(Trust({ISSUER.public: [Window(until_ns=NOW_NS + 1)]}), clock_ns=lambda: now[0])
            grant = token()
            assert tokens.authenticate(grant) is not None
            now[0] += 1

            with pytest.raises(Unauthorized, match="trusted until"):
                tokens.authenticate(grant)
            assert house

    asyncio.run(run())


def test_revocation_is_read_again_and_reaches_descendants(folder, tmp_path):
    async def run():
        listed = tmp_path / "revoked"
        listed.write_text("# none yet\n")
        async with granting(folder, revoked=listed) as house:
            parent = token({"max-tokens": 8})
            child = grant_text(attenuate(chain_of(parent), {"max-uj": 10**6}, random=os.urandom))
            cousin = token({"max-tokens": 8})
            for grant in (parent, child, cousin):
                assert (await post(house, grant)).status == 200
            listed.write_text(f"{chain_of(child).id}\n")
            assert [(await post(house, grant)).status for grant in (parent, child, cousin)] == [200, 403, 200]
            listed.write_text(f"{chain_of(parent).id} # lost\n")
            refused = await post(house, child)
            assert refused.code == (403, "grant_revoked")
            assert refused.error["grant"] == {"block": 0, "block_id": chain_of(parent).id.text, "caveat": "revoked"}
            assert [(await post(house, grant)).status for grant in (parent, child, cousin)] == [403, 403, 200]
            # nor may it read what it made
            assert (await house.get("/v1/models", Authorization=f"Bearer {child}")).status == 403

    asyncio.run(run())


def test_a_list_that_cannot_be_read_stops_every_grant(folder, tmp_path, caplog):
    async def run():
        listed = tmp_path / "revoked"
        with pytest.raises(FileNotFoundError):
            Revocations(listed)
        listed.write_text("nonsense")
        with pytest.raises(UsageError, match="line 1"):
            Revocations(listed)
        listed.write_text("")
        grant = token()
        async with granting(folder, revoked=listed) as house:
            assert (await post(house, grant)).status == 200
            listed.write_text("more nonsense")
            for _ in range(2):
                assert (await post(house, grant)).code == (403, "revocations_unreadable")
            listed.unlink()
            assert (await post(house, grant)).code == (403, "revocations_unreadable")
            assert str(listed) not in (await post(house, grant)).error["message"]
            listed.write_text("")
            assert (await post(house, grant)).status == 200

    asyncio.run(run())


def test_a_list_changed_twice_within_one_tick_of_its_clock_is_read_twice(tmp_path):
    """The same size, inode and time: nothing but the content says that it is another."""
    listed = tmp_path / "revoked"
    listed.write_text(f"{ONE}\n")
    before = listed.stat()
    revocations = Revocations(listed)
    assert revocations.current() == {ONE}

    listed.write_text(f"{TWO}\n")
    os.utime(listed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert revocations.current() == {TWO}


def test_a_pipe_is_no_list_and_holds_nobody_up(tmp_path):
    listed = tmp_path / "revoked"
    os.mkfifo(listed)
    with pytest.raises(UsageError, match="not a regular file"):
        Revocations(listed)


def test_a_clocks_leeway_is_a_setting(folder):
    async def run():
        grant = token({"not-after": time.time_ns() - 60 * 10**9})
        for leeway_s, status in ((2, 403), (3600, 200)):
            async with granting(folder / str(leeway_s), leeway_ns=leeway_s * 10**9) as house:
                reply = await post(house, grant)
                assert reply.status == status
                if status == 403:
                    assert reply.error["grant"]["caveat"] == "not-after"

    asyncio.run(run())


def test_totals_are_shared_by_all_that_were_made_from_a_block(folder):
    async def run():
        async with granting(folder) as house:
            parent = token({**STEWARD, "total-tokens": 60})
            child = grant_text(attenuate(chain_of(parent), {"total-tokens": 30}, random=os.urandom))
            hello = {"content": "hi"}  # "user: hi\nassistant:" in bytes, and 8 tokens out
            prompt_tokens = len("user: hi\nassistant:")
            each = prompt_tokens + 8
            assert (await post(house, child, **hello)).status == 200
            refused = await post(house, child, **hello)
            assert refused.error["grant"] == {
                "block": 1, "block_id": chain_of(child).id.text, "caveat": "total-tokens", "stated": 30,
                "offered": each, "left": 30 - each,
            }  # fmt: skip
            assert (await post(house, parent, **hello)).status == 200
            assert (await post(house, parent, **hello)).error["grant"]["left"] == 60 - 2 * each
            balance = (await house.get("/mesh/v1/grant/balance", Authorization=f"Bearer {child}")).json
            assert balance["grant_id"] == chain_of(child).id.text
            figures = {"settled": 2 * each, "estimated": 0, "reserved": 0, "left": 60 - 2 * each}
            whole, own = balance["totals"]
            assert whole == {
                "block": 0, "block_id": chain_of(parent).id.text, "caveat": "total-tokens", "limit": 60, **figures,
            }  # fmt: skip
            assert (own["block"], own["settled"], own["left"]) == (1, each, 30 - each)
            assert "secret" not in str(balance)

    asyncio.run(run())


def test_energy_that_nobody_measured_stays_used_up_and_is_told(folder):
    async def run():
        async with granting(folder) as house:
            grant = token({**STEWARD, "total-uj": 60})
            assert (await post(house, grant, content="hi")).status == 200
            balance = (await house.get("/mesh/v1/grant/balance", Authorization=f"Bearer {grant}")).json
            each = len("user: hi\nassistant:") + 8
            (total,) = balance["totals"]
            assert (total["settled"], total["estimated"], total["left"]) == (0, each, 60 - each)

    asyncio.run(run())


def test_many_at_once_never_exceed_a_total(folder):
    async def run():
        async with granting(folder, Counting(weights_digest=ONE, est_uj_per_token=1, slots=16)) as house:
            each = len("user: hi\nassistant:") + 8
            grant = token({**STEWARD, "total-tokens": 10 * each + 1})
            replies = await asyncio.gather(*(post(house, grant, content="hi") for _ in range(40)))
            assert sorted(reply.status for reply in replies) == [200] * 10 + [403] * 30
            receipts = [house.receipt(ContentId(e.receipt_id).text).value for e in house.steward.reader.receipts()]
            assert sum(r.outcome.tokens_in + r.outcome.tokens_out for r in receipts) == 10 * each
            balance = (await house.get("/mesh/v1/grant/balance", Authorization=f"Bearer {grant}")).json
            assert (balance["totals"][0]["settled"], balance["totals"][0]["left"]) == (10 * each, 1)

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


def test_a_serve_that_is_interrupted_keeps_its_grant_and_its_reservation(folder):

    chain = chain_of(token({**STEWARD, "total-tokens": 100}))

    async def die():
        started = asyncio.Event()

        class Hanging(Counting):
            async def serve(self, request: Any, prompt: Any, sink: Any) -> Any:
                started.set()
                await asyncio.Event().wait()

        with Ledger.open(folder / "ledger.sqlite", steward=KEY.public) as ledger:
            metering = Metering([])
            metering.start()
            steward = Steward(key=KEY, ledger=ledger, metering=metering)
            admitted = await steward.admit(request(), [Hanging()], caller="x", grant=Terms(chain))
            serve = asyncio.ensure_future(steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id()))
            await started.wait()
            metering.close()
            serve.cancel()

    asyncio.run(die())

    async def again():
        async with running(folder) as steward:
            (sealed,) = await steward.recover()
            assert (sealed.value.outcome.finish, sealed.value.grant_id) == ("interrupted", chain.id)
            (entry,) = steward.reader.receipts()
            assert verify(entry.envelope, RECEIPT_TYPE, {KEY.public}).value.grant_id == chain.id
            assert steward.reader.totals([chain.id]) == {(chain.id, "total-tokens"): Total(estimated=10)}

    asyncio.run(again())


def test_checked_grants_are_remembered_whole(folder):
    tokens = GrantTokens(Trust.always([ISSUER.public]))
    grant = token({"max-tokens": 8})
    first = tokens.authenticate(grant)
    assert first is not None
    assert tokens.authenticate(grant).grant.chain is first.grant.chain
    closed = grant_text(close(chain_of(grant)))
    assert tokens.authenticate(closed).grant.chain.secret is None
    for changed in (grant[:-1], grant + "A", closed[:-3] + "AAA"):
        if changed not in (grant, closed):
            with pytest.raises(Exception, match="grant"):
                tokens.authenticate(changed)


def test_a_grant_bounds_decisions_and_is_charged_for_prompt_and_options(folder):
    async def run():
        async with granting(folder, Deciding(weights_digest=ONE, est_uj_per_token=1)) as house:
            grant = token(STEWARD | {"total-tokens": 60, "max-tokens": 1})
            headers = {"Authorization": f"Bearer {grant}"}
            answer = await house.post(question(), path=DECIDE, **headers)
            used = answer.json["usage"]["total_tokens"]
            receipt = (await house.last_receipt(1)).value
            assert (receipt.grant_id, receipt.outcome.tokens_in) == (chain_of(grant).id, used)
            chain = chain_of(grant)
            assert house.steward.reader.totals([chain.id]) == {(chain.id, "total-tokens"): Total(settled=used)}
            refused = await house.post(question(options=["yes", "no" * 30]), path=DECIDE, **headers)
            assert refused.code == (403, "grant_refused")
            assert refused.error["grant"]["caveat"] == "total-tokens"
            assert house.steward.reader.count() == 1

    asyncio.run(run())
