"""`mesh verify`: only what is whole, canonical, signed by a trusted key and in sequence is ever accepted."""

from __future__ import annotations

import asyncio
import io
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest

from mesh.schema.canonical import encode
from mesh.schema.envelope import SigningKey, seal
from mesh.schema.receipt import Receipt
from tests.support.stewards import KEY

WEAK = "ed25519:" + "01" + "00" * 31


def parts(envelope: bytes) -> tuple[bytes, dict[Any, Any], bytes, bytes]:
    return tuple(cbor2.loads(envelope).value)


def head(data: bytes, width: int) -> bytes:
    """A byte string whose length is written `width` bytes wide."""
    return bytes([0x58 + {1: 0, 2: 1, 4: 2, 8: 3}[width]]) + len(data).to_bytes(width, "big") + data


def assemble(protected: bytes, unprotected: bytes, payload: bytes, signature: bytes) -> bytes:
    return b"\xd2\x84" + head(protected, 1) + unprotected + head(payload, 2) + head(signature, 1)


def resigned(envelope: bytes, payload: bytes, key: SigningKey = KEY) -> bytes:
    """The envelope with another payload under a signature that holds."""
    protected = parts(envelope)[0]
    message = b"\x84\x6aSignature1" + head(protected, 1) + b"\x40" + head(payload, 2)
    return assemble(protected, b"\xa0", payload, key.sign(message))


def spellings(envelope: bytes) -> dict[str, tuple[bytes, str]]:
    """The same values in other bytes, each with the class of error that it must get."""
    protected, _, payload, signature = parts(envelope)
    wide_seq = payload.replace(b"\x63seq\x00", b"\x63seq\x18\x00")
    assert wide_seq != payload
    reordered = cbor2.dumps(dict(reversed(cbor2.loads(payload).items())))
    indefinite = b"\xbf" + payload[1:] + b"\xff"
    header = cbor2.loads(protected)
    swapped = cbor2.dumps(dict(reversed(header.items())))
    without_kid = cbor2.dumps({key: value for key, value in header.items() if key != 4})
    kid = cbor2.dumps({4: header[4]})
    doubled = bytes([payload[0] + 1]) + payload[1:] + b"\x63seq\x00"
    return {
        "wide tag": (b"\xd8\x12" + envelope[1:], "canonical"),
        "wide array head": (envelope[:1] + b"\x98\x04" + envelope[2:], "canonical"),
        "indefinite array": (envelope[:1] + b"\x9f" + envelope[2:] + b"\xff", "canonical"),
        "wide payload head": (
            b"\xd2\x84" + head(protected, 1) + b"\xa0" + head(payload, 4) + head(signature, 1), "canonical"
        ),
        "wide signature head": (
            b"\xd2\x84" + head(protected, 1) + b"\xa0" + head(payload, 2) + head(signature, 2), "canonical"
        ),
        "wide unprotected head": (assemble(protected, b"\xb8\x00", payload, signature), "canonical"),
        "header order": (assemble(swapped, b"\xa0", payload, signature), "canonical"),
        "wide integer, signed": (resigned(envelope, wide_seq), "payload"),
        "key order, signed": (resigned(envelope, reordered), "payload"),
        "indefinite map, signed": (resigned(envelope, indefinite), "payload"),
        "doubled key, signed": (resigned(envelope, doubled), "payload"),
        "trailing byte": (envelope + b"\x00", None),
        "trailing copy": (envelope + envelope, None),
        "missing byte": (envelope[:-1], "structure"),
        "without the tag": (envelope[1:], "structure"),
        "empty": (b"", "structure"),
        "key id moved to the unprotected header": (assemble(without_kid, kid, payload, signature), "header"),
        "key id copied to the unprotected header": (assemble(protected, kid, payload, signature), "header"),
        "content type moved to the unprotected header": (
            assemble(
                cbor2.dumps({key: value for key, value in header.items() if key != 3}),
                cbor2.dumps({3: header[3]}), payload, signature,
            ),
            "header",
        ),
        "a note in the unprotected header": (assemble(protected, b"\xa1\x18\x63\x41x", payload, signature), "header"),
    }  # fmt: skip


SMALL = seal(
    Receipt.of(
        v="mesh/1", steward=KEY.public, seq=0, serve_id=bytes(16), request_id=bytes(32), prompt_hash=bytes(32),
        max_tokens=1, started_ns=0, ended_ns=0,
        engine={"backend_id": "a/b/c/d/e/f", "recipe_id": "m", "fidelity": 0, "deterministic": False,
                "settings_digest": bytes(32), "process": bytes(16)},
        outcome={"finish": "refused", "counted_by": "none"},
        energy={"basis": "absent", "sources": [], "reason": "no-meter"},
    ),
    KEY,
).envelope  # fmt: skip


