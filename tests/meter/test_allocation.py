"""Rule equal/1, by hand-computed cases."""

from __future__ import annotations

import itertools

import pytest

from mesh.errors import MeterError
from mesh.meter.allocation import KEPT_EPOCHS, MAX_COUNTER_UJ, Allocation
from mesh.meter.protocol import Domain, Reading
from mesh.schema.limits import MAX_SOURCES

S = 10**9
MS = 10**6
A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))
# An engine on the card, one on the processor, and one on both.
GPU = Domain("gpu0", "nvml-total", 20 * MS, frozenset({"g", "both"}), modelled=False)
CPU = Domain("cpu", "cpu-time@15W", 10 * MS, frozenset({"c", "both"}), modelled=True)


def books(*domains: Domain) -> Allocation:
    epochs = itertools.count(1)
    return Allocation(domains, lambda: next(epochs).to_bytes(16, "big"))


def at(seconds: float, **counts: int | None) -> list[Reading]:
    return [Reading(name, int(seconds * S), uj) for name, uj in counts.items()]


def test_two_overlapping_serves_share_what_was_counted_and_not_more() -> None:  # EN-10 a
    allocation = books(GPU)  # 120 W: A from 0 to 10 s, B from 5 s on
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(5, gpu0=600_000_000))
    allocation.begin(B, allocation.cover("g"), 5 * S)
    allocation.tick(at(10, gpu0=1_200_000_000))
    a, b = allocation.end(A, 10 * S), allocation.end(B, 10 * S)
    assert (a.uj, b.uj) == (900_000_000, 300_000_000)
    assert (a.basis, a.rule, a.window_uj, a.peak_sharers) == ("allocated", "equal/1", 1_200_000_000, 2)
    assert (b.basis, b.rule, b.window_uj, b.peak_sharers) == ("allocated", "equal/1", 600_000_000, 2)
    assert (a.span_ns, b.span_ns, a.covered_ns) == (10 * S, 5 * S, None)
    assert a.epoch == b.epoch == (1).to_bytes(16, "big")


def test_remainder_goes_to_the_lowest_serve_ids() -> None:
    allocation = books(CPU)
    allocation.tick(at(0, cpu=100))
    for serve in (C, A, B):
        allocation.begin(serve, allocation.cover("c"), 0)
    allocation.tick(at(1, cpu=111))
    assert [allocation.end(serve, S).uj for serve in (A, B, C)] == [4, 4, 3]


def test_idle_is_what_was_counted_with_nobody_active() -> None:  # EN-10 c
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=7))
    allocation.tick(at(1, gpu0=47))
    allocation.begin(A, allocation.cover("g"), S)
    allocation.tick(at(2, gpu0=147))
    allocation.end(A, 2 * S)
    allocation.tick(at(3, gpu0=187))
    (row,) = allocation.totals().domains
    assert (row.first_uj, row.last_uj, row.idle_uj, row.unattributed_uj, row.open_uj) == (7, 187, 80, 0, 100)
    allocation.sealed(A)
    (row,) = allocation.totals().domains
    assert (row.idle_uj, row.unattributed_uj, row.open_uj) == (80, 0, 0)


def test_serve_alone_with_its_guard_intervals_is_measured() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(1, gpu0=500))
    assert allocation.guard_ns(A) == GPU.resolution_ns
    energy = allocation.end(A, S)
    assert (energy.basis, energy.uj, energy.rule, energy.window_uj) == ("measured", 500, None, None)


def test_serve_without_guard_interval_is_allocated_though_alone() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(1, gpu0=500))
    assert allocation.end(A, S, guarded=False).basis == "allocated"  # somebody came right after
    allocation.tick(at(1.01, gpu0=505))
    allocation.begin(B, allocation.cover("g"), S)  # right after A: the counter may still show A's end
    assert allocation.guard_ns(B) == 0
    allocation.tick(at(2, gpu0=900))
    energy = allocation.end(B, 2 * S)
    assert (energy.basis, energy.rule, energy.window_uj, energy.peak_sharers) == ("allocated", "equal/1", 395, 1)
    allocation.tick(at(3, gpu0=901))
    allocation.begin(C, allocation.cover("g"), 3 * S)
    allocation.tick(at(4, gpu0=999))
    assert allocation.end(C, 4 * S).basis == "measured"


