"""`GET /mesh/v1/receipts`: the receipts, newest first, a page at a time, and those among them that are looked for.

Each comes as the envelope that was signed, so that whoever asked can check what it shows. What only the ledger knows of
it is the caller, by the label that a credential has here and never by the credential.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from mesh.errors import BadRequest
from mesh.gateway.completions import CALLER, GRANT
from mesh.gateway.query import Query
from mesh.ledger import Entry, LedgerReader
from mesh.schema import cose
from mesh.schema.energy import BASES
from mesh.schema.ids import ContentId, serve_id_text
from mesh.schema.limits import MAX_PAYLOAD_BYTES, MAX_UINT
from mesh.schema.outcome import FINISHES
from mesh.schema.receipt import Receipt
from mesh.steward.steward import Steward

PAGE: Final = 50
MAX_PAGE: Final = 200
SCANNED: Final = 4096  # receipts that one search looks at, before it says how far it came
_SEARCHES: Final = 2  # at once: they share threads with the serves
_KNOWN: Final = ("limit", "before", "id", "model", "caller", "finish", "basis", "from", "until")
_ID: Final = re.compile(r"(b3:)?([0-9a-f-]{1,64})")


class Receipts:
    def __init__(self, steward: Steward) -> None:
        self._steward = steward
        self._searching = asyncio.Semaphore(_SEARCHES)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/mesh/v1/receipts", self.show)]

    async def show(self, request: web.Request) -> web.Response:
        """`next` is what `before` has to be for what follows; without it there is no more."""
        query = Query(request, _KNOWN)
        wanted = _wanted(query, own_caller(request))
        limit = query.integer("limit", PAGE, least=1, most=MAX_PAGE)
        before = query.integer("before", MAX_UINT)
        reader = self._steward.reader
        async with self._searching:
            found = await asyncio.to_thread(_search, reader, wanted, before, limit)
        told: dict[str, Any] = {
            "count": found.count,
            "searched": found.searched,
            "receipts": [_view(entry) for entry in found.entries],
        }
        if found.next is not None:
            told["next"] = found.next
        return web.json_response(told)


def own_caller(request: web.Request) -> str | None:
    """The only caller whose serves may be listed to who asks; None where that is everybody's. A key is the operator's
    own and sees all of them, the bearer of a grant is a guest."""
    return request[CALLER] if GRANT in request else None


def receipt_of(entry: Entry) -> Receipt:
    """The receipt of a ledger's row, as it was when this gateway sealed it: whoever needs proof checks the envelope."""
    payload = cose.take_apart(entry.envelope)[2]
    return Receipt.from_cbor(payload, max_bytes=MAX_PAYLOAD_BYTES)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is looked for. `of_entry` needs the ledger's row alone, `of_receipt` the receipt in it."""

    of_entry: list[Callable[[Entry], bool]]
    of_receipt: list[Callable[[Receipt], bool]]
    receipt_id: bytes | None = None
    serve_id: bytes | None = None

    def holds(self, entry: Entry) -> bool:
        if not all(test(entry) for test in self.of_entry):
            return False
        if not self.of_receipt:
            return True
        receipt = receipt_of(entry)
        return all(test(receipt) for test in self.of_receipt)

    @property
    def anything(self) -> bool:
        return not self.of_entry and not self.of_receipt


@dataclass(frozen=True, slots=True)
class _Found:
    entries: list[Entry]
    count: int
    searched: int
    next: int | None


def _wanted(query: Query, own: str | None) -> _Wanted:
    of_entry: list[Callable[[Entry], bool]] = []
    of_receipt: list[Callable[[Receipt], bool]] = []
    receipt_id = serve_id = None
    if own is not None:
        of_entry.append(lambda entry: entry.caller == own)
    if (name := query.text("id")) is not None:
        match = _ID.fullmatch(name.lower())
        if match is None:
            raise BadRequest(
                f"id: expected the beginning of a receipt id or of a serve's UUID, not {name[:80]!r}",
                code="invalid_id", param="id",
            )  # fmt: skip
        digits = match[2].replace("-", "")
        if len(digits) == 64:
            receipt_id = bytes.fromhex(digits)
        elif len(digits) == 32 and match[1] is None:
            serve_id = bytes.fromhex(digits)
        if match[1] is not None:
            of_entry.append(lambda entry: entry.receipt_id.hex().startswith(digits))
        else:
            of_entry.append(lambda entry: any(i.hex().startswith(digits) for i in (entry.serve_id, entry.receipt_id)))
    if (caller := query.text("caller")) is not None:
        of_entry.append(lambda entry: caller.casefold() in entry.caller.casefold())
    if (model := query.text("model")) is not None:
        of_receipt.append(lambda receipt: model.casefold() in receipt.engine.recipe_id.casefold())
    if (finish := query.one_of("finish", FINISHES)) is not None:
        of_receipt.append(lambda receipt: receipt.outcome.finish == finish)
    if (basis := query.one_of("basis", BASES)) is not None:
        of_receipt.append(lambda receipt: receipt.energy.basis == basis)
    if query.text("from") is not None:
        from_ns = query.time_ns("from", 0)
        of_receipt.append(lambda receipt: receipt.ended_ns >= from_ns)
    if query.text("until") is not None:
        until_ns = query.time_ns("until", 0)
        of_receipt.append(lambda receipt: receipt.ended_ns < until_ns)
    return _Wanted(of_entry, of_receipt, receipt_id, serve_id)


def _search(reader: LedgerReader, wanted: _Wanted, before: int, limit: int) -> _Found:
    """Blocking."""
    count = reader.count()
    if wanted.receipt_id is not None or wanted.serve_id is not None:
        by_receipt = None if wanted.receipt_id is None else reader.by_receipt(wanted.receipt_id)
        entry = by_receipt if wanted.serve_id is None else reader.by_serve(wanted.serve_id)
        there = entry is not None and entry.seq < before and wanted.holds(entry)
        return _Found([entry] if there and entry is not None else [], count, 1, None)
    found: list[Entry] = []
    searched = 0
    at = before
    for entry in _newest(reader, before, limit if wanted.anything else SCANNED):
        searched, at = searched + 1, entry.seq
        if wanted.holds(entry):
            found.append(entry)
            if len(found) == limit:
                break
    return _Found(found, count, searched, at if searched and at > 0 else None)


def _newest(reader: LedgerReader, before: int, limit: int) -> Iterator[Entry]:
    return reader.receipts(before_seq=before, limit=limit, newest_first=True)


def _view(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "receipt_id": ContentId(entry.receipt_id).text,
        "serve_id": serve_id_text(entry.serve_id),
        "caller": entry.caller,
        "envelope": base64.urlsafe_b64encode(entry.envelope).rstrip(b"=").decode(),
    }
