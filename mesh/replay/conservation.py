"""Whether energy adds up: for each epoch and domain that a signed checkpoint tells of, in whole microjoules,

    last - first = shares of the receipts + idle + unattributed + open

The receipts are those of the epoch with a `seq` below the checkpoint's `count`. Shares of serves that were interrupted
or came out unresolved are in no receipt: they are in `unattributed`. What no checkpoint covers is told, and nothing
follows from it: a gateway leaves a checkpoint when it starts and when it stops, and one that was killed left none then.
"""

from __future__ import annotations

import itertools
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from mesh.replay.holding import Holding
from mesh.schema.checkpoint import Checkpoint, DomainTotals
from mesh.schema.receipt import Receipt

Sum = Literal["exact", "off", "receipts-missing"]


@dataclass(frozen=True, slots=True)
class EpochSum:
    """One domain over one epoch, as its last checkpoint says, against the receipts below `count`, of which `serves`
    have a share. `difference_uj` is what is on the right side and not on the left: above 0, the receipts claim more
    than the meter counted. None, as `receipts_uj`, where receipts are missing. `checkpoints` tell of it."""

    steward: bytes
    epoch: bytes
    domain: str
    epoch_seq: int
    count: int
    first_uj: int
    last_uj: int
    idle_uj: int
    unattributed_uj: int
    open_uj: int
    checkpoints: int
    serves: int
    receipts_uj: int | None = None
    difference_uj: int | None = None

    @property
    def counted_uj(self) -> int:
        return self.last_uj - self.first_uj

    @property
    def result(self) -> Sum:
        if self.difference_uj is None:
            return "receipts-missing"
        return "off" if self.difference_uj else "exact"


@dataclass(frozen=True, slots=True)
class EnergyFault:
    steward: bytes
    message: str


@dataclass(frozen=True, slots=True)
class Uncovered:
    """Receipts with a figure that no checkpoint at hand covers, and the sum of their shares."""

    receipts: int
    uj: int


class _Shares:
    """The shares of one epoch and domain: numbers of receipts, and microjoules, side by side; 16 bytes each."""

    __slots__ = ("seqs", "sorted", "ujs")

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.ujs = array("Q")
        self.sorted = True

    def add(self, seq: int, uj: int) -> None:
        if self.seqs and seq < self.seqs[-1]:
            self.sorted = False
        self.seqs.append(seq)
        self.ujs.append(uj)

    def ordered(self) -> Iterable[tuple[int, int]]:
        pairs = zip(self.seqs, self.ujs, strict=True)
        return pairs if self.sorted else sorted(pairs)


class Books:
    """Takes receipts and checkpoints in any order, each once, and says at the end what adds up."""

    def __init__(self) -> None:
        self._shares: dict[tuple[bytes, bytes], dict[str, _Shares]] = defaultdict(dict)
        self._checkpoints: dict[tuple[bytes, bytes], list[Checkpoint]] = defaultdict(list)
        self._epochless: dict[bytes, Uncovered] = {}

    def add(self, receipt: Receipt) -> None:
        energy = receipt.energy
        if not energy.sources:
            return
        if energy.epoch is None:
            before = self._epochless.get(receipt.steward, Uncovered(0, 0))
            self._epochless[receipt.steward] = Uncovered(before.receipts + 1, before.uj + (energy.uj or 0))
            return
        domains = self._shares[receipt.steward, energy.epoch]
        for source in energy.sources:
            shares = domains.get(source.domain)
            if shares is None:
                shares = domains[source.domain] = _Shares()
            shares.add(receipt.seq, source.uj)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        if checkpoint.epoch is not None:
            self._checkpoints[checkpoint.steward, checkpoint.epoch].append(checkpoint)

    def uncovered(self) -> dict[bytes, Uncovered]:
        """Per steward."""
        found = dict(self._epochless)
        for (steward, epoch), domains in self._shares.items():
            end = max((one.count for one in self._checkpoints.get((steward, epoch), ())), default=0)
            seqs: set[int] = set()
            uj = 0
            for shares in domains.values():
                for seq, share in zip(shares.seqs, shares.ujs, strict=True):
                    if seq >= end:
                        seqs.add(seq)
                        uj += share
            if seqs:
                before = found.get(steward, Uncovered(0, 0))
                found[steward] = Uncovered(before.receipts + len(seqs), before.uj + uj)
        return found

    def sums(self, holdings: dict[bytes, Holding]) -> tuple[list[EpochSum], list[EnergyFault]]:
        """One sum for each epoch and domain that a checkpoint tells of, in the order of their receipts, and what is
        wrong."""
        sums: list[EpochSum] = []
        faults: list[EnergyFault] = []
        order = sorted(self._checkpoints, key=lambda key: (key[0], self._checkpoints[key][0].epoch_seq or 0, key[1]))
        for steward, epoch in order:
            checkpoints = sorted(self._checkpoints[steward, epoch], key=lambda one: (one.count, one.at_ns))
            domains = self._shares.get((steward, epoch), {})
            holding = holdings.get(steward)
            found = list(_sums(steward, epoch, checkpoints, domains, holding))
            sums += [one.sum for one in found]
            texts = [text for one in found for text in one.faults]
            texts += _against_each_other(epoch, checkpoints)
            texts += _outside(epoch, checkpoints, domains)
            faults += [EnergyFault(steward, text) for text in texts]
        return sums, faults


