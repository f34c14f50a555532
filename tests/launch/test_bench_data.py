"""The figures of a bench follow from its raw counts and times, and what was not measured is not there."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.cli.launch_tables import rows
from mesh.errors import SchemaError
from mesh.launch.bench_data import figures, read_data
from tests.launch.benches import MS, cell, data, failed, request


def test_figures_follow_from_counts_and_times() -> None:
    told = figures(cell(request(), request(1, first_ns=200 * MS, last_ns=1100 * MS, total_ns=1100 * MS)))
    assert told.ttft_ms == 150
    assert told.prefill == pytest.approx(1024 / 0.2)
    assert told.decode == pytest.approx((9 / 0.45 + 9 / 0.9) / 2)
    assert told.total == pytest.approx(20 / 0.6)
    assert (told.prompt_tokens, told.ended, told.fault) == (512, 2, None)


def test_what_an_engine_did_not_count_is_absent_and_never_zero() -> None:
    told = figures(cell(request(prompt_tokens=None, output_tokens=None)))
    assert (told.prefill, told.decode, told.total, told.prompt_tokens) == (None, None, None, None)
    assert told.ttft_ms == 100
    assert figures(cell(request(output_tokens=1))).decode is None
    assert figures(cell(request(last_ns=100 * MS))).decode is None  # all of it in one piece


@pytest.mark.parametrize(
    ("events", "pieces", "known"),
    [
        (10, 10, True),
        (10, 6, True),
        (10, 5, False),  # most came with others: when each was made, nobody saw
        (10, 1, False),
        (5, 5, True),  # two tokens an event
        (3, 3, False),  # a first token, and the rest as it could be sent: no pace of anything
        (0, 0, False),
    ],
)
def test_pace_of_tokens_that_were_kept_back_and_came_together_is_not_known(
    events: int, pieces: int, known: bool
) -> None:
    told = figures(cell(request(events=events, pieces=pieces, last_ns=101 * MS)))
    assert told.decode == (pytest.approx(9000) if known else None)
    assert told.total == pytest.approx(10 / 0.6)


def test_failed_streams_are_counted_by_their_reasons_and_leave_sums_out() -> None:
    told = figures(cell(request(), failed(1), failed(2, "broke off")))
    assert told.fault == "2 of 3 failed: status 503, broke off"
    assert (told.prefill, told.total, told.ttft_ms) == (None, None, 100)
    assert figures(cell(depth=9, skipped="too long", wall_ns=None)).fault == "skipped: too long"
    assert data(cell(request()), cell(failed()), cell(skipped="x", wall_ns=None)).failed == 2


def test_data_is_read_as_it_was_written() -> None:
    bench = data(cell(request(), failed(1)), cell(depth=9, skipped="too long", wall_ns=None))
    assert read_data(bench.to_json(), "x.json") == bench
    assert b"null" not in bench.to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told.update(v="mesh-launch-bench/9"), "x.json: v is 'mesh-launch-bench/9'"),
        (lambda told: told.pop("seed"), "x.json: seed: missing"),
        (lambda told: told.update(more=1), "x.json: more: unknown key"),
        (lambda told: told["cells"][0].update(wall_ns=0), "cells.0: 1 requests of 1 streams, wall_ns 0"),
        (lambda told: told["cells"][0].update(concurrency=2), "cells.0: 1 requests of 2 streams"),
        (lambda told: told["cells"][0].update(skipped="x"), "cells.0: skipped, and measured"),
        (lambda told: told["cells"][0]["requests"][0].update(first_ns=9**20), "times or counts that cannot be"),
        (lambda told: told["cells"][0]["requests"][0].update(output_tokens=-1), "times or counts that cannot be"),
        (lambda told: told["cells"][0]["requests"][0].update(prompt_tokens=10**400), "times or counts that cannot be"),
        (lambda told: told["cells"][0].update(depth=10**400), "cells.0: numbers that cannot be"),
        (
            lambda told: told.update(ended_ms=10**18),
            "began_ms 1900000000000 and ended_ms 1000000000000000000 cannot be",
        ),
        (lambda told: told.update(ended_ms=5), "began_ms 1900000000000 and ended_ms 5 cannot be"),
        (lambda told: told["cells"][0]["requests"][0].pop("first_ns"), "whole, and without a first token"),
    ],
)
def test_damaged_data_is_named_by_its_field(change: object, words: str) -> None:
    told = json.loads(data().to_json())
    assert callable(change)
    change(told)
    with pytest.raises(SchemaError, match=re.escape(words)) as caught:
        read_data(json.dumps(told).encode(), "x.json")
    assert str(caught.value).startswith("x.json: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(JSON, st.sampled_from(["top", "cell", "request"]), st.integers(0, 20))
def test_whatever_stands_in_a_field_is_read_or_refused_by_name(value: object, where: str, number: int) -> None:
    told = json.loads(data(cell(request(), failed(1))).to_json())
    table = {"top": told, "cell": told["cells"][0], "request": told["cells"][0]["requests"][0]}[where]
    table[list(table)[number % len(table)]] = value
    bench = None
    with contextlib.suppress(SchemaError):
        bench = read_data(json.dumps(told).encode(), "x.json")
    assert bench is None or all(rows(bench))


@pytest.mark.parametrize(
    ("text", "words"), [(b"{", "not valid json"), (b"[]", "expected an object"), (b"\xff", "json")]
)
def test_what_is_no_json_object_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        read_data(text, "x.json")
