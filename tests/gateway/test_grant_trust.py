"""Which grants a gateway takes: whose, until when, and what was revoked."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from mesh.errors import Unauthorized, UsageError
from mesh.gateway.grants import GrantTokens, Revocations
from mesh.grant.making import attenuate, close
from mesh.grant.text import grant_text
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import ContentId
from mesh.schema.trust import Trust, Window
from tests.gateway.granting import ISSUER, ONE, TWO, chain_of, granting, post, token

NOW_NS = 1_790_000_000_000_000_000


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
