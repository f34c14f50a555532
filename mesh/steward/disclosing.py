"""What a ledger keeps of a serve, put together again for its caller; beside a running gateway or without one."""

from __future__ import annotations

from mesh.errors import NotFound
from mesh.ledger import Entry, LedgerReader
from mesh.schema.canonical import decode_map
from mesh.schema.commitment import opening, opening_key
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, verify
from mesh.schema.ids import serve_id_text
from mesh.schema.limits import MAX_PAYLOAD_BYTES, MAX_SETTINGS_BYTES
from mesh.schema.request import ServeRequest


def kept_disclosure(reader: LedgerReader, entry: Entry, key: SigningKey, *, now_ns: int) -> Disclosure:
    """The disclosure of `entry`, its opening derived anew from the steward's `key`. Raises NotFound (`not_kept`) where
    prompt and answer were not kept, or their time was over at `now_ns` (Unix time)."""
    what = f"disclosure of serve {serve_id_text(entry.serve_id)}"
    kept = reader.kept(entry.serve_id)
    if kept is None or kept.until_ns <= now_ns:
        raise NotFound(f"{what}: not_kept: this ledger does not keep its prompt and answer", code="not_kept")
    receipt = verify(entry.envelope, RECEIPT_TYPE, (key.public,)).value
    settings = reader.settings(receipt.engine.settings_digest)
    if settings is None:
        raise NotFound(f"{what}: not_kept: its settings document is not in this ledger", code="not_kept")
    request = ServeRequest.from_cbor(entry.request, max_bytes=MAX_PAYLOAD_BYTES)
    return Disclosure.of(
        serve_id=entry.serve_id,
        request=request,
        payload=kept.payload,
        opening=opening(opening_key(key.seed), request.id, entry.serve_id),
        settings=decode_map(settings, max_bytes=MAX_SETTINGS_BYTES),
        # nothing was committed to where the engine was refused, and in a decision nothing is made
        output=None if receipt.output_commitment is None else kept.output,
        prompt=kept.prompt,
    )
