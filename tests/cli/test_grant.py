"""`mesh grant`: from the issuer's key to what is left, without a line of code of one's own."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mesh.cli.revoked import add_revoked
from mesh.engine.reference import ReferenceEngine
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.gateway.grants import GrantTokens, Revocations
from mesh.grant.revocation import parse_revoked
from mesh.grant.text import PREFIX
from mesh.schema.ids import ContentId, steward_text
from mesh.schema.limits import MAX_REVOCATION_FILE_BYTES
from mesh.schema.trust import Trust, trusted_key
from tests.support.stewards import KEY, running

WEIGHTS = ContentId(b"\x01" * 32)
STEWARD = steward_text(KEY.public)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir(mode=0o700)
    return tmp_path / "keys" / "issuer"


def issued(mesh, key: Path, *flags: str) -> tuple[str, str]:
    """A grant's text, and its issuer."""
    result = mesh("grant", "issue", "--key", key, "--json", *flags)
    assert result.code == 0, result
    return result.json["grant"], result.json["issuer"]


def test_issue_prints_one_word_and_makes_the_key(mesh, key):
    result = mesh("grant", "issue", "--key", key, "--model-in", WEIGHTS.text, "--max-tokens", "9")
    assert result.code == 0
    assert result.out.startswith(PREFIX)
    assert len(result.out.split()) == 1
    assert "issued by ed25519:" in result.err
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    inspected = mesh("grant", "inspect", result.out.strip(), "--json").json
    assert inspected["blocks"][0]["caveats"] == {"model-in": [WEIGHTS.text], "max-tokens": 9}
    assert (inspected["open"], inspected["issuer_checked"]) == (True, False)


def test_a_grant_without_caveats_says_so(mesh, key):
    assert "admits everything" in mesh("grant", "issue", "--key", key).err


