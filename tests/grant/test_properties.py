"""What holds for every grant: nobody widens one by adding to it, and no byte of it can be another."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import MeshError, SchemaError
from mesh.grant.caveats import CAVEATS as KNOWN
from mesh.grant.chain import Chain, Grant, verify_grant
from mesh.grant.decision import decide
from mesh.grant.making import attenuate, close, issue
from mesh.grant.text import grant_from_text, grant_text
from mesh.schema.canonical import encode
from tests.grant.chains import BACKEND, ISSUER, NOW_NS, STEWARD, TRUST, fixed, frame
from tests.support.examples import examples

# few values, so that caveats and frames meet often
DIGESTS = st.sampled_from([bytes([n]) * 32 for n in range(3)])
NAMES = st.sampled_from(["a", "b", "smollm2"])
SMALL = st.integers(0, 6)
TIMES = st.integers(-3, 3).map(lambda n: NOW_NS + n * 10**9)
BACKENDS = st.sampled_from([BACKEND, BACKEND.replace("gguf", "vllm")])
STEWARDS = st.sampled_from([STEWARD, ISSUER.public])


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=1, max_size=3).map(lambda found: sorted(set(found), key=encode))


DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "model-in": lists(DIGESTS),
    "recipe-in": lists(st.one_of(NAMES, DIGESTS)),
    "backend-in": lists(BACKENDS),
    "blueprint-in": lists(DIGESTS),
    "fidelity-at-least": st.integers(0, 3),
    "max-tokens": st.integers(1, 6),
    "max-uj": SMALL,
    "not-before": TIMES,
    "not-after": TIMES,
    "total-uj": SMALL,
    "total-tokens": st.integers(0, 12),
    "steward-in": lists(STEWARDS),
    "later-invented": SMALL,
}
CAVEATS = st.fixed_dictionaries({}, optional=DRAWN)
FRAMES = st.fixed_dictionaries(
    {
        "steward": STEWARDS,
        "recipe_id": NAMES,
        "backend_id": BACKENDS,
        "fidelity": st.integers(0, 3),
        "prompt_tokens": SMALL,
        "max_tokens": st.integers(1, 6),
        "now_ns": TIMES,
    },
    optional={"weights_digest": DIGESTS, "blueprint_id": DIGESTS, "runtime_recipe_digest": DIGESTS, "est_uj": SMALL},
)


@given(
    st.lists(CAVEATS, min_size=1, max_size=7),
    st.lists(FRAMES, min_size=1, max_size=8),
    st.data(),
)
@settings(max_examples=examples(150))
def test_no_attenuation_admits_what_its_parent_refuses(caveats, frames, data):
    chain = verify_grant(issue(ISSUER, {"steward-in": [STEWARD]}, random=fixed()), TRUST)
    family = [chain]
    for more in caveats:
        try:
            longer = attenuate(chain, more, random=fixed(len(family)))
        except SchemaError:  # over 4096 bytes
            break
        chain = verify_grant(longer, TRUST)
        family.append(chain)
    try:
        closed = verify_grant(close(chain), TRUST)
    except SchemaError:  # the closing signature no longer fits
        closed = None
    used = {
        (block.id, name): data.draw(SMALL)
        for block in chain.blocks
        for name in ("total-uj", "total-tokens")
        if name in block.value.caveats
    }
    revoked = data.draw(st.sets(st.sampled_from([block.id for block in chain.blocks]), max_size=1))
    for fields in frames:
        offered = frame_of(fields)
        admitted = [decide(grant, offered, used=used, revoked=revoked).admitted for grant in family]
        # once refused, refused for all that come after
        assert admitted == sorted(admitted, reverse=True)
        if closed is not None:
            assert decide(closed, offered, used=used, revoked=revoked).admitted is admitted[-1]


def frame_of(fields: dict[str, Any]) -> Any:
    absent = dict.fromkeys(("weights_digest", "blueprint_id", "runtime_recipe_digest", "est_uj"))
    return frame(**{**absent, **fields})


def test_every_caveat_is_drawn():
    """The property would hold as well of those that are left out."""
    assert set(DRAWN) == {*KNOWN, "later-invented"}


def test_frames_and_caveats_meet_often_enough():
    """The property above would hold as well if nothing were ever admitted."""
    seen: set[tuple[bool, bool]] = set()

    @given(CAVEATS, CAVEATS, FRAMES)
    @settings(max_examples=200, derandomize=True)
    def look(first, second, fields):
        first, second = ({k: v for k, v in each.items() if not k.startswith("total")} for each in (first, second))
        parent = verify_grant(issue(ISSUER, first, random=fixed()), TRUST)
        child = verify_grant(attenuate(parent, second, random=fixed(1)), TRUST)
        offered = frame_of(fields)
        seen.add((decide(parent, offered).admitted, decide(child, offered).admitted))

    look()
    assert seen == {(True, True), (True, False), (False, False)}


def _some(count: int) -> list[bytes]:
    """Grants of one to eight blocks, with all kinds of caveats, open and closed."""
    rng = random.Random(6)
    pool = [
        {"model-in": [b"\x0a" * 32]}, {"max-tokens": 500}, {"recipe-in": ["smollm2", "x" * 40]}, {}, {"max-uj": 10**12},
        {"not-before": NOW_NS, "not-after": NOW_NS + 10**15}, {"backend-in": [BACKEND]}, {"new": {"a": [True, b"x"]}},
        {"steward-in": [STEWARD], "total-uj": 10**9, "total-tokens": 10**6}, {"fidelity-at-least": 2},
    ]  # fmt: skip
    grants = []
    for number in range(count):
        draw = fixed(number)
        chain: Chain = verify_grant(issue(ISSUER, rng.choice(pool), random=draw), TRUST)
        for _ in range(7 if number % 25 == 9 else number % 9 // 7):
            chain = verify_grant(attenuate(chain, rng.choice(pool), random=draw), TRUST)
        data = close(chain) if number % 3 == 0 else attenuate_nothing(chain)
        grants.append(data)
    return grants


def attenuate_nothing(chain: Chain) -> bytes:
    """The open grant itself, from its parts."""
    return Grant.of(blocks=[block.envelope for block in chain.blocks], secret=chain.secret).to_bytes()


@pytest.mark.parametrize("grants", [4, pytest.param(100, marks=pytest.mark.deep)])
def test_every_single_byte_change_is_refused(grants: int):
    rng = random.Random(7)
    for data in _some(grants):
        assert verify_grant(data, TRUST)
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= rng.randrange(1, 256)
            with pytest.raises(MeshError):
                verify_grant(bytes(changed), TRUST)


def test_every_value_of_every_byte_of_a_small_grant_is_refused_but_one():
    data = issue(ISSUER, {"max-tokens": 5}, random=fixed())
    for at in range(len(data)):
        # a quarter of the values for each byte, another quarter for the next
        for value in range(at % 4, 256, 4):
            if value != data[at]:
                with pytest.raises(MeshError):
                    verify_grant(data[:at] + bytes([value]) + data[at + 1 :], TRUST)


def test_every_truncation_is_refused():
    for data in _some(9):
        for size in range(len(data)):
            with pytest.raises(MeshError):
                verify_grant(data[:size], TRUST)


def test_every_changed_character_is_refused():
    text = grant_text(issue(ISSUER, {"max-tokens": 5}, random=fixed()))
    for at in range(len(text)):
        for other in "A_=z9 é":
            changed = text[:at] + other + text[at + 1 :]
            if changed != text:
                with pytest.raises(MeshError):
                    verify_grant(grant_from_text(changed), TRUST)


def test_damaged_bytes_are_refused_in_this_packages_own_words():
    rng = random.Random(8)
    good = _some(12)
    for _ in range(6000):
        data = bytearray(rng.choice(good))
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.choice((0x00, 0x18, 0x5F, 0x9F, 0xBF, 0xF6, 0xFF, 0xC0, 0xA0))
                case 1:
                    del data[at : at + rng.randrange(1, 40)]
                case 2:
                    data[at:at] = data[at : at + rng.randrange(1, 40)]
                case 3:
                    other = rng.choice(good)
                    data[at : at + 40] = other[at : at + 40]
            if not data:
                break
        if bytes(data) not in good:
            with pytest.raises(MeshError):
                verify_grant(bytes(data), TRUST)


@given(st.binary(max_size=200))
@settings(max_examples=examples(300))
def test_any_bytes_are_refused(data):
    with pytest.raises(MeshError):
        verify_grant(data, TRUST)