@dataclass(frozen=True, slots=True)
class _Summed:
    sum: EpochSum
    faults: list[str]


def _sums(
    steward: bytes, epoch: bytes, checkpoints: list[Checkpoint], domains: dict[str, _Shares], holding: Holding | None
) -> Iterator[_Summed]:
    """Per domain, the sum at the last checkpoint that tells of it; the first one where it is off is the fault."""
    names = sorted({totals.domain for checkpoint in checkpoints for totals in checkpoint.domains})
    for name in names:
        rows = [(one, _totals(one, name)) for one in checkpoints]
        told = [(one, totals) for one, totals in rows if totals is not None]
        shares = domains.get(name)
        pairs = iter(()) if shares is None else iter(shares.ordered())
        pair = next(pairs, None)
        serves = receipts_uj = 0
        last: EpochSum | None = None
        off: str | None = None
        right_until = 0
        for checkpoint, totals in told:
            while pair is not None and pair[0] < checkpoint.count:
                serves, receipts_uj = serves + 1, receipts_uj + pair[1]
                pair = next(pairs, None)
            start = checkpoint.epoch_seq or 0
            whole = start >= checkpoint.count or (holding is not None and holding.covers(start, checkpoint.count))
            right = receipts_uj + totals.idle_uj + totals.unattributed_uj + totals.open_uj
            difference = right - (totals.last_uj - totals.first_uj) if whole else None
            last = EpochSum(
                steward, epoch, name, start, checkpoint.count, totals.first_uj, totals.last_uj, totals.idle_uj,
                totals.unattributed_uj, totals.open_uj, len(told), serves, receipts_uj if whole else None, difference,
            )  # fmt: skip
            if difference and off is None:
                off = (
                    f"epoch {epoch.hex()}, {name}: receipts {receipts_uj} + idle {totals.idle_uj} + "
                    f"unattributed {totals.unattributed_uj} + open {totals.open_uj} = {right} microjoules, the meter "
                    f"counted {totals.last_uj - totals.first_uj}: {difference:+d}, "
                    f"{_where(max(start, right_until), checkpoint)}"
                )
            elif difference == 0 and off is None:
                right_until = checkpoint.count
        if last is not None:
            yield _Summed(last, [off] if off else [])


def _where(start: int, checkpoint: Checkpoint) -> str:
    if start >= checkpoint.count:
        return f"in the books of the checkpoint that counts {checkpoint.count}"
    if start == checkpoint.count - 1:
        return f"in seq {start} or in the books of the checkpoint that counts {checkpoint.count}"
    return f"in seq {start} to {checkpoint.count - 1} or in the books of the checkpoint that counts {checkpoint.count}"


def _totals(checkpoint: Checkpoint, domain: str) -> DomainTotals | None:
    return next((totals for totals in checkpoint.domains if totals.domain == domain), None)


def _against_each_other(epoch: bytes, checkpoints: list[Checkpoint]) -> Iterator[str]:
    """What one checkpoint of an epoch says otherwise than the one before: a counter and what was idle or nobody's only
    grow."""
    for before, after in itertools.pairwise(checkpoints):
        where = f"epoch {epoch.hex()}: the checkpoint that counts {after.count}"
        for old in before.domains:
            new = _totals(after, old.domain)
            if new is None:
                yield f"{where} leaves out {old.domain}, which the one before has"
                continue
            if new.first_uj != old.first_uj:
                yield f"{where} begins {old.domain} at {new.first_uj}, the one before at {old.first_uj}"
            for field in ("last_uj", "idle_uj", "unattributed_uj"):
                was, is_now = getattr(old, field), getattr(new, field)
                if is_now < was:
                    yield f"{where} has {field} {is_now} for {old.domain}, the one before {was}: it only grows"


def _outside(epoch: bytes, checkpoints: list[Checkpoint], domains: dict[str, _Shares]) -> Iterator[str]:
    """Receipts of the epoch before it began, or with a domain that its books do not have."""
    start = min(one.epoch_seq or 0 for one in checkpoints)
    last = checkpoints[-1]
    for checkpoint in checkpoints:
        for totals in checkpoint.domains:
            if totals.last_uj < totals.first_uj:
                yield (
                    f"epoch {epoch.hex()}, {totals.domain}: the checkpoint that counts {checkpoint.count} ends "
                    f"at {totals.last_uj}, below its beginning {totals.first_uj}"
                )
    for name in sorted(domains):
        shares = domains[name]
        early = min(shares.seqs)
        if early < start:
            yield (f"epoch {epoch.hex()}, {name}: seq {early} has a share in it, and it begins with seq {start}")
        if early < last.count and _totals(last, name) is None:
            yield (
                f"epoch {epoch.hex()}: seq {early} has a share of {name}, of which the checkpoint that counts "
                f"{last.count} does not tell"
            )