def test_company_that_left_again_is_remembered() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.begin(B, allocation.cover("g"), 0)
    allocation.tick(at(1, gpu0=10))
    allocation.end(B, S)
    allocation.tick(at(2, gpu0=20))
    energy = allocation.end(A, 2 * S)
    assert (energy.basis, energy.peak_sharers, energy.uj) == ("allocated", 2, 15)


def test_serves_that_meet_at_one_reading_had_no_company() -> None:
    allocation = books(CPU)
    allocation.tick(at(0, cpu=0))
    allocation.begin(A, allocation.cover("c"), 0)
    allocation.tick(at(1, cpu=10))
    allocation.begin(B, allocation.cover("c"), S)
    a = allocation.end(A, S)
    allocation.tick(at(2, cpu=20))
    b = allocation.end(B, 2 * S)
    assert (a.uj, a.rule, b.uj, b.rule) == (10, None, 10, None)


def test_modelled_domain_is_never_measured() -> None:
    allocation = books(CPU)
    allocation.tick(at(0, cpu=0))
    allocation.begin(A, allocation.cover("c"), 0)
    allocation.tick(at(1, cpu=10))
    assert allocation.guard_ns(A) == 0
    assert allocation.end(A, S).basis == "modelled"


@pytest.mark.parametrize(
    ("window_s", "basis"), [(0.0399, "unresolved"), (0.040, "measured")], ids=["under", "at twice the resolution"]
)
def test_span_under_twice_the_resolution_is_unresolved(window_s: float, basis: str) -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(window_s, gpu0=500))
    energy = allocation.end(A, int(window_s * S))
    assert energy.basis == basis
    (row,) = allocation.totals().domains
    if basis == "unresolved":
        assert (energy.uj, energy.sources, energy.reason) == (None, [], "span-under-resolution")
        assert (row.unattributed_uj, row.open_uj) == (500, 0)


def test_counter_that_stands_still_is_no_zero() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=5))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(9, gpu0=5))
    energy = allocation.end(A, 9 * S)
    assert (energy.basis, energy.uj, energy.reason) == ("unresolved", None, "counter-still")


def test_abandoned_serve_leaves_its_share_unattributed() -> None:
    allocation = books(CPU)
    allocation.tick(at(0, cpu=0))
    allocation.begin(A, allocation.cover("c"), 0)
    allocation.begin(B, allocation.cover("c"), 0)
    allocation.tick(at(1, cpu=10))
    a = allocation.end(A, S, keep=False)
    assert (a.basis, a.reason, a.span_ns) == ("absent", "abandoned", S)
    b = allocation.end(B, S)
    assert b.uj == 5
    allocation.discard(B, S)  # its receipt could not be written after all
    (row,) = allocation.totals().domains
    assert (row.unattributed_uj, row.open_uj) == (10, 0)


def test_serve_on_two_domains_has_the_weakest_basis_and_sorted_sources() -> None:
    allocation = books(GPU, CPU)
    allocation.tick(at(0, gpu0=0, cpu=0))
    allocation.begin(A, allocation.cover("both"), 0)
    allocation.tick(at(1, gpu0=70, cpu=30))
    energy = allocation.end(A, S)
    assert (energy.basis, energy.uj) == ("modelled", 100)
    assert [(source.domain, source.uj, source.method) for source in energy.sources] == [
        ("cpu", 30, "cpu-time@15W"),
        ("gpu0", 70, "nvml-total"),
    ]


def test_serve_with_one_domain_lost_has_no_figure_rather_than_half_of_one() -> None:
    allocation = books(GPU, CPU)
    allocation.tick(at(0, gpu0=0, cpu=0))
    allocation.begin(A, allocation.cover("both"), 0)
    allocation.tick([Reading("gpu0", S, None, "gpu-lost"), Reading("cpu", S, 30)])
    energy = allocation.end(A, S)
    assert (energy.basis, energy.reason, energy.sources) == ("absent", "gpu-lost", [])
    cpu, gpu = allocation.totals().domains
    assert (cpu.unattributed_uj, gpu.unattributed_uj) == (30, 0)


