"""Faults planted into `mesh`, one at a time: the vectors find each, and the report says which step it breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import nacl.bindings
import pytest

import conformance.client as client
from conformance.client import Client
from conformance.regenerate import VECTORS
from conformance.runner import Reply, run
from mesh.errors import SignatureError
from mesh.grant import block, caveats, chain, decision, text
from mesh.ledger import sequence
from mesh.replay import claim, replayer
from mesh.schema import canonical, cose, energy, envelope, keys, receipt, request, trust, view


def nothing(*_: Any, **__: Any) -> None:
    pass


def by(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def only_small_order(key: bytes) -> None:
    if key[:31] + bytes((key[31] & 0x7F,)) in keys._SMALL_ORDER:
        raise SignatureError("small order")


def any_window(self: trust.Trust, key: bytes, at_ns: int) -> None:
    pass


def lenient(data: bytes, *, max_bytes: int) -> Any:
    return canonical.parse(data, max_bytes=max_bytes)


def reduced(signed: bytes, key: bytes) -> bytes:
    """Takes S beyond the group order."""
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(signed[32:64], "little") % order
    return OPEN(signed[:32] + s.to_bytes(32, "little") + signed[64:], key)


def unordered(entries: Iterable[Any], checkpoints: Iterable[Any] = ()) -> None:
    sequence.check_sequence(entries, first_seq=min((receipt.seq for receipt, _ in entries), default=0))


def holding(name: str, holds: Callable[[Any, Any, int], bool]) -> dict[str, caveats.Caveat]:
    """The caveats, of which one holds in other cases."""
    return {**caveats.CAVEATS, name: dataclasses.replace(caveats.CAVEATS[name], holds=holds)}


OPEN = nacl.bindings.crypto_sign_open

# Where, what, in what a vector has to find it (`group` or `group step`), and what is put there.
PLANTED = [
    (canonical, "_check_types", "encoding 3", nothing),
    (canonical, "MAX_DEPTH", "encoding 2", 17),
    (canonical, "decode", "encoding 5", lenient),
    (client, "prompt_hash_of_ids", "request", lambda ids, nonce: bytes(32)),
    (client, "payload_digest", "request", lambda ids: bytes(32)),
    (client, "opening_key", "commitment", lambda seed: seed),
    (request, "itertools", "request 3", SimpleNamespace(pairwise=by(()))),
    (energy, "WITHOUT_FIGURE", "energy 5", frozenset({"absent"})),
    (receipt, "check_backend_id", "receipt 2", nothing),
    (canonical, "key_order", "encoding 5", str),
    (envelope, "_check_unprotected", "envelope 3", nothing),
    (cose, "_holds_tag", "envelope 1", by(False)),
    (envelope, "verify_signature", "envelope 5", nothing),
    (envelope, "crypto_sign_open", "envelope 5", reduced),
    (trust, "check_public_key", "trust 3", nothing),
    (trust, "check_public_key", "trust 3", only_small_order),
    (trust.Trust, "check_time", "envelope 7", any_window),
    (client, "check_run", "sequence 4", nothing),
    (client, "check_run", "sequence 5", unordered),
    (sequence, "_check_one", "sequence 3", nothing),
    (claim.Claim, "other_request", "replay 1", by(None)),
    (claim.Claim, "contradiction", "replay 5", by(None)),
    (replayer, "_other_ending", "replay 12", by(None)),
    (replayer, "_row_6", "replay 6", by(None)),
    (replayer, "_REFERENCE", "replay 14", "nothing/"),
    (client, "VOCABULARY", "engines", 32_001),
    (chain, "only", "grants 5", lambda expected: nothing),
    (block, "verify_signature", "grants 7", nothing),
    (block, "check_caveats", "grants 8", nothing),
    (chain, "verify_signature", "grants 9", nothing),
    (chain.Chain, "check_issuer", "grants 6", nothing),
    (chain, "MAX_GRANT_BYTES", "grants 1", 4097),
    (chain, "MAX_GRANT_BLOCKS", "grants 2", 9),
    (chain, "TOTALS", "grants 8", {}),
    (caveats, "MAX_CAVEAT_ITEMS", "grants 8", 65),
    (text, "grant_text", "grants", by(ANY)),
    (client, "parse_revoked", "grants", by(frozenset())),
    (decision, "_held", "grants", by(None)),
    (decision, "beyond", "grants", by(None)),
    (decision, "CAVEATS", "grants", holding("recipe-in", lambda stated, got, _: any(one in stated for one in got))),
    (decision, "CAVEATS", "grants", holding("not-after", lambda stated, got, _: got <= stated)),
    (decision, "CAVEATS", "grants", holding("not-before", lambda stated, got, _: got >= stated)),
    (decision, "CAVEATS", "grants", holding("fidelity-at-least", lambda stated, got, _: got <= stated)),
    (view, "JSON_SAFE_INT", "http", 2**63),
    (view, "_HEX_FIELDS", "http", frozenset()),
    (view, "steward_text", "http", bytes.hex),
]
GROUP_OF = {"grants": "grant", "engines": "reference", "envelope": "", "http": "view"}


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """Headers that were read with a fault planted must not be known to whoever reads without one."""
    envelope._read_header.cache_clear()
    yield
    envelope._read_header.cache_clear()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("where", "name", "step", "fault"), PLANTED, ids=[f"{name}-{step}" for _, name, step, _ in PLANTED]
)
def test_planted_fault_is_found(where, name, step, fault, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(where, name, fault)

    def ask(words, folder):
        try:
            return Reply(*Client(folder).answer(words[0], words[1:]))
        except Exception as e:  # noqa: BLE001 - what a program would die of
            return Reply(1, type(e).__name__)

    section = step.partition(" ")[0]
    report = run(VECTORS, "planted", ask, only=GROUP_OF.get(section, section))
    found = [fault for fault in report.failed.values() if fault.startswith(f"{step}: ")]
    assert found, report.failed


def test_enough_are_planted():
    assert len(PLANTED) >= 20