def stdin_of(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_good_receipt_is_accepted_and_told_in_words(mesh, trusted, receipt_file: Path, made) -> None:
    result = mesh("verify", receipt_file, "--trust", trusted)
    assert (result.code, result.err) == (0, "")
    for words in (made.sealed[0].id.text, "reference, F0", "2 in, 8 out of at most 8", "energy    absent", "length:"):
        assert words in result.out


def test_good_receipt_from_stdin(mesh, trusted, made, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_of(made.envelope, monkeypatch)
    assert mesh("verify", "-", "--trust", trusted).code == 0
    stdin_of(made.envelope[:-1], monkeypatch)
    assert mesh("verify", "-", "--trust", trusted).code == 10


def test_json_is_one_object_with_wide_integers_as_text(mesh, trusted, receipt_file: Path, made) -> None:
    result = mesh("verify", receipt_file, "--trust", trusted, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["verdict"] == "good"
    receipt = result.json["listed"][0]["receipt"]
    assert receipt["started_ns"] == str(made.sealed[0].value.started_ns)
    assert receipt["steward"] == trusted
    assert receipt["outcome"]["tokens_out"] == 8


def test_any_flipped_bit_is_refused(mesh, trusted, made, tmp_path: Path) -> None:
    path = tmp_path / "flipped.cbor"
    bits = random.Random(7).sample(range(8 * len(made.envelope)), 60)
    for bit in bits:
        flipped = bytearray(made.envelope)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        result = mesh("verify", path, "--trust", trusted)
        # a bit of the key id names another steward: nobody knows that one
        assert result.code in (10, 11), bit
        assert (result.out, result.err.count("\n")) == ("", 1), bit


@pytest.mark.parametrize("name", spellings(SMALL))
def test_other_spelling_is_refused(mesh, trusted, name: str, tmp_path: Path) -> None:
    data, expected = spellings(SMALL)[name]
    path = tmp_path / "other.cbor"
    path.write_bytes(data)
    result = mesh("verify", path, "--trust", trusted, "--json")
    assert result.code == 10
    assert result.json["verdict"] == "refused"
    assert expected in (None, result.json["error"]["code"])


def test_unknown_steward_cannot_be_decided(mesh, stranger, receipt_file: Path) -> None:
    result = mesh("verify", receipt_file, "--trust", stranger)
    assert (result.code, result.out) == (11, "")
    assert result.err.startswith(f"cannot be decided: {receipt_file}: trust: ")
    result = mesh("verify", receipt_file, "--trust", stranger, "--json")
    assert (result.code, result.json["verdict"], result.json["error"]["code"]) == (11, "undecided", "trust")


def test_weak_key_is_refused_whatever_it_signed(mesh, receipt_file: Path) -> None:
    result = mesh("verify", receipt_file, "--trust", WEAK)
    assert result.code == 2
    assert "small order" in result.err


def test_receipt_signed_by_a_trusted_key_for_another_steward_is_refused(
    mesh, trusted, stranger, made, tmp_path
) -> None:
    payload = cbor2.loads(parts(made.envelope)[2])
    path = tmp_path / "other.cbor"
    path.write_bytes(resigned(made.envelope, encode({**payload, "steward": bytes.fromhex(stranger[8:])})))
    result = mesh("verify", path, "--trust", trusted, "--trust", stranger, "--json")
    assert (result.code, result.json["error"]["code"]) == (10, "payload")


def test_hostile_files_are_refused_in_one_line(mesh, trusted, tmp_path: Path) -> None:
    path = tmp_path / "hostile.cbor"
    for data in (
        b"\x81" * 200_000 + b"\x00",
        b"\xcb" * 200_000 + b"\x00",
        bytes.fromhex("9b7fffffffffffffff"),
        bytes.fromhex("5b7fffffffffffffff"),
        bytes.fromhex("d2845b7fffffffffffffff"),
        b"\x00" * (1 << 20),
    ):
        for suffix in (".cbor", ".cborseq"):
            path = path.with_suffix(suffix)
            path.write_bytes(data)
            result = mesh("verify", path, "--trust", trusted)
            assert (result.code, result.out, result.err.count("\n")) == (10, "", 1), (data[:16], suffix)


@pytest.mark.parametrize("size", [65_537, 3_000_000])
def test_file_that_is_too_long_for_a_receipt_is_named_with_its_size(mesh, trusted, tmp_path: Path, size: int) -> None:
    path = tmp_path / "long.cbor"
    path.write_bytes(bytes(size))
    done = mesh("verify", path, "--trust", trusted)
    assert done.code == 10
    assert f"structure: too long for an envelope: {size} bytes, at most 65536" in done.err


def test_receipt_from_a_pipe_is_read_once(trusted, receipt_file: Path) -> None:
    command = f"{sys.executable} -m mesh.cli.main verify <(cat {receipt_file}) --trust {trusted}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_several_receipts_in_any_order_follow_one_another(mesh, trusted, made, tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.cbor" for n in range(3)]
    for path, sealed in zip(paths, made.sealed, strict=True):
        path.write_bytes(sealed.envelope)
    result = mesh("verify", *reversed(paths), "--trust", trusted)
    assert result.code == 0
    assert "3 good receipts" in result.out
    assert "not given" not in result.out
    result = mesh("verify", paths[2], paths[0], paths[0], "--trust", trusted)
    assert result.code == 0
    assert "not given: seq 1 is missing" in result.out
    assert "1 given more than once" in result.out
    result = mesh("verify", paths[2], paths[0], "--trust", trusted, "--complete", "--json")
    assert (result.code, result.json["error"]["code"]) == (10, "sequence")
    assert result.json["gaps"] == [{"steward": trusted, "first_seq": 1, "last_seq": 1}]


def test_one_bad_receipt_among_good_ones_decides(mesh, trusted, stranger, made, tmp_path: Path) -> None:
    good, bad, unknown = (tmp_path / name for name in ("good.cbor", "bad.cbor", "unknown.cbor"))
    good.write_bytes(made.envelope)
    bad.write_bytes(made.envelope[:-1] + bytes([made.envelope[-1] ^ 1]))
    other = SigningKey(b"\x02" * 32)
    unknown.write_bytes(
        seal(Receipt.from_map(made.sealed[0].value.to_map() | {"steward": other.public}), other).envelope
    )
    assert mesh("verify", good, unknown, "--trust", trusted).code == 11
    result = mesh("verify", good, unknown, bad, "--trust", trusted)
    assert result.code == 10
    assert result.out.startswith(f"good: {good}: seq 0")
    assert "refused: " in result.err
    assert "cannot be decided: " in result.err


def test_two_receipts_with_one_seq_are_a_fork(mesh, trusted, made, tmp_path: Path) -> None:
    """What a copied state directory leaves behind when both copies have sealed."""
    first, second = tmp_path / "first.cbor", tmp_path / "second.cbor"
    first.write_bytes(made.sealed[1].envelope)
    twin = Receipt.from_map(made.sealed[1].value.to_map() | {"serve_id": bytes(16)})
    second.write_bytes(seal(twin, KEY).envelope)
    result = mesh("verify", first, second, "--trust", trusted)
    assert result.code == 10
    assert "sequence: fork" in result.err


def test_wrong_prev_is_refused(mesh, trusted, made, tmp_path: Path) -> None:
    first, second = tmp_path / "first.cbor", tmp_path / "second.cbor"
    first.write_bytes(made.sealed[0].envelope)
    second.write_bytes(seal(Receipt.from_map(made.sealed[1].value.to_map() | {"prev": bytes(32)}), KEY).envelope)
    result = mesh("verify", first, second, "--trust", trusted)
    assert result.code == 10
    assert "sequence: prev" in result.err


def test_one_serve_with_two_receipts_is_refused(mesh, trusted, made, tmp_path: Path) -> None:
    first, second = tmp_path / "first.cbor", tmp_path / "second.cbor"
    first.write_bytes(made.sealed[0].envelope)
    again = made.sealed[2].value.to_map() | {"serve_id": made.sealed[0].value.serve_id}
    second.write_bytes(seal(Receipt.from_map(again), KEY).envelope)
    result = mesh("verify", first, second, "--trust", trusted)
    assert result.code == 10
    assert "has two receipts" in result.err


@pytest.fixture(params=["all", "all.cborseq"])
def export(request: pytest.FixtureRequest, mesh, made, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    assert mesh("receipts", "export", "--all", "--state", made.state, "--out", path).code == 0
    return path


def test_export_verifies_whole(mesh, trusted, export: Path) -> None:
    result = mesh("verify", export, "--trust", trusted, "--complete")
    assert (result.code, result.err) == (0, "")
    assert "checkpoint of 3 receipts" in result.out
    assert "3 good receipts" in result.out


def test_archive_has_no_bit_that_is_not_checked(mesh, trusted, made, tmp_path: Path) -> None:
    archive, flipped = tmp_path / "all.cborseq", tmp_path / "flipped.cborseq"
    assert mesh("receipts", "export", "--all", "--state", made.state, "--out", archive).code == 0
    data = archive.read_bytes()
    for bit in random.Random(8).sample(range(8 * len(data)), 40):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(changed)
        assert mesh("verify", flipped, "--trust", trusted).code in (10, 11), bit
    for cut in (1, 63, 64, len(data) - 1):
        flipped.write_bytes(data[:-cut])
        torn = mesh("verify", flipped, "--trust", trusted)
        assert (torn.code, torn.err.count(str(flipped))) == (10, 1)
    flipped.write_bytes(b"")
    assert mesh("verify", flipped, "--trust", trusted).code == 11


def test_checkpoint_shows_that_the_last_receipts_are_withheld(mesh, trusted, made, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    mesh("receipts", "export", "--all", "--state", made.state, "--out", folder)
    (folder / "receipt-000000000002.cbor").unlink()
    result = mesh("verify", folder, "--trust", trusted)
    assert result.code == 0
    assert "not given: seq 2 is missing" in result.out
    assert mesh("verify", folder, "--trust", trusted, "--complete").code == 10


def test_checkpoint_of_another_head_is_refused(mesh, trusted, made, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    mesh("receipts", "export", "--all", "--state", made.state, "--out", folder)
    last = folder / "receipt-000000000002.cbor"
    last.write_bytes(seal(Receipt.from_map(made.sealed[2].value.to_map() | {"ended_ns": 2**62}), KEY).envelope)
    result = mesh("verify", folder, "--trust", trusted)
    assert result.code == 10
    assert "checkpoint of" in result.err


def test_ledger_is_verified_by_its_directory_or_its_file(mesh, trusted, stranger, made) -> None:
    for path in (made.state, made.state / "ledger.sqlite"):
        result = mesh("verify", path, "--trust", trusted)
        assert (result.code, result.err) == (0, "")
        assert "3 good receipts" in result.out
    assert mesh("verify", made.state, "--trust", stranger).code == 11


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM receipts WHERE seq = 1", "gap: seq 1 is missing"),
        ("DELETE FROM receipts WHERE seq = 2", "gap: seq 2 is missing"),
        ("UPDATE receipts SET envelope = x'd284' WHERE seq = 1", "structure"),
        ("UPDATE receipts SET envelope = 'text' WHERE seq = 1", "structure"),
        ("UPDATE receipts SET serve_id = zeroblob(16) WHERE seq = 1", "ledger-corrupt"),
        ("UPDATE receipts SET receipt_id = zeroblob(32) WHERE seq = 1", "ledger-corrupt"),
    ],
)
def test_ledger_that_was_edited_is_refused(mesh, trusted, served, statement: str, what: str) -> None:
    db = sqlite3.connect(served.state / "ledger.sqlite")
    try:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("PRAGMA ignore_check_constraints = 1")
        db.execute(statement)
        db.commit()
    finally:
        db.close()
    result = mesh("verify", served.state, "--trust", trusted)
    assert result.code == 10
    assert what in result.err


def test_copied_state_is_noticed_when_both_have_sealed(mesh, trusted, made, tmp_path: Path, serve_into) -> None:
    copies = [tmp_path / "one", tmp_path / "two"]
    for copy in copies:
        shutil.copytree(made.state, copy)
        asyncio.run(serve_into(copy, 1))
        assert mesh("verify", copy, "--trust", trusted).code == 0
    result = mesh("verify", *copies, "--trust", trusted)
    assert result.code == 10
    assert "fork" in result.err


def test_directory_without_receipts_could_not_be_checked(mesh, trusted, tmp_path: Path) -> None:
    assert mesh("verify", tmp_path, "--trust", trusted).code == 3


def test_file_that_only_looks_like_a_ledger_is_not_accepted(mesh, trusted, tmp_path: Path) -> None:
    path = tmp_path / "fake"
    path.write_bytes(b"SQLite format 3\x00" + bytes(4096))
    assert mesh("verify", path, "--trust", trusted).code in (3, 10)


def test_verify_as_a_process(trusted, receipt_file: Path, made) -> None:
    command = [sys.executable, "-m", "mesh.cli.main", "verify", "--trust", trusted]
    good = subprocess.run([*command, str(receipt_file)], capture_output=True, text=True)
    assert (good.returncode, good.stderr) == (0, "")
    bad = subprocess.run([*command, "-"], input=made.envelope + b"\x00", capture_output=True)
    assert (bad.returncode, bad.stdout, bad.stderr.count(b"\n")) == (10, b"", 1)
