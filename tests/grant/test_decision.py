"""Each caveat against what a serve offers, and what a refusal says."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from mesh.grant.caveats import CAVEATS, TOTALS
from mesh.grant.chain import verify_grant
from mesh.grant.decision import decide
from mesh.grant.draw import Draw
from mesh.grant.frame import Frame
from mesh.grant.inspection import chain_view
from mesh.grant.making import close
from tests.grant.chains import BACKEND, ISSUER, NOW_NS, OTHER_WEIGHTS, STEWARD, TRUST, WEIGHTS, chain, frame

S = 10**9
LATER = "gguf/2/none/none/none/none"
ONE_STEWARD = {"steward-in": [STEWARD]}

# caveats, changes of the frame, whether it is admitted
CASES = {
    "nothing stated": ({}, {}, True),
    "model": ({"model-in": [WEIGHTS]}, {}, True),
    "one of two models": ({"model-in": [WEIGHTS, OTHER_WEIGHTS]}, {"weights_digest": OTHER_WEIGHTS}, True),
    "another model": ({"model-in": [OTHER_WEIGHTS]}, {}, False),
    "no model named": ({"model-in": [WEIGHTS]}, {"weights_digest": None}, False),
    "recipe by name": ({"recipe-in": ["smollm2-135m"]}, {"runtime_recipe_digest": None}, True),
    "recipe by name, the frame has a digest": ({"recipe-in": ["smollm2-135m"]}, {}, True),
    "recipe by digest": ({"recipe-in": [b"\x0d" * 32]}, {"recipe_id": "other"}, True),
    "recipe by digest, the frame has none": ({"recipe-in": [b"\x0d" * 32]}, {"runtime_recipe_digest": None}, False),
    "digests on both sides decide alone": ({"recipe-in": [b"\x0e" * 32, "smollm2-135m"]}, {}, False),
    "a name decides where the frame has no digest": (
        {"recipe-in": [b"\x0e" * 32, "smollm2-135m"]}, {"runtime_recipe_digest": None}, True,
    ),
    "another recipe": ({"recipe-in": ["other"]}, {}, False),
    "backend": ({"backend-in": [BACKEND]}, {}, True),
    "another backend": ({"backend-in": [LATER]}, {}, False),
    "blueprint": ({"blueprint-in": [b"\x0c" * 32]}, {}, True),
    "no blueprint": ({"blueprint-in": [b"\x0c" * 32]}, {"blueprint_id": None}, False),
    "another blueprint": ({"blueprint-in": [b"\x0d" * 32]}, {}, False),
    "steward": (ONE_STEWARD, {}, True),
    "another steward": (ONE_STEWARD, {"steward": ISSUER.public}, False),
    "fidelity": ({"fidelity-at-least": 1}, {}, True),
    "fidelity above": ({"fidelity-at-least": 0}, {}, True),
    "fidelity below": ({"fidelity-at-least": 2}, {}, False),
    "tokens": ({"max-tokens": 50}, {}, True),
    "a token more": ({"max-tokens": 49}, {}, False),
    "energy": ({"max-uj": 1000}, {}, True),
    "a microjoule more": ({"max-uj": 999}, {}, False),
    "energy unknown": ({"max-uj": 999}, {"est_uj": None}, False),
    "from now": ({"not-before": NOW_NS}, {}, True),
    "from within the leeway": ({"not-before": NOW_NS + 2 * S}, {}, True),
    "from after the leeway": ({"not-before": NOW_NS + 2 * S + 1}, {}, False),
    "until now": ({"not-after": NOW_NS}, {}, True),
    "until within the leeway": ({"not-after": NOW_NS - 2 * S}, {}, True),
    "until before the leeway": ({"not-after": NOW_NS - 2 * S - 1}, {}, False),
    "total of energy": ({**ONE_STEWARD, "total-uj": 1000}, {}, True),
    "total of energy too small": ({**ONE_STEWARD, "total-uj": 999}, {}, False),
    "total of energy, energy unknown": ({**ONE_STEWARD, "total-uj": 999}, {"est_uj": None}, False),
    "total of tokens": ({**ONE_STEWARD, "total-tokens": 150}, {}, True),
    "total of tokens too small": ({**ONE_STEWARD, "total-tokens": 149}, {}, False),
    "unknown": ({"weekdays-only": True}, {}, False),
    "unknown that states anything": ({"x": {"deep": [1, {"er": b""}]}}, {}, False),
    "nothing may be zero": ({"max-uj": 0}, {"est_uj": 0}, True),
    "model and recipe, one does not hold": ({"model-in": [WEIGHTS], "recipe-in": ["other"]}, {}, False),
}  # fmt: skip


@pytest.mark.parametrize(("caveats", "changes", "admitted"), CASES.values(), ids=list(CASES))
def test_each_caveat_is_held_against_the_frame(caveats, changes, admitted):
    assert decide(chain(caveats), frame(**changes)).admitted is admitted
    # wherever in the chain it stands, and closed too
    for grant in (chain({}, caveats), chain(caveats, {}), verify_grant(close(chain({}, caveats, {})), TRUST)):
        assert decide(grant, frame(**changes)).admitted is admitted


def test_every_caveat_has_a_case_that_holds_and_one_that_does_not():
    for name in CAVEATS:
        assert {admitted for caveats, _, admitted in CASES.values() if name in caveats} == {True, False}, name


def test_a_later_block_cannot_widen():
    """What the first refuses stays refused, whatever is added."""
    narrow = {"max-tokens": 49}
    for wide in ({"max-tokens": 50}, {"max-tokens": 2**31 - 1}, {}):
        decision = decide(chain(narrow, wide), frame())
        assert [(r.block, r.caveat) for r in decision.refusals] == [(0, "max-tokens")]


def test_a_refusal_says_which_block_which_caveat_and_what_was_offered():
    grant = chain({"model-in": [OTHER_WEIGHTS]}, {"max-tokens": 10, "not-after": NOW_NS - 9 * S, "zzz": 1})
    first, second, third, fourth = decide(grant, frame()).refusals
    assert str(first) == (
        f"block 0 ({grant.blocks[0].id}): model-in b3:{OTHER_WEIGHTS.hex()}, offered b3:{WEIGHTS.hex()}"
    )
    assert str(second) == f"block 1 ({grant.blocks[1].id}): max-tokens 10, offered 50"
    assert (third.caveat, third.stated, third.offered) == ("not-after", NOW_NS - 9 * S, NOW_NS)
    assert str(fourth) == f"block 1 ({grant.blocks[1].id}): caveat 'zzz' is not known here"
    assert first.to_view() == {
        "block": 0,
        "block_id": grant.blocks[0].id.text,
        "caveat": "model-in",
        "stated": [f"b3:{OTHER_WEIGHTS.hex()}"],
        "offered": f"b3:{WEIGHTS.hex()}",
    }
    assert fourth.to_view() == {"block": 1, "block_id": grant.blocks[1].id.text, "caveat": "zzz"}
    lacking = decide(chain({"model-in": [WEIGHTS]}), frame(weights_digest=None)).refusals[0]
    assert str(lacking).endswith("nothing is known of that")
    assert lacking.to_view()["offered"] is None


def test_keys_are_shown_as_keys():
    (refusal,) = decide(chain(ONE_STEWARD), frame(steward=ISSUER.public)).refusals
    assert f"steward-in ed25519:{STEWARD.hex()}, offered ed25519:{ISSUER.public.hex()}" in str(refusal)


def test_revoking_a_block_revokes_what_comes_after_it():
    parent = chain({})
    child, cousin = chain({}, {"max-tokens": 60}), chain({}, seed=1)
    grants = (parent, child, cousin)
    for revoked, admitted in (
        (parent.id, [False, False, True]),
        (child.id, [True, False, True]),
        (cousin.id, [True, True, False]),
        (bytes(32), [True, True, True]),
    ):
        assert [decide(grant, frame(), revoked={revoked}).admitted for grant in grants] == admitted
    (refusal,) = decide(child, frame(), revoked={parent.id}).refusals
    assert (refusal.block, refusal.caveat) == (0, "revoked")
    assert str(refusal) == f"block 0 ({parent.id}) was revoked"


def test_totals_count_what_others_drew():
    grant = chain({**ONE_STEWARD, "total-uj": 5_000}, {"total-tokens": 400})
    first, second = grant.blocks
    uj, tokens = (first.id, "total-uj"), (second.id, "total-tokens")
    decision = decide(grant, frame(), used={uj: 4_000, tokens: 250})
    assert decision.admitted
    assert decision.draws == (Draw(0, first.id, "total-uj", 5_000, 1_000), Draw(1, second.id, "total-tokens", 400, 150))
    (refusal,) = decide(grant, frame(), used={uj: 4_001, tokens: 250}).refusals
    assert (refusal.block, refusal.caveat, refusal.offered, refusal.left) == (0, "total-uj", 1_000, 999)
    assert str(refusal).endswith("total-uj 5000, offered 1000, 999 left")
    (refusal,) = decide(grant, frame(), used={tokens: 9_999}).refusals
    assert (refusal.caveat, refusal.left) == ("total-tokens", 0)
    # what another block or another caveat drew is its own affair
    assert decide(grant, frame(), used={(second.id, "total-uj"): 9_999, (first.id, "total-tokens"): 9_999}).admitted


def test_what_was_decided_stays_decided():
    draw = Draw(0, bytes(32), "total-uj", 10, 5)
    (refusal,) = decide(chain({"max-uj": 1}), frame()).refusals
    for value, name in ((draw, "amount"), (refusal, "offered")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 0)


def test_a_refused_serve_draws_nothing():
    assert decide(chain({**ONE_STEWARD, "total-uj": 5_000, "max-tokens": 1}), frame()).draws == ()


def test_totals_are_the_caveats_that_draw():
    assert set(TOTALS) <= set(CAVEATS)
    assert frame().tokens == 150


def test_a_frame_says_one_thing():
    assert Frame.from_cbor(frame().to_cbor(), max_bytes=4096) == frame()


def test_inspection_shows_everything_but_the_secret():
    grant = chain({**ONE_STEWARD, "model-in": [WEIGHTS]}, {"future": [b"\x00", {"a": 2**60}]})
    told = chain_view(grant)
    assert told["issuer"] == f"ed25519:{ISSUER.public.hex()}"
    assert told["open"] is True
    assert told["grant_id"] == told["blocks"][1]["block_id"] == grant.id.text
    assert told["blocks"][0]["caveats"] == {
        "model-in": [f"b3:{WEIGHTS.hex()}"], "steward-in": [f"ed25519:{STEWARD.hex()}"],
    }  # fmt: skip
    assert told["blocks"][1]["caveats"] == {"future": ["00", {"a": str(2**60)}]}
    assert grant.secret is not None
    assert grant.secret.hex() not in str(told)
    assert chain_view(verify_grant(close(grant), TRUST)) == {**told, "open": False}
