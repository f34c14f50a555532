"""What no disclosure can do, and what no falsifier gets away with."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mesh.errors import MeshError
from mesh.schema.disclosure import Disclosure
from mesh.schema.request import Sampling, pack_ids
from tests.replay.sealing import PROMPT, Case, make_request, serve
from tests.support.examples import examples

MAX_TOKENS = 12
U32 = st.integers(0, 2**32 - 1)
IDS = st.lists(U32, max_size=40).map(pack_ids)


@functools.cache
def honest(cut: int | None) -> Case:
    return serve(cut=cut)


def flipped(data: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(data) * 8 - 1).map(
        lambda bit: data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
    )


def like(packed: bytes) -> st.SearchStrategy[bytes]:
    """Ids that are nearly these: a flipped bit, a part, a repetition; and any others."""
    if not packed:
        return IDS
    whole = len(packed) // 4
    return st.one_of(
        flipped(packed),
        st.integers(0, whole).map(lambda n: packed[: 4 * n]),
        st.integers(0, whole).map(lambda n: packed + packed[: 4 * n]),
        IDS,
    )


REQUESTS = st.one_of(
    st.builds(lambda n: make_request(max_tokens=n), st.integers(1, 64)),
    st.builds(lambda n: make_request(prompt_tokens=n), st.integers(0, 64)),
    st.builds(lambda h: make_request(prompt_hash=h), st.binary(min_size=32, max_size=32)),
    st.builds(lambda h: make_request(nonce=h), st.binary(min_size=32, max_size=32)),
    st.builds(lambda n: make_request(fidelity_floor=n), st.integers(0, 3)),
    st.just(make_request(sampling=Sampling.from_map(Sampling.greedy().to_map() | {"ignore_eos": True}))),
)


@st.composite
def mutations(draw: st.DrawFn, disclosure: Disclosure) -> dict[str, Any]:
    """Any fields of a disclosure, replaced by near misses and by strangers."""
    output = disclosure.output or b""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "serve_id": st.binary(min_size=16, max_size=16),
        "request": REQUESTS,
        "payload": like(disclosure.payload),
        "opening": st.one_of(flipped(disclosure.opening), st.binary(min_size=32, max_size=32)),
        "settings": st.dictionaries(st.text(max_size=8), st.one_of(st.integers(0, 9), st.text(max_size=8)), max_size=4),
        "output": st.one_of(st.none(), like(output)),
        "prompt": st.one_of(st.none(), st.text(max_size=20), st.just(PROMPT)),
    }
    names = draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=4, unique=True))
    return {name: draw(fields[name]) for name in names}


@settings(max_examples=examples(400))
@given(st.data(), st.sampled_from([None, 0, 5]))
def test_no_changed_disclosure_makes_an_honest_serve_diverge(data: st.DataObject, cut: int | None) -> None:
    case = honest(cut)
    changes = data.draw(mutations(case.disclosure))
    verdict = case.disclosing(**changes).replay()
    assert verdict.kind != "diverged", verdict
    if verdict.kind == "verified" and verdict.output == "matches":
        assert changes.get("output", case.disclosure.output) == case.disclosure.output


@settings(max_examples=examples(200))
@given(st.data())
def test_no_flipped_bit_of_a_disclosure_file_makes_an_honest_serve_diverge(data: st.DataObject) -> None:
    case = honest(None)
    changed = data.draw(flipped(case.disclosure.to_cbor()))
    try:
        disclosure = Disclosure.from_bytes(changed)
    except MeshError:
        return
    verdict = Case(case.receipt, disclosure).replay()
    assert verdict.kind != "diverged", verdict


@settings(max_examples=examples(150))
@given(
    changes=st.dictionaries(st.integers(0, MAX_TOKENS - 1), U32, min_size=1, max_size=4),
    cut=st.sampled_from([None, MAX_TOKENS - 1, 5]),
)
def test_falsified_serve_diverges_exactly_at_the_first_changed_id(changes: dict[int, int], cut: int | None) -> None:
    made = honest(cut).output
    committed = [changes.get(i, token) for i, token in enumerate(made)]
    differing = [i for i, (a, b) in enumerate(zip(made, committed, strict=True)) if a != b]
    assume(differing)
    falsified = serve(cut=cut, committed=committed)
    verdict = falsified.replay()
    at = differing[0]
    assert (verdict.kind, verdict.first_difference) == ("diverged", at)
    assert (verdict.served, verdict.replayed) == (committed[at], made[at])
    # Whoever withholds the output gets no acquittal either.
    assert falsified.disclosing(output=None).replay().reason == "unattributed"


@settings(max_examples=examples(100))
@given(
    name=st.sampled_from(["tokens_out", "tokens_in", "tokens_accepted", "tokens_delivered"]),
    count=st.integers(0, MAX_TOKENS),
    output=st.booleans(),
)
def test_changed_count_of_a_finished_serve_never_verifies(name: str, count: int, output: bool) -> None:
    case = honest(None)
    assume(count != getattr(case.receipt.outcome, name))
    case = case.claiming(outcome={name: count})
    verdict = (case if output else case.disclosing(output=None)).replay()
    if name == "tokens_delivered":  # a client may have got less than was made; nobody can replay that
        assert verdict.kind == "verified"
    else:
        assert (verdict.kind, verdict.field) == ("diverged", name)
