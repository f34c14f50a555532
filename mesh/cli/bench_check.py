"""A benchmark's record against the receipts that it names: each there, sealed, of this candidate, with its figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mesh.errors import EnvelopeError, Invalid, Undecidable
from mesh.runtime.faults import Fault
from mesh.schema import canonical
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId, steward_from_text
from mesh.schema.limits import MAX_SETTINGS_BYTES

if TYPE_CHECKING:
    from mesh.ledger.reader import LedgerReader
    from mesh.runtime.record import EngineOf, Measured, Record
    from mesh.schema.receipt import Receipt


def receipt_faults(record: Record, reader: LedgerReader) -> Iterator[Fault]:
    """Every figure that no receipt in the ledger bears out, by its path."""
    for at, one in enumerate(record.engines):
        yield from _of_settings(record, one, f"engines[{at}]", reader)
    trusted = {steward_from_text(record.steward)}
    for at, cell in enumerate(record.cells):
        for number, request in enumerate(cell.requests):
            path = f"cells[{at}].requests[{number}]"
            entry = reader.by_receipt(bytes(ContentId.from_text(request.receipt)))
            if entry is None:
                yield Fault(f"{path}.receipt", "not in this ledger")
                continue
            try:
                receipt = verify(entry.envelope, RECEIPT_TYPE, trusted).value
            except (EnvelopeError, Undecidable, Invalid) as e:
                yield Fault(f"{path}.receipt", str(e))
                continue
            engine = record.engines[cell.context] if cell.context < len(record.engines) else None
            yield from _of_receipt(request, receipt, engine, path)


def _of_settings(record: Record, engine: EngineOf, path: str, reader: LedgerReader) -> Iterator[Fault]:
    data = reader.settings(bytes(ContentId.from_text(engine.settings_digest)))
    if data is None:
        yield Fault(f"{path}.settings_digest", "not in this ledger")
        return
    candidate = canonical.decode_map(data, max_bytes=MAX_SETTINGS_BYTES).get("candidate")
    said = record.candidate
    told: dict[str, Any] = {"id": said.id, "version": said.version, "runtime": said.runtime_digest}
    expected = told if said.payload is None else {**told, "payload": said.payload}
    if candidate != expected:
        yield Fault(f"{path}.settings_digest", "its settings are of another candidate")


def _of_receipt(request: Measured, receipt: Receipt, engine: EngineOf | None, path: str) -> Iterator[Fault]:
    outcome, energy = receipt.outcome, receipt.energy
    figures = {
        "tokens_in": (request.tokens_in, outcome.tokens_in),
        "tokens_out": (request.tokens_out, outcome.tokens_out),
        "finish": (request.finish, outcome.finish),
        "energy.basis": (request.energy.basis, energy.basis),
        "energy.uj": (request.energy.uj, energy.uj),
    }
    for name, (said, sealed) in figures.items():
        if said != sealed:
            yield Fault(f"{path}.{name}", f"{said}, its receipt has {sealed}")
    if energy.span_ns is not None and request.total_ns < energy.span_ns:
        yield Fault(f"{path}.total_ns", f"{request.total_ns}, its receipt's serve took {energy.span_ns}")
    if engine is None:
        yield Fault(path, "of a start that the record does not have")
        return
    settings = f"b3:{receipt.engine.settings_digest.hex()}"
    if (receipt.engine.backend_id, settings) != (engine.backend_id, engine.settings_digest):
        yield Fault(f"{path}.receipt", "of another engine than the record names")
