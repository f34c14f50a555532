"""A steward's sequence made by hand, in the open, so that a test can make any single link of it dishonest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mesh.replay.census import Census, Place, Source
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import Sealed, SigningKey, seal
from mesh.schema.receipt import Receipt
from mesh.schema.request import prompt_hash_of_text
from tests.replay.sealing import KEY, NONCE, Case, make_request, serve

EPOCH = b"\x0e" * 16
ENGINE = {
    "backend_id": "reference/1/none/none/none/none", "recipe_id": "m", "fidelity": 0, "deterministic": True,
    "settings_digest": bytes(32), "process": bytes(16),
}  # fmt: skip


def energy(shares: dict[str, int], epoch: bytes | None = EPOCH) -> dict[str, Any]:
    """A figure with a share of each domain; absent where there is none."""
    if not shares:
        return {"basis": "absent", "sources": [], "span_ns": 1000, "reason": "no-meter"}
    sources = [
        {"domain": name, "method": "by-hand", "uj": uj, "resolution_ns": 1} for name, uj in sorted(shares.items())
    ]
    told = {"basis": "allocated", "sources": sources, "span_ns": 1000, "uj": sum(shares.values())}
    return told if epoch is None else told | {"epoch": epoch}


def receipt(seq: int, prev: bytes | None, *, key: SigningKey = KEY, **changes: Any) -> Receipt:
    fields: dict[str, Any] = {
        "v": "mesh/1", "steward": key.public, "seq": seq, "serve_id": b"\x01" * 8 + seq.to_bytes(8, "big"),
        "request_id": bytes(32), "prompt_hash": bytes(32), "max_tokens": 4, "started_ns": 1,
        "ended_ns": 10**18 + min(seq, 10**9), "engine": ENGINE,
        "outcome": {"finish": "length", "counted_by": "none"}, "energy": energy({}),
    }  # fmt: skip
    fields |= changes
    return Receipt.of(**fields | ({} if prev is None else {"prev": prev}))


def sequence(count: int, *, key: SigningKey = KEY, changes: dict[int, dict[str, Any]] | None = None) -> list[Sealed]:
    """`count` receipts, each with what `changes` says of its number."""
    made: list[Sealed] = []
    for seq in range(count):
        prev = made[-1].id if made else None
        made.append(seal(receipt(seq, prev, key=key, **(changes or {}).get(seq, {})), key))
    return made


def books(domain: str, counted: int, *, first: int = 0, idle: int = 0, unattributed: int = 0, held: int = 0) -> Any:
    return {
        "domain": domain, "first_uj": first, "last_uj": first + counted, "idle_uj": idle,
        "unattributed_uj": unattributed, "open_uj": held,
    }  # fmt: skip


def checkpoint(
    receipts: Sequence[Sealed],
    domains: Iterable[Any] = (),
    *,
    key: SigningKey = KEY,
    epoch: bytes = EPOCH,
    epoch_seq: int = 0,
    **changes: Any,
) -> Sealed:
    """A true one of these receipts, but for `changes`."""
    rows = list(domains)
    fields: dict[str, Any] = {
        "v": "mesh/1", "steward": key.public, "at_ns": 10**18, "count": len(receipts), "domains": rows,
    }  # fmt: skip
    if receipts:
        fields["head"] = receipts[-1].id
    if rows:
        fields |= {"epoch": epoch, "epoch_seq": epoch_seq}
    return seal(Checkpoint.of(**fields | changes), key)


def census_of(sealed: Iterable[Sealed | bytes], *, keys: Sequence[SigningKey] = (KEY,), **source: Any) -> Census:
    """What a census of one archive with these envelopes finds."""
    census = Census({key.public for key in keys})
    census.open(Source(**{"label": "archive", "ordered": True} | source))
    for number, each in enumerate(sealed):
        census.take(each if isinstance(each, bytes) else each.envelope, f"archive envelope {number}")
    census.finish()
    return census


@dataclass(frozen=True)
class Day:
    """Serves of the reference engine in one sequence, with their disclosures and a checkpoint: a day's work."""

    cases: tuple[Case, ...]
    totals: tuple[Any, ...] = field(default=())

    @property
    def sealed(self) -> list[Sealed]:
        return [seal(case.receipt, KEY) for case in self.cases]

    @property
    def checkpoint(self) -> Sealed:
        return checkpoint(self.sealed, self.totals)

    def changed(self, seq: int, case: Case) -> Day:
        """The same day with another serve in one place; those after it are linked anew, as the steward would have."""
        cases = list(self.cases)
        cases[seq] = case
        return replace(self, cases=tuple(_linked(cases)))

    def write(self, folder: Path, envelopes: Iterable[Sealed | bytes] | None = None) -> Path:
        """An archive, and a folder of disclosures beside it."""
        disclosures = folder / "disclosures"
        disclosures.mkdir(parents=True, exist_ok=True)
        for seq, case in enumerate(self.cases):
            (disclosures / f"{seq}.disclosure.cbor").write_bytes(case.disclosure.to_cbor())
        each = [self.checkpoint, *self.sealed] if envelopes is None else envelopes
        archive = folder / "day.cborseq"
        archive.write_bytes(b"".join(one if isinstance(one, bytes) else one.envelope for one in each))
        return archive


def serve_id(seq: int) -> bytes:
    return b"\x01" * 8 + seq.to_bytes(8, "big")


def honest_case(seq: int, *, max_tokens: int = 6, **options: Any) -> Case:
    """A serve with a prompt of its own, not linked yet."""
    prompt = f"question {seq}"
    request = make_request(
        prompt=prompt, prompt_hash=prompt_hash_of_text(prompt, NONCE), prompt_tokens=len(prompt.encode()),
        max_tokens=max_tokens,
    )  # fmt: skip
    case = serve(None, request, payload=list(prompt.encode()), serve_id=serve_id(seq), **options)
    return case.disclosing(prompt=prompt)


def make_day(count: int = 8, *, uj: int = 1000) -> Day:
    cases = [honest_case(seq).claiming(energy=energy({"lamp": uj + seq})) for seq in range(count)]
    spent = sum(uj + seq for seq in range(count))
    return Day(tuple(_linked(cases)), (books("lamp", spent + 500, first=77, idle=400, unattributed=100),))


def _linked(cases: Iterable[Case]) -> list[Case]:
    made: list[Case] = []
    for seq, case in enumerate(cases):
        fields = {name: value for name, value in case.receipt.to_map().items() if name != "prev"}
        prev = {} if not made else {"prev": made[-1].receipt.id}
        made.append(Case(Receipt.of(**fields | {"seq": seq, **prev}), case.disclosure))
    return made


__all__ = ["EPOCH", "KEY", "Census", "Day", "Place", "census_of", "checkpoint", "make_day", "sequence"]
