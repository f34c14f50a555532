"""Serves that begin and end between two readings: a fresh one stands for one taken now, and claims nothing more."""

from __future__ import annotations

from typing import Any

from mesh.meter.allocation import Allocation
from mesh.meter.protocol import Domain, Reading

MS = 10**6
A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))
GPU = Domain("gpu0", "nvml-total", 20 * MS, None, modelled=False)


def books() -> Allocation:
    return Allocation([GPU], lambda: bytes(16))


def at(ms: int, **counts: int) -> list[Reading]:
    return [Reading(name, ms * MS, uj) for name, uj in counts.items()]


def between(allocation: Allocation, *steps: tuple[str, bytes, int]) -> dict[bytes, Any]:
    """Beginnings and ends between two ticks, each at its instant in milliseconds."""
    told: dict[bytes, Any] = {}
    cover = allocation.cover("m")  # one for all, as a Metering has it
    for what, serve, ms in steps:
        if what == "begin":
            assert allocation.begin(serve, cover, ms * MS, between=True)
        else:
            told[serve] = allocation.end_between(serve, ms * MS)
    return told


def test_fresh_reading_stands_for_one_taken_now() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    assert allocation.cover("m").slack_ns == GPU.resolution_ns // 4
    between(allocation, ("begin", A, 2), ("begin", B, 3))
    allocation.tick(at(100, gpu0=1_000_000))
    told = between(allocation, ("end", A, 103))
    allocation.tick(at(200, gpu0=1_500_000))
    b = allocation.end(B, 200 * MS)
    a = told[A]
    assert a is not None
    assert (a.uj, a.basis, a.peak_sharers, a.span_ns) == (500_000, "allocated", 2, 101 * MS)
    assert (b.uj, b.basis, b.peak_sharers) == (1_000_000, "allocated", 2)


def test_company_that_came_and_went_between_two_readings_is_company() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick(at(100, gpu0=1_000_000))
    told = between(allocation, ("begin", B, 101), ("end", B, 102))
    assert told[B] is not None
    assert (told[B].basis, told[B].reason) == ("unresolved", "span-under-resolution")
    allocation.tick(at(200, gpu0=2_000_000))
    a = allocation.end(A, 200 * MS)
    # it holds all that was counted, and does not claim to have been alone
    assert (a.uj, a.basis, a.peak_sharers) == (2_000_000, "allocated", 2)


def test_serve_that_ends_between_two_readings_was_company_until_then() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick(at(100, gpu0=1_000_000))
    allocation.begin(B, allocation.cover("m"), 100 * MS)
    between(allocation, ("end", B, 104))
    allocation.tick(at(200, gpu0=2_000_000))
    assert allocation.end(A, 200 * MS).peak_sharers == 2


def test_serve_alone_has_to_wait_for_its_guard_interval_between_two_readings_too() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick(at(100, gpu0=1_000_000))
    assert between(allocation, ("end", A, 101)) == {A: None}
    assert A in allocation
    assert allocation.end_between(A, 101 * MS, keep=False) is not None


def test_serve_begins_unguarded_where_another_ended_after_the_reading() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.begin(B, allocation.cover("m"), 0)
    allocation.tick(at(100, gpu0=1_000_000))
    between(allocation, ("end", A, 101), ("end", B, 104))
    rested = 100 * MS + GPU.resolution_ns
    allocation.tick([Reading("gpu0", rested, 1_100_000)])
    allocation.begin(C, allocation.cover("m"), rested)
    allocation.tick([Reading("gpu0", rested + 100 * MS, 2_100_000)])
    assert allocation.guard_ns(C) == 0  # 4 ms too early


def test_reading_that_is_no_good_stands_for_nothing() -> None:
    allocation = books()
    assert not allocation.begin(A, allocation.cover("m"), 0, between=True)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick([Reading("gpu0", MS, None, "lost")])
    assert not allocation.begin(B, allocation.cover("m"), MS, between=True)
    assert allocation.end_between(A, MS) is None
    assert allocation.end_between(B, MS) is None
    assert len(allocation) == 1


def test_serve_whose_own_span_is_too_short_is_unresolved_though_its_readings_lie_further_apart() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(B, allocation.cover("m"), 0)
    between(allocation, ("begin", A, 5))
    allocation.tick(at(40, gpu0=1_000_000))
    assert allocation.end(A, 40 * MS).reason == "span-under-resolution"


def test_those_who_began_at_one_reading_and_ended_at_another_differ_by_their_spans_and_the_remainder() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    between(allocation, ("begin", C, 1), ("begin", A, 2), ("begin", B, 3))
    allocation.tick(at(100, gpu0=1_000_000))
    told = between(allocation, ("end", B, 101), ("end", A, 102), ("end", C, 103))
    assert [told[serve].uj for serve in (A, B, C)] == [333_334, 333_333, 333_333]
    assert [told[serve].span_ns for serve in (A, B, C)] == [100 * MS, 98 * MS, 102 * MS]
    for energy in told.values():
        assert (energy.basis, energy.window_uj, energy.peak_sharers) == ("allocated", 1_000_000, 3)
        assert energy.uj == energy.sources[0].uj
    # at the next reading they hold nothing of what was told at this one
    between(allocation, ("begin", bytes(16), 104), ("begin", bytes(15) + b"z", 104))
    allocation.tick(at(200, gpu0=1_000_007))
    told = between(allocation, ("end", bytes(16), 201), ("end", bytes(15) + b"z", 201))
    assert sorted(energy.uj for energy in told.values()) == [3, 4]


