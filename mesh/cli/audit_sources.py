"""Where an audit takes receipts from, and the disclosures that go with them: ledgers, exports, gateways, folders."""

from __future__ import annotations

import base64
import binascii
import re
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from mesh.cli.client import Gateway, quoted
from mesh.cli.evidence import ARCHIVE_SUFFIX, ENVELOPE_SUFFIX, Piece, ledger_in, open_source
from mesh.cli.state import State
from mesh.errors import Invalid, KeyFileError, LedgerCorrupt, NotFound, Refused, StructureError, UsageError
from mesh.grant.text import PREFIX
from mesh.ledger.reader import LedgerReader
from mesh.replay.census import Place, Source
from mesh.schema import cose
from mesh.schema.disclosure import DISCLOSURE_TYPE, Disclosure
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import ContentId
from mesh.schema.receipt import Receipt
from mesh.steward.disclosing import kept_disclosure

_EXPORTED = re.compile(rf"receipt-(\d{{12,19}}){re.escape(ENVELOPE_SUFFIX)}")
_PAGE = 200  # receipts that a gateway gives at once
_COSE = "application/cose"

Found = tuple[bytes, str, Place | None]  # an envelope, where it was, and what stands beside it


class AuditSource(Protocol):
    """`about` is how far its receipts have to be whole and in order."""

    about: Source

    def envelopes(self) -> Iterator[Found]:
        """All that it has. Raises OSError, LedgerError, and StructureError or LedgerCorrupt for what cannot be read to
        its end."""
        ...

    def again(self, wanted: Collection[bytes]) -> Iterator[bytes]:
        """The envelopes of the receipts with these ids, as far as it has them."""
        ...

    def disclosure(self, receipt: Receipt, receipt_id: ContentId) -> Disclosure | None:
        """What it discloses of a serve. Raises Refused with the reason where it does not, OSError, and Invalid where
        what it gives is none; None where it has nothing to do with disclosures."""
        ...

    def close(self) -> None: ...


def source_of(name: str, *, credential: str | None, complete: bool, partial: bool) -> AuditSource:
    """What a SOURCE of the command line is. Raises OSError, UsageError, LedgerError."""
    source: AuditSource
    if name.startswith(("http://", "https://")):
        source = GatewaySource(Gateway(name, credential), partial=(credential or "").startswith(PREFIX))
    elif name == "-":
        raise UsageError("-: an audit reads its sources more than once; name a file")
    elif (ledger := ledger_in(Path(name))) is not None:
        source = LedgerSource(name, ledger)
    else:
        source = FileSource(name)
    about = source.about
    source.about = replace(about, whole=(about.whole or complete) and not partial, partial=about.partial or partial)
    return source


def receipt_id_of(envelope: bytes) -> ContentId:
    """The id of a receipt in an envelope that was checked."""
    payload = (cose.split(envelope) or cose.take_apart(envelope))[2]
    return ContentId.of_canonical("receipt", payload)


def _among(found: Iterator[bytes], wanted: Collection[bytes]) -> Iterator[bytes]:
    """What is wrong with the others, and where an archive breaks off, was counted by the census."""
    with suppress(StructureError, LedgerCorrupt):
        for envelope in found:
            if type(envelope) is not bytes:  # of a damaged ledger
                continue
            try:
                receipt_id = receipt_id_of(envelope)
            except Invalid:
                continue
            if receipt_id in wanted:
                yield envelope