def test_serve_that_began_unreadable_has_no_figure_but_still_shares() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.tick([Reading("gpu0", S, None, "permission-denied")])
    allocation.begin(A, allocation.cover("g"), S)
    allocation.tick(at(2, gpu0=100))
    allocation.begin(B, allocation.cover("g"), 2 * S)
    allocation.tick(at(3, gpu0=300))
    a, b = allocation.end(A, 3 * S), allocation.end(B, 3 * S)
    assert (a.basis, a.reason, b.uj) == ("absent", "permission-denied", 100)
    (row,) = allocation.totals().domains
    assert (row.unattributed_uj, row.open_uj) == (200, 100)  # nobody knows who made the first 100


def test_failed_reading_between_two_good_ones_is_not_covered() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(1, gpu0=100))
    allocation.tick([Reading("gpu0", 2 * S, None, "busy")])
    allocation.tick(at(3, gpu0=300))
    allocation.tick(at(4, gpu0=400))
    energy = allocation.end(A, 4 * S)
    assert (energy.basis, energy.uj, energy.span_ns, energy.covered_ns) == ("allocated", 400, 4 * S, 2 * S)


def test_sharers_that_changed_while_nothing_could_be_read_leave_it_unattributed() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=0))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.begin(B, allocation.cover("g"), 0)
    allocation.tick([])  # a reading that never came
    assert allocation.end(B, S).reason == "no-reading"
    allocation.tick(at(2, gpu0=200))
    allocation.tick(at(3, gpu0=300))
    energy = allocation.end(A, 3 * S)
    assert (energy.uj, energy.window_uj, energy.covered_ns) == (100, 300, S)
    (row,) = allocation.totals().domains
    assert (row.idle_uj, row.unattributed_uj, row.open_uj) == (0, 200, 100)


def test_gap_that_the_meter_marks_is_not_covered() -> None:
    allocation = books(CPU)
    allocation.tick(at(0, cpu=0))
    allocation.begin(A, allocation.cover("c"), 0)
    allocation.tick([Reading("cpu", S, 10, gap=True)])
    allocation.tick(at(4, cpu=40))
    energy = allocation.end(A, 4 * S)
    assert (energy.basis, energy.uj, energy.covered_ns) == ("modelled", 40, 3 * S)


@pytest.mark.parametrize(
    "second", [Reading("gpu0", S, 40), Reading("gpu0", S, 900, reset=True)], ids=["falls", "marked"]
)
def test_counter_reset_ends_the_epoch_for_every_domain(second: Reading) -> None:
    allocation = books(GPU, CPU)
    allocation.tick(at(0, gpu0=100, cpu=0))
    allocation.begin(A, allocation.cover("c"), 0)
    allocation.begin(B, allocation.cover("g"), 0)
    allocation.tick(at(0.5, gpu0=300, cpu=10))
    sealed_in_time = allocation.end(B, S // 2)
    allocation.tick([second, Reading("cpu", S, 25)])
    (old,) = allocation.ended()
    cpu, gpu = old.domains
    assert old.epoch == sealed_in_time.epoch
    assert (cpu.first_uj, cpu.last_uj, cpu.unattributed_uj, cpu.open_uj) == (0, 25, 25, 0)
    assert (gpu.first_uj, gpu.last_uj, gpu.idle_uj, gpu.open_uj) == (100, 300, 0, 200)
    assert second.uj is not None
    allocation.tick(at(2, gpu0=second.uj + 7, cpu=45))
    crossed = allocation.end(A, 2 * S)
    assert (crossed.basis, crossed.reason, crossed.epoch) == ("absent", "epoch-ended", None)
    new = allocation.totals()
    cpu, gpu = new.domains
    assert new.epoch != old.epoch
    assert (cpu.first_uj, cpu.last_uj, cpu.unattributed_uj) == (25, 45, 20)
    assert (gpu.first_uj, gpu.last_uj, gpu.idle_uj) == (second.uj, second.uj + 7, 7)
    allocation.sealed(B)
    assert allocation.ended()[0].domains[1].open_uj == 0


def test_share_given_up_after_its_epoch_ended_is_unattributed_there() -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=100))
    allocation.begin(A, allocation.cover("g"), 0)
    allocation.tick(at(1, gpu0=300))
    allocation.end(A, S)
    allocation.tick(at(2, gpu0=0))
    allocation.discard(A, 2 * S)
    (row,) = allocation.ended()[0].domains
    assert (row.unattributed_uj, row.open_uj) == (200, 0)
    assert allocation.totals().domains[0].unattributed_uj == 0


