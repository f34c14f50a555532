"""What a block may state."""

from __future__ import annotations

import pytest

from mesh.errors import SchemaError
from mesh.grant.block import GrantBlock
from mesh.grant.caveats import CAVEATS
from mesh.schema.receipt import VERSION
from tests.grant.chains import BACKEND

D, E = b"\x0a" * 32, b"\x0b" * 32


def block(**caveats: object) -> GrantBlock:
    return GrantBlock.of(v=VERSION, next=D, caveats={name.replace("_", "-"): value for name, value in caveats.items()})


GOOD = {
    "model-in": ([D], [D, E], [bytes([n]) * 32 for n in range(64)]),
    "recipe-in": (["m"], [D], [D, E, "m", "aa", "bb"]),
    "backend-in": ([BACKEND],),
    "blueprint-in": ([D],),
    "steward-in": ([D], [D, E]),
    "fidelity-at-least": (0, 3),
    "max-tokens": (1, 2**31 - 1),
    "max-uj": (0, 2**63 - 1),
    "not-before": (0, 2**63 - 1),
    "not-after": (0, 2**63 - 1),
    "total-uj": (0, 2**63 - 1),
    "total-tokens": (0, 2**63 - 1),
}
_DIGESTS = ([], [E, D], [D, D], [bytes([n]) * 32 for n in range(65)], [D[:31]], ["a"], [1], D, "a", 1, {}, [[D]])
_NUMBERS = (-1, 2**63, True, "1", b"\x01", [1], {})
BAD = {
    "model-in": _DIGESTS,
    "recipe-in": ([], ["m", D], ["m", "m"], ["bb", "aa"], ["aa", "b"], [""], ["a\n"], ["x" * 257], [D[:31]], "m", 1),
    "backend-in": ([], ["x"], ["a/b/c/d/e"], [BACKEND, BACKEND], [BACKEND + "\n"], BACKEND, [1], [[]], [D]),
    "blueprint-in": _DIGESTS,
    "steward-in": _DIGESTS,
    "fidelity-at-least": (*_NUMBERS, 4),
    "max-tokens": (*_NUMBERS, 0, 2**31),
    "max-uj": _NUMBERS,
    "not-before": _NUMBERS,
    "not-after": _NUMBERS,
    "total-uj": _NUMBERS,
    "total-tokens": _NUMBERS,
}


def test_every_caveat_is_tried():
    assert GOOD.keys() == BAD.keys() == CAVEATS.keys()


@pytest.mark.parametrize(("name", "stated"), [(n, v) for n, values in GOOD.items() for v in values])
def test_what_a_caveat_may_state_is_taken(name, stated):
    assert block(**{name: stated}).caveats == {name: stated}


@pytest.mark.parametrize(("name", "stated"), [(n, v) for n, values in BAD.items() for v in values])
def test_what_a_caveat_may_not_state_is_refused(name, stated):
    with pytest.raises(SchemaError, match=f"caveat {name} must state"):
        block(**{name: stated})


@pytest.mark.parametrize("stated", [0, "x", b"", [], {"a": [1]}, True])
def test_an_unknown_caveat_may_state_anything(stated):
    known = block(**{"sky-is": stated})
    assert GrantBlock.from_cbor(known.to_cbor(), max_bytes=4096) == known


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_a_caveats_name_is_a_name(name):
    with pytest.raises(SchemaError, match="a caveat's name"):
        GrantBlock.of(v=VERSION, next=D, caveats={name: 1})