class FileSource:
    """Envelopes in files: one, a folder of them, or an archive."""

    def __init__(self, name: str) -> None:
        if not stat.S_ISREG(mode := Path(name).stat().st_mode) and not stat.S_ISDIR(mode):
            raise UsageError(f"{name}: an audit reads its sources more than once, and this gives its bytes only once")
        open_source(name)  # raises where a folder holds no receipts
        self._name = name
        self.about = Source(name, ordered=name.endswith(ARCHIVE_SUFFIX))

    def envelopes(self) -> Iterator[Found]:
        for piece in open_source(self._name).pieces:
            yield piece.envelope, piece.label, _place_in_export(piece)

    def again(self, wanted: Collection[bytes]) -> Iterator[bytes]:
        return _among((piece.envelope for piece in open_source(self._name).pieces), wanted)

    def disclosure(self, receipt: Receipt, receipt_id: ContentId) -> Disclosure | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class LedgerSource:
    """A ledger, read-only, also beside the gateway that writes it. With the steward's key beside it, it discloses what
    it keeps."""

    def __init__(self, name: str, path: Path) -> None:
        self.about = Source(name, whole=True, ordered=True)
        self._reader = LedgerReader.open(path)
        self._key = _key_of(Path(name), self._reader)

    def envelopes(self) -> Iterator[Found]:
        name = self.about.label
        # the checkpoints first: a gateway at work may add receipts meanwhile, and only receipts may be ahead
        for number, checkpoint in self._reader.checkpoints():
            yield checkpoint, f"{name} checkpoint {number}", None
        for entry in self._reader.receipts():
            yield entry.envelope, f"{name} seq {entry.seq}", Place(entry.seq, entry.receipt_id, entry.serve_id)

    def again(self, wanted: Collection[bytes]) -> Iterator[bytes]:
        return _among((entry.envelope for entry in self._reader.receipts()), wanted)

    def disclosure(self, receipt: Receipt, receipt_id: ContentId) -> Disclosure | None:
        if self._key is None:
            return None
        entry = self._reader.by_receipt(receipt_id)
        return None if entry is None else kept_disclosure(self._reader, entry, self._key, now_ns=time.time_ns())

    def close(self) -> None:
        self._reader.close()


class GatewaySource:
    """A running gateway, asked with a credential. The bearer of a grant sees the receipts of its own serves alone:
    those are a selection."""

    def __init__(self, gateway: Gateway, *, partial: bool) -> None:
        self.about = Source(gateway.url, partial=partial, ordered=not partial)
        self._gateway = gateway

    def envelopes(self) -> Iterator[Found]:
        url = self.about.label
        count = _count(self._gateway.get_json("/mesh/v1/steward"), url)
        for number, envelope in enumerate(self._checkpoints()):
            yield envelope, f"{url} checkpoint {number}", None
        pages = self._newest_first(count) if self.about.partial else self._in_order(count)
        for item in pages:
            yield _listed(item, url)

    def _checkpoints(self) -> Iterator[bytes]:
        after: int | None = 0
        while after is not None:
            told = self._gateway.get_json(f"/mesh/v1/checkpoints?limit={_PAGE}&after={after}")
            for item in _items(told, "checkpoints", self.about.label):
                yield _envelope_in(item, self.about.label)
            after = _next(told, self.about.label, above=after)

    def _newest_first(self, count: int) -> Iterator[Any]:
        before: int | None = count
        while before is not None:
            told = self._gateway.get_json(f"/mesh/v1/receipts?limit={_PAGE}&before={before}")
            yield from _items(told, "receipts", self.about.label)
            before = _next(told, self.about.label, below=before)

    def _in_order(self, count: int) -> Iterator[Any]:
        """From the first on, so that no more is held than of a ledger."""
        for start in range(0, count, _PAGE):
            before = min(start + _PAGE, count)
            told = self._gateway.get_json(f"/mesh/v1/receipts?limit={before - start}&before={before}")
            yield from reversed(_items(told, "receipts", self.about.label))

    def again(self, wanted: Collection[bytes]) -> Iterator[bytes]:
        for receipt_id in list(wanted):
            try:
                path = f"/mesh/v1/receipts/{quoted(ContentId(receipt_id).text)}"
                envelope = self._gateway.get(path, accept=_COSE)
            except NotFound:
                continue
            yield from _among(iter((envelope,)), wanted)

    def disclosure(self, receipt: Receipt, receipt_id: ContentId) -> Disclosure | None:
        path = f"/mesh/v1/receipts/{quoted(receipt_id.text)}/disclosure"
        return Disclosure.from_bytes(self._gateway.get(path, accept=DISCLOSURE_TYPE))

    def close(self) -> None:
        """Nothing is held."""