def test_ended_epochs_are_kept_up_to_a_bound() -> None:
    allocation = books(GPU)
    for n in range(KEPT_EPOCHS + 4):
        allocation.tick([Reading("gpu0", n, n, reset=True)])
    assert len(allocation.ended()) == KEPT_EPOCHS
    assert len({totals.epoch for totals in allocation.ended()} | {allocation.totals().epoch}) == KEPT_EPOCHS + 1


def test_domain_never_read_is_in_no_totals() -> None:
    allocation = books(GPU, CPU)
    allocation.tick([Reading("gpu0", 0, None, "permission-denied"), Reading("cpu", 0, 1)])
    allocation.begin(A, allocation.cover("g"), 0)
    assert [row.domain for row in allocation.totals().domains] == ["cpu"]
    assert allocation.end(A, S).reason == "permission-denied"


@pytest.mark.parametrize("uj", [-1, MAX_COUNTER_UJ + 1])
def test_count_that_no_receipt_can_hold_is_no_reading(uj: int) -> None:
    allocation = books(GPU)
    allocation.tick(at(0, gpu0=uj))
    allocation.begin(A, allocation.cover("g"), 0)
    assert allocation.end(A, S).reason == "counter-out-of-range"


def test_reason_that_no_receipt_can_hold_is_replaced() -> None:
    allocation = books(GPU)
    allocation.tick([Reading("gpu0", 0, None, "Errno 13: Permission denied!\x1b[31m")])
    allocation.begin(A, allocation.cover("g"), 0)
    assert allocation.end(A, S).reason == "meter-unreadable"


def test_largest_counters_on_every_domain_still_fit_a_receipt() -> None:
    domains = [Domain(f"d{n:02}", "m", 0, None, modelled=True) for n in range(MAX_SOURCES)]
    allocation = books(*domains)
    names = [domain.name for domain in domains]
    allocation.tick([Reading(name, 0, 0) for name in names])
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.begin(B, allocation.cover("m"), 0)
    allocation.tick([Reading(name, S, MAX_COUNTER_UJ) for name in names])
    assert allocation.end(A, S).window_uj == MAX_COUNTER_UJ * MAX_SOURCES


def test_domains_that_cannot_stand_in_one_receipt_are_refused() -> None:
    with pytest.raises(MeterError, match="two meters have a domain of this name"):
        books(GPU, GPU)
    with pytest.raises(MeterError, match=f"at most {MAX_SOURCES}"):
        books(*(Domain(f"d{n}", "m", 0, None, modelled=True) for n in range(MAX_SOURCES + 1)))


def test_serve_begun_twice_is_refused() -> None:
    allocation = books(GPU)
    allocation.begin(A, allocation.cover("g"), 0)
    with pytest.raises(MeterError, match="began twice"):
        allocation.begin(A, allocation.cover("g"), 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", ""), ("name", "a\nb"), ("name", "x" * 257), ("method", "\x1b[0m"), ("resolution_ns", -1)],
)
def test_domain_that_no_receipt_can_name_is_refused(field: str, value: object) -> None:
    fields = {"name": "d", "method": "m", "resolution_ns": 0, "engines": None, "modelled": True, field: value}
    with pytest.raises(MeterError, match=field):
        Domain(**fields)  # type: ignore[arg-type]