def test_every_caveat_has_a_flag(mesh, key):
    grant, issuer = issued(
        mesh, key, "--model-in", "b3:" + "02" * 32, "--model-in", WEIGHTS.text, "--recipe-in", "tiny", "--recipe-in",
        "sha256:" + "03" * 32, "--backend-in", "a/b/c/d/e/f", "--blueprint-in", "b3:" + "04" * 32, "--steward-in",
        STEWARD,
        "--fidelity-at-least", "1", "--max-tokens", "8", "--max-uj", "7", "--not-before", "2026-01-01T00:00:00Z",
        "--not-after", "2027-01-01T00:00:00Z", "--total-uj", "70", "--total-tokens", "80",
    )  # fmt: skip
    assert mesh("grant", "inspect", grant, "--json").json["blocks"][0]["caveats"] == {
        "model-in": [WEIGHTS.text, "b3:" + "02" * 32], "recipe-in": ["b3:" + "03" * 32, "tiny"],
        "backend-in": ["a/b/c/d/e/f"], "blueprint-in": ["b3:" + "04" * 32], "steward-in": [STEWARD],
        "fidelity-at-least": 1, "max-tokens": 8, "max-uj": 7, "not-before": "1767225600000000000",
        "not-after": "1798761600000000000", "total-uj": 70, "total-tokens": 80,
    }  # fmt: skip
    told = mesh("grant", "inspect", grant).out
    assert "  not-before: 1767225600000000000, 2026-01-01 00:00:00 UTC\n" in told
    assert "  not-after: 1798761600000000000, 2027-01-01 00:00:00 UTC\n" in told
    serve = ("--steward", STEWARD, "--weights", WEIGHTS.text, "--recipe", "tiny", "--backend", "a/b/c/d/e/f")
    result = mesh("grant", "check", grant, "--trust", issuer, *serve, "--at", "2026-06-01T00:00:00Z", "--json")
    assert result.code == 10
    refused = [one["caveat"] for one in result.json["refusals"]]
    assert refused == ["blueprint-in", "fidelity-at-least", "max-uj", "total-uj"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--model-in", "b3:00"), ("--steward-in", "b3:" + "00" * 32), ("--max-tokens", "many"), ("--max-uj", "-1"),
        ("--not-after", "friday"), ("--blueprint-in", "x"), ("--no-such", "1"), ("--recipe-in", "b3:03"),
        ("--recipe-in", "sha256:03"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be_read_are_wrong_usage(mesh, key, flags):
    assert mesh("grant", "issue", "--key", key, *flags).code == 2
    assert not key.exists()


@pytest.mark.parametrize(
    ("flags", "code", "why"),
    [
        (("--max-tokens", "0"), 2, "max-tokens"), (("--backend-in", "x"), 2, "backend-in"),
        (("--recipe-in", ""), 2, "recipe-in"),
        (("--total-uj", "5"), 10, "steward-in of one key"), (("--fidelity-at-least", "4"), 2, "fidelity-at-least"),
    ],
)  # fmt: skip
def test_caveats_that_cannot_stand_are_refused(mesh, key, flags, code, why):
    result = mesh("grant", "issue", "--key", key, *flags)
    assert result.code == code
    assert why in result.err
    assert list(key.parent.iterdir()) == []


def test_a_key_in_a_folder_that_is_not_there_makes_none(mesh, tmp_path):
    result = mesh("grant", "issue", "--key", tmp_path / "new" / "issuer")
    assert (result.code, result.out, "new: no such file or directory" in result.err) == (3, "", True)
    assert list(tmp_path.iterdir()) == []


def test_a_grant_that_cannot_be_written_leaves_no_key_behind(mesh, key, tmp_path):
    there = tmp_path / "there"
    there.write_text("ours")
    for out, why in ((there, "file exists"), (tmp_path / "no" / "folder", "no such file"), (there / "x", "not a dir")):
        result = mesh("grant", "issue", "--key", key, "--out", out)
        assert result.code == 3
        assert why in result.err
    assert list(key.parent.iterdir()) == []
    assert there.read_text() == "ours"


NO_GRANTS = {
    "nothing": ("", 2), "a directory": (".", 3), "an empty file": ("/dev/null", 10), "no file": ("nowhere", 3),
    "a header": ("Bearer mg1_secret", 2), "quoted": ("'mg1_secret'", 2), "in capitals": ("MG1_SECRET", 2),
    "too long for a name": ("secret" * 100, 2), "no base64": ("mg1_!secret", 10), "no bytes": ("mg1_", 10),
    "no grant": ("mg1_AAAA", 10),
}  # fmt: skip


@pytest.mark.parametrize("action", ["attenuate", "close", "inspect", "check", "balance", "revoke"])
@pytest.mark.parametrize(("given", "code"), NO_GRANTS.values(), ids=list(NO_GRANTS))
def test_what_is_no_grant_is_told_and_not_repeated(mesh, tmp_path, stranger, action, given, code):
    more = {"check": ["--trust", stranger], "revoke": ["--list", tmp_path / "list"]}.get(action, [])
    result = mesh("grant", action, given, *more)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("mesh grant: ")
    assert "secret" not in result.err.lower()
    assert list(tmp_path.iterdir()) == []


NO_SERVES = {
    "fidelity": ("--fidelity", "4"), "answer": ("--answer", "0"), "prompt": ("--prompt", str(2**31)),
    "energy": ("--uj", str(2**63)), "backend": ("--backend", "x"), "recipe": ("--recipe", ""),
    "weights": ("--weights", "b3:00"), "number": ("--answer", "9" * 5000),
}  # fmt: skip


@pytest.mark.parametrize("flags", NO_SERVES.values(), ids=list(NO_SERVES))
def test_what_no_serve_can_be_is_wrong_usage_and_no_refusal(mesh, key, flags):
    grant, issuer = issued(mesh, key)
    result = mesh("grant", "check", grant, "--trust", issuer, "--steward", STEWARD, *flags)
    assert (result.code, result.out) == (2, "")
    assert len(result.err) < 300


def test_a_serve_is_decided_for_a_steward_or_not_at_all(mesh, key):
    grant, issuer = issued(mesh, key, "--max-tokens", "5")
    result = mesh("grant", "check", grant, "--trust", issuer, "--answer", "50")
    assert (result.code, result.out) == (2, "")
    assert "--answer describes a serve, which needs a --steward" in result.err


def test_a_block_that_narrows_nothing_says_so(mesh, key):
    grant, _ = issued(mesh, key, "--max-tokens", "50")
    assert "states no caveat" in mesh("grant", "attenuate", grant).err
    assert mesh("grant", "attenuate", grant, "--max-tokens", "50").err == ""


def test_attenuate_and_close_work_on_text_file_and_stdin(mesh, key, tmp_path, monkeypatch):
    grant, issuer = issued(mesh, key, "--max-tokens", "50")
    narrow = tmp_path / "narrow"
    result = mesh("grant", "attenuate", grant, "--max-tokens", "10", "--out", narrow)
    assert (result.code, result.out) == (0, "")
    assert stat.S_IMODE(narrow.stat().st_mode) == 0o600
    monkeypatch.setattr("sys.stdin", io.StringIO(narrow.read_text()))
    closed = mesh("grant", "close", "-").out.strip()
    told = mesh("grant", "inspect", closed, "--json").json
    assert [block["caveats"] for block in told["blocks"]] == [{"max-tokens": 50}, {"max-tokens": 10}]
    assert told["open"] is False
    assert mesh("grant", "check", closed, "--trust", issuer).code == 0
    for action in ("attenuate", "close"):
        again = mesh("grant", action, closed, "--json")
        assert (again.code, again.json["error"]["code"]) == (10, "grant_closed")
    assert mesh("grant", "close", narrow, "--out", narrow).code == 3  # never overwritten


def test_inspect_shows_no_secret(mesh, key):
    grant, _ = issued(mesh, key, "--steward-in", STEWARD)
    result = mesh("grant", "inspect", grant)
    assert f"steward-in: {STEWARD}" in result.out
    assert grant not in result.out + result.err
    assert "was not asked" in result.err


def test_file_that_holds_no_grant_is_named(mesh, tmp_path):
    file = tmp_path / "a grant"
    file.write_text("nothing")
    refused = mesh("grant", "inspect", file)
    assert (refused.code, f"{file}: grant: does not start with mg1_" in refused.err) == (10, True)


def test_check_decides_with_the_exit_code(mesh, key, tmp_path, stranger):
    grant, issuer = issued(mesh, key, "--model-in", WEIGHTS.text, "--max-tokens", "9")
    serve = ("--steward", STEWARD, "--weights", WEIGHTS.text, "--answer", "9")
    assert mesh("grant", "check", grant, "--trust", issuer, *serve).code == 0
    refused = mesh("grant", "check", grant, "--trust", issuer, "--steward", STEWARD, "--answer", "10")
    assert refused.code == 10
    assert "max-tokens 9, offered 10" in refused.out
    assert "nothing is known of that" in refused.out
    assert mesh("grant", "check", grant, "--trust", stranger, *serve).code == 11
    until = tmp_path / "trust"
    until.write_text(f"{issuer} until=2026-01-01T00:00:00Z\n")
    assert mesh("grant", "check", grant, "--trust", until, *serve).code == 11
    assert mesh("grant", "check", grant, "--trust", until, *serve, "--at", "2025-12-31T23:59:59Z").code == 0
    damaged = grant[:50] + ("A" if grant[50] != "A" else "B") + grant[51:]
    assert mesh("grant", "check", damaged, "--trust", issuer).code == 10
    assert mesh("grant", "check", "mg1_", "--trust", issuer).code == 10
    assert mesh("grant", "check", tmp_path / "nothing", "--trust", issuer).code == 3


def test_revoke_writes_a_list_that_check_reads(mesh, key, tmp_path):
    grant, issuer = issued(mesh, key)
    child = mesh("grant", "attenuate", grant).out.strip()
    revoked = tmp_path / "revoked"
    revoked.write_text("# ours")
    first = mesh("grant", "revoke", child, "--list", revoked, "--json").json
    assert (first["block"], first["already"]) == (1, False)
    assert mesh("grant", "revoke", child, "--list", revoked, "--json").json["already"] is True
    assert revoked.read_text() == f"# ours\n{first['block_id']}\n"
    check = ("--trust", issuer, "--revoked", revoked)
    assert mesh("grant", "check", grant, *check).code == 0
    assert mesh("grant", "check", child, *check).code == 10
    assert mesh("grant", "revoke", child, "--block", "0", "--list", revoked).code == 0
    result = mesh("grant", "check", grant, *check)
    assert result.code == 10
    assert "was revoked" in result.out
    assert mesh("grant", "revoke", child, "--block", "2", "--list", revoked).code == 2
    revoked.write_text("nonsense")
    assert mesh("grant", "revoke", child, "--list", revoked).code == 2
    assert revoked.read_text() == "nonsense"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_revoke_keeps_the_lists_mode_and_its_links(mesh, key, tmp_path):
    grant, _ = issued(mesh, key)
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("# ours\n")
    real.chmod(0o640)
    link.symlink_to(real)
    assert mesh("grant", "revoke", grant, "--list", link).code == 0
    assert link.is_symlink()
    assert real.read_text().startswith("# ours\nb3:")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_list_that_is_none_or_would_be_too_long_is_left_alone(mesh, key, tmp_path):
    grant, _ = issued(mesh, key)
    pipe, full = tmp_path / "pipe", tmp_path / "full"
    os.mkfifo(pipe)
    full.write_bytes(b"#" * MAX_REVOCATION_FILE_BYTES)
    for path, why in ((pipe, "not a regular file"), (tmp_path, "not a regular file"), (full, "no gateway reads")):
        result = mesh("grant", "revoke", grant, "--list", path)
        assert result.code == 2
        assert why in result.err
    assert full.stat().st_size == MAX_REVOCATION_FILE_BYTES
    assert mesh("grant", "revoke", grant, "--list", tmp_path / "no" / "list").code == 3
    assert not (tmp_path / "no").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "keys", "pipe"]


def test_of_revocations_at_once_none_is_lost(tmp_path):
    path = tmp_path / "revoked"
    ids = [ContentId(bytes([n]) * 32) for n in range(24)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda block_id: add_revoked(path, block_id), ids))
    assert parse_revoked(path.read_bytes()) == set(ids)
    assert [one.name for one in tmp_path.iterdir()] == ["revoked"]