def test_each_of_them_has_what_was_covered_of_its_own_span() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    between(allocation, ("begin", A, 1), ("begin", B, 3))
    allocation.tick(at(100, gpu0=1_000_000))
    allocation.tick([Reading("gpu0", 160 * MS, 1_600_000, gap=True)])
    told = between(allocation, ("end", A, 161), ("end", B, 162))
    assert [(told[serve].span_ns, told[serve].covered_ns) for serve in (A, B)] == [
        (160 * MS, 100 * MS),
        (159 * MS, 99 * MS),
    ]


def test_company_that_left_before_a_serve_came_was_not_its_company() -> None:
    allocation, late = books(), bytes(15) + b"z"
    allocation.tick(at(0, gpu0=0))
    between(allocation, ("begin", C, 1), ("begin", A, 2), ("begin", B, 3), ("end", A, 4), ("end", B, 4))
    between(allocation, ("begin", late, 5))  # at the reading at which those began too
    allocation.tick(at(100, gpu0=1_000_000))
    told = between(allocation, ("end", C, 101), ("end", late, 101))
    assert [told[serve].peak_sharers for serve in (C, late)] == [3, 2]


def test_company_that_came_after_another_was_told_its_figure_is_in_the_next_ones() -> None:
    allocation, more = books(), [bytes(15) + b"y", bytes(15) + b"z"]
    allocation.tick(at(0, gpu0=0))
    between(allocation, ("begin", A, 1), ("begin", B, 1), ("begin", C, 1))
    allocation.tick(at(100, gpu0=900_000))
    told = between(allocation, ("end", B, 101), *(("begin", serve, 102) for serve in more), ("end", C, 103))
    assert [(told[serve].uj, told[serve].peak_sharers) for serve in (B, C)] == [(300_000, 3), (300_000, 4)]


def test_serve_begins_unguarded_where_the_counter_was_read_a_while_after_another_ended() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick(at(100, gpu0=1_000_000))
    allocation.end(A, 90 * MS)
    allocation.tick(at(115, gpu0=1_000_001))
    allocation.begin(B, allocation.cover("m"), 115 * MS)
    assert allocation.guard_ns(B) == 0  # what A spent may show up to the resolution after that reading


def test_company_of_an_instant_is_none() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick(at(100, gpu0=1_000_000))
    allocation.begin(B, allocation.cover("m"), 100 * MS)
    allocation.tick(at(100, gpu0=1_000_000))
    allocation.end(B, 100 * MS)
    allocation.tick(at(200, gpu0=2_000_000))
    assert allocation.end(A, 200 * MS).basis == "measured"


def test_serve_begins_at_the_latest_reading_and_not_where_one_before_it_did() -> None:
    allocation = books()
    allocation.tick(at(0, gpu0=0))
    between(allocation, ("begin", A, 1))
    allocation.end_between(A, 2 * MS, keep=False)
    between(allocation, ("begin", B, 3))  # without company, and not guarded
    allocation.tick(at(100, gpu0=1_000_000))
    between(allocation, ("begin", C, 101))
    allocation.tick(at(200, gpu0=1_400_000))
    told = between(allocation, ("end", B, 201), ("end", C, 202))
    assert [told[serve].uj for serve in (B, C)] == [1_200_000, 200_000]
    assert [told[serve].window_uj for serve in (B, C)] == [1_400_000, 400_000]


def test_span_that_one_of_two_counters_does_not_resolve_is_not_told_as_the_longer_one_before() -> None:
    coarse = Domain("gpu1", "nvml-total", 40 * MS, None, modelled=False)
    allocation = Allocation([GPU, coarse], lambda: bytes(16))
    allocation.tick(at(0, gpu0=0, gpu1=0))
    between(allocation, ("begin", A, 1), ("begin", B, 1), ("begin", C, 4))
    allocation.tick(at(81, gpu0=900, gpu1=900))
    told = between(allocation, ("end", B, 82), ("end", C, 83))
    assert (told[B].uj, told[B].span_ns) == (600, 81 * MS)
    assert (told[C].reason, told[C].span_ns) == ("span-under-resolution", 79 * MS)


def test_company_that_came_at_the_reading_at_which_another_ended_is_in_the_next_ones_figure() -> None:
    allocation, others = books(), [bytes([n]) * 16 for n in (7, 8)]
    allocation.tick(at(0, gpu0=0))
    between(allocation, ("begin", A, 1), ("begin", B, 1), ("begin", C, 1))
    allocation.tick(at(100, gpu0=900_000))
    for other in others:
        allocation.begin(other, allocation.cover("m"), 100 * MS)
    b = allocation.end(B, 100 * MS, guarded=False)
    told = between(allocation, ("end", C, 102))  # with A and the two, for a while
    assert (b.uj, b.peak_sharers) == (300_000, 3)
    assert (told[C].uj, told[C].peak_sharers) == (300_000, 4)