def _place_in_export(piece: Piece) -> Place | None:
    named = _EXPORTED.fullmatch(Path(piece.label).name)
    return None if named is None else Place(int(named[1]))


def _key_of(root: Path, reader: LedgerReader) -> SigningKey | None:
    """The key of the steward whose ledger it is, where this is his state directory and the key is for us to read."""
    if not root.is_dir():
        return None
    try:
        key = State(root).load_key()
    except (KeyFileError, OSError):
        return None
    return key if key.public == reader.steward() else None


def _count(told: Any, url: str) -> int:
    count = told.get("receipts") if isinstance(told, dict) else None
    if type(count) is not int or count < 0:
        raise ConnectionError(f"{url}: does not say how many receipts there are")
    return count


def _items(told: Any, name: str, url: str) -> list[Any]:
    items = told.get(name) if isinstance(told, dict) else None
    if not isinstance(items, list):
        raise ConnectionError(f"{url}: sent no list of {name}")
    return items


def _next(told: Any, url: str, *, above: int = -1, below: int | None = None) -> int | None:
    """Where the next page begins: further on, or a list would never end."""
    following = told.get("next")
    if following is None:
        return None
    if type(following) is not int or following <= above or (below is not None and following >= below):
        raise ConnectionError(f"{url}: its list does not come to an end")
    return following


def _envelope_in(item: Any, url: str) -> bytes:
    text = item.get("envelope") if isinstance(item, dict) else None
    try:
        if not isinstance(text, str):
            raise ValueError("no envelope")
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as e:
        raise StructureError(f"{url}: a listed envelope is not base64url: {e}") from None


def _listed(item: Any, url: str) -> Found:
    envelope = _envelope_in(item, url)
    seq = item.get("seq")
    try:
        receipt_id = ContentId.from_text(str(item.get("receipt_id")))
        serve_id = bytes.fromhex(str(item.get("serve_id")).replace("-", ""))
    except (Invalid, ValueError):
        raise StructureError(f"{url}: lists a receipt without its ids") from None
    return envelope, f"{url} seq {seq}", Place(seq if type(seq) is int else None, receipt_id, serve_id)


@dataclass(frozen=True, slots=True)
class Disclosed:
    """A disclosure and where it came from, or why there is none; `fault`: something was given that is none."""

    disclosure: Disclosure | None
    source: str
    fault: str | None = None


class Disclosures:
    """Folders of disclosures first, then what the sources themselves disclose. `broken` are files that are none."""

    def __init__(self, folders: Collection[Path], sources: Collection[AuditSource]) -> None:
        self._sources = sources
        self._files: dict[bytes, Path] = {}
        self.broken: list[tuple[Path, Invalid]] = []
        for folder in folders:
            for path in sorted(folder.iterdir()):
                if "disclosure" in path.name and path.is_file():
                    self._index(path)

    def _index(self, path: Path) -> None:
        from mesh.cli.replay import read_disclosure

        try:
            found = read_disclosure(path)
        except Invalid as e:
            self.broken.append((path, e))
            return
        self._files.setdefault(found.serve_id, path)

    def of(self, receipt: Receipt, receipt_id: ContentId) -> Disclosed:
        """What is disclosed of a serve. Raises OSError."""
        from mesh.cli.replay import read_disclosure

        path = self._files.get(receipt.serve_id)
        reason, fault = "none-given", None
        try:
            if path is not None:
                return Disclosed(read_disclosure(path), "folder")
            for source in self._sources:
                try:
                    found = source.disclosure(receipt, receipt_id)
                except Refused as e:
                    reason = e.code
                    continue
                if found is not None:
                    return Disclosed(found, "ledger" if isinstance(source, LedgerSource) else "gateway")
        except Invalid as e:
            reason, fault = "malformed", str(e)
        return Disclosed(None, reason, fault)