@pytest.fixture
def gateway(tmp_path: Path, mesh, key: Path) -> Iterator[tuple[str, Path, str]]:
    """A gateway in a thread of its own: its address, its list, and its issuer."""
    _, issuer = issued(mesh, key)
    revoked = tmp_path / "revoked"
    revoked.write_text("")
    ready, done = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with running(tmp_path / "state") as steward:
            tokens = GrantTokens(Trust.always([trusted_key(issuer)]), revocations=Revocations(revoked))
            engine = ReferenceEngine(weights_digest=WEIGHTS, est_uj_per_token=1)
            gateway = Gateway(steward, [engine], GatewayConfig(), authenticators=[tokens])
            address.append(f"http://127.0.0.1:{await gateway.start('127.0.0.1', 0)}")
            ready.set()
            await asyncio.to_thread(done.wait)
            await gateway.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield address[0], revoked, issuer
    done.set()
    thread.join()


def test_chat_under_a_grant_and_what_is_left_of_it(mesh, key, gateway, monkeypatch):
    url, revoked, issuer = gateway
    grant, _ = issued(mesh, key, "--model-in", WEIGHTS.text, "--steward-in", STEWARD, "--total-tokens", "100")
    monkeypatch.setenv("MESH_API_KEY", grant)
    chat = ("chat", "--url", url, "--message", "hi", "--max-tokens", "4", "--trust", STEWARD, "--json")
    assert mesh(*chat).code == 0
    balance = mesh("grant", "balance", grant, "--url", url)
    used = len("user: hi\nassistant:") + 4
    assert balance.code == 0
    assert f"block 0 total-tokens: {100 - used} of 100 left, {used} by receipts, 0 by estimate" in balance.out
    assert mesh("grant", "balance", grant, "--url", url, "--json").json["totals"][0]["left"] == 100 - used
    plain, _ = issued(mesh, key, "--max-tokens", "5")
    assert "states no total" in mesh("grant", "balance", plain, "--url", url).out
    refused = mesh("chat", "--url", url, "--message", "hi", "--max-tokens", "80", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (10, "grant_refused")
    assert mesh("grant", "revoke", grant, "--list", revoked).code == 0
    gone = mesh("grant", "balance", grant, "--url", url, "--json")
    assert (gone.code, gone.json["error"]["code"]) == (10, "grant_revoked")
    assert issuer
