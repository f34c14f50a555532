"""What an audit holds of one steward's receipts: enough to say what is missing, there twice or out of its place, in 52
bytes a receipt, so that millions pass through."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from mesh.errors import SequenceError
from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.receipt import Receipt

_ID, _SERVE = 32, 16
_AT_ONCE = 1 << 17  # serve ids that are compared in one set


class _Run:
    """Receipts without a gap, from `first` on. `before` is the `prev` of the first."""

    __slots__ = ("before", "first", "groups", "ids", "serves")

    def __init__(self, first: int, before: bytes | None) -> None:
        self.first = first
        self.before = before
        self.ids = bytearray()
        self.serves = bytearray()
        self.groups = array("I")

    @property
    def end(self) -> int:
        return self.first + len(self.groups)

    def id_at(self, seq: int) -> bytes:
        at = (seq - self.first) * _ID
        return bytes(self.ids[at : at + _ID])

    def serve_at(self, seq: int) -> bytes:
        at = (seq - self.first) * _SERVE
        return bytes(self.serves[at : at + _SERVE])


@dataclass(frozen=True, slots=True)
class Held:
    """One receipt that is at hand: its number and id, and the number of its group."""

    seq: int
    receipt_id: ContentId
    group: int


class Holding:
    """The receipts of one steward, in whatever order they come. Its faults are raised as SequenceError where a receipt
    shows them, and yielded by `faults` where only all of them do."""

    def __init__(self, steward: bytes) -> None:
        self.steward = steward
        self.name = steward_text(steward)
        self._runs: list[_Run] = []
        self._firsts: list[int] = []
        self._last: _Run | None = None  # the one that grew last: receipts mostly come one after the other

    def __len__(self) -> int:
        return sum(len(run.groups) for run in self._runs)

    def add(self, receipt: Receipt, receipt_id: bytes, group: int) -> bool:
        """Take one receipt in; False where it is at hand already. Raises SequenceError for a fork: then it is not taken
        in."""
        seq = receipt.seq
        run = self._last
        if run is None or seq != run.first + len(run.groups) or self._holds(seq):
            run = self._run_of(seq)
        if run is None:
            run = _Run(seq, receipt.prev)
            at = bisect_right(self._firsts, seq)
            self._runs.insert(at, run)
            self._firsts.insert(at, seq)
        elif seq < run.end:
            other = run.id_at(seq)
            if other == receipt_id:
                return False
            raise SequenceError(
                f"fork: {self.name} signed two receipts with seq {seq}, {ContentId(other)} and "
                f"{ContentId(receipt_id)}: its key is at work in two places, or was"
            )
        self._last = run
        linked = not run.groups or receipt.prev == bytes(run.ids[-_ID:])
        run.ids += receipt_id
        run.serves += receipt.serve_id
        run.groups.append(group)
        if not linked:
            raise _broken_link(self.name, seq, receipt_id, receipt.prev, run.id_at(seq - 1))
        return True

    def _holds(self, seq: int) -> bool:
        """Whether another run than the last begins at `seq`."""
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and self._firsts[at] == seq

    def _run_of(self, seq: int) -> _Run | None:
        """The run that holds `seq` or ends just before it."""
        at = bisect_right(self._firsts, seq) - 1
        if at < 0 or self._runs[at].end < seq:
            return None
        return self._runs[at]

    def id_at(self, seq: int) -> ContentId | None:
        run = self._run_of(seq)
        return None if run is None or seq >= run.end else ContentId(run.id_at(seq))

    def seq_of(self, receipt_id: bytes) -> int | None:
        for run in self._runs:
            at = run.ids.find(receipt_id)
            while at >= 0 and at % _ID:
                at = run.ids.find(receipt_id, at + 1)
            if at >= 0:
                return run.first + at // _ID
        return None

    @property
    def first(self) -> int | None:
        return self._runs[0].first if self._runs else None

    @property
    def last(self) -> int | None:
        return self._runs[-1].end - 1 if self._runs else None

    @property
    def head(self) -> ContentId | None:
        """The id of the last receipt at hand."""
        return None if self.last is None else self.id_at(self.last)

    def covers(self, start: int, end: int) -> bool:
        """Whether every number from `start` up to, and without, `end` is at hand."""
        for run in self._runs:
            if run.end > start >= run.first:
                start = run.end
        return start >= end

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The numbers from `start` to `end` - 1 that are not at hand, as first and last of each stretch."""
        expected = start
        for run in self._runs:
            if run.first > expected:
                yield expected, run.first - 1
            expected = max(expected, run.end)
        if end > expected:
            yield expected, end - 1

    def upto(self, end: int) -> Iterator[Held]:
        """What is at hand below `end`, ascending."""
        for run in self._runs:
            for seq in range(run.first, min(run.end, end)):
                yield Held(seq, ContentId(run.id_at(seq)), run.groups[seq - run.first])

    def faults(self) -> Iterator[SequenceError]:
        """What shows only now: receipts that came before the one that they name, and serves with two receipts."""
        for one, next_one in itertools.pairwise(self._runs):
            if one.end == next_one.first and next_one.before != (last := one.id_at(one.end - 1)):
                seq = next_one.first
                yield _broken_link(self.name, seq, next_one.id_at(seq), next_one.before, last)
        yield from self._twice_served()

    def _twice_served(self) -> Iterator[SequenceError]:
        # in parts by the last byte of the id, which is random, so that a set never holds all of them
        parts = max(1, len(self) // _AT_ONCE)
        for part in range(parts):
            seen: dict[bytes, int] = {}
            for run in self._runs:
                for number, at in enumerate(range(0, len(run.serves), _SERVE)):
                    if parts > 1 and (run.serves[at + 15] + 256 * run.serves[at + 14]) % parts != part:
                        continue
                    serve_id = bytes(run.serves[at : at + _SERVE])
                    seq = run.first + number
                    other = seen.setdefault(serve_id, seq)
                    if other != seq:
                        yield SequenceError(
                            f"duplicate: serve {serve_id_text(serve_id)} of {self.name} has two receipts, seq {other} "
                            f"and {seq}"
                        )


def _broken_link(name: str, seq: int, receipt_id: bytes, prev: bytes | None, expected: bytes) -> SequenceError:
    got = "none" if prev is None else ContentId(prev).text
    return SequenceError(
        f"prev: receipt {ContentId(receipt_id)} of {name} (seq {seq}) names {got}, expected {ContentId(expected)}"
    )


class Numbers:
    """Whole numbers, kept as stretches: which `seq` one source has given already."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # the first number behind each stretch

    @property
    def last(self) -> int:
        """The highest; -1 where there is none."""
        return self._ends[-1] - 1 if self._ends else -1

    def add(self, number: int) -> bool:
        """False where it is there already."""
        if self._ends and number == self._ends[-1]:
            self._ends[-1] += 1
            return True
        at = bisect_right(self._starts, number) - 1
        if at >= 0 and number < self._ends[at]:
            return False
        if at >= 0 and number == self._ends[at]:
            self._ends[at] += 1
        else:
            self._starts.insert(at + 1, number)
            self._ends.insert(at + 1, number + 1)
        return True
