"""What the totals of grants count, and for whom."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mesh.grant.making import attenuate
from mesh.grant.terms import Terms
from mesh.grant.text import grant_text
from mesh.ledger import Ledger, Total
from mesh.meter.metering import Metering
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId
from mesh.steward.steward import Steward
from tests.gateway.granting import ONE, STEWARD, Counting, chain_of, granting, post, token
from tests.gateway.serving import DECIDE, Deciding, question
from tests.support.stewards import KEY, PROMPT, Client, request, running


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
