"""`run.sh` does what the runner does, in whatever POSIX shell there is, and without Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.index import read_index
from conformance.regenerate import ROOT, VECTORS
from conformance.runner import program, run
from tests.support.vector_pack import small_pack

RUN = ROOT / "conformance" / "run.sh"
CLIENTS = ROOT / "conformance" / "clients"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
QUESTIONS, _ = read_index(VECTORS)
SMALL = "commitment/opening"


def started(shell: str, *words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    how = [shell, "sh"] if shell == "busybox" else [shell, "--posix"] if shell == "bash" else [shell]
    return subprocess.run(
        [*how, str(RUN), *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.mark.parametrize("shell", [*SHELLS[:1], *(pytest.param(shell, marks=pytest.mark.deep) for shell in SHELLS[1:])])
def test_good_client_passes_and_the_report_is_the_runners(shell):
    client = [sys.executable, "conformance/clients/mesh_client.py"]
    done = started(shell, "--only", SMALL, "--", *client)
    assert (done.returncode, done.stderr) == (0, "")
    words = [sys.executable, str(CLIENTS / "mesh_client.py")]
    assert done.stdout.splitlines() == list(run(VECTORS, " ".join(client), program(words), only=SMALL).lines())


@pytest.mark.parametrize("name", ["accept_all", "refuse_all", "crash", "offer_nothing"])
def test_client_that_is_none_fails(name):
    done = started("sh", "--only", "sequence/prev", "--", CLIENTS / f"{name}.sh")
    assert done.returncode == 10
    cases = sum(case.id.startswith("sequence/prev") for case in QUESTIONS)
    assert f"cases {cases} passed 0 failed {cases} expected-failures 0 not-offered 0" in done.stdout
    assert done.stdout.count("FAIL sequence/") == cases


def test_features_that_a_client_does_not_name_may_be_left_out(tmp_path: Path):
    client = tmp_path / "client.sh"
    client.write_text("#!/bin/sh\n[ $1 = features ] && exit 0\nexit 11\n")
    client.chmod(0o755)
    done = started("sh", "--only", "reference/cache", "--", client)
    assert (done.returncode, "failed 0 expected-failures 0 not-offered 7" in done.stdout) == (0, True)
    client.write_text("#!/bin/sh\n[ $1 = features ] && echo reference && exit 0\nexit 11\n")
    assert started("sh", "--only", "reference/cache", "--", client).returncode == 10


def test_expected_failures_are_strict(tmp_path: Path):
    known, crash = tmp_path / "known", CLIENTS / "crash.sh"
    names = [case.id for case in QUESTIONS if case.id.startswith("commitment/opening")]
    known.write_text("# all of them\n" + "".join(f"{name}  # for now\n" for name in names))
    done = started("sh", "--only", "commitment/opening", "--expect-failures", known, "--", crash)
    assert (done.returncode, f"expected-failures {len(names)}" in done.stdout) == (0, True)
    good = [sys.executable, CLIENTS / "mesh_client.py"]
    done = started("sh", "--only", "commitment/opening", "--expect-failures", known, "--", *good)
    assert done.returncode == 10
    assert "passes, and is on the list of expected failures" in done.stdout
    known.write_text("commitment/nothing\n")
    done = started("sh", "--expect-failures", known, "--", crash)
    assert (done.returncode, "commitment/nothing is no case" in done.stderr) == (3, True)


def test_damaged_vectors_are_nobodys_fault(tmp_path: Path):
    copy = tmp_path / "v1"
    shutil.copytree(VECTORS, copy)
    for change in (lambda file: file.write_bytes(b""), Path.unlink):
        change(copy / "sequence/five/a.cbor")
        done = started("sh", "--vectors", copy, "--", CLIENTS / "crash.sh")
        assert (done.returncode, done.stdout) == (3, "")
        assert f"{copy}/sequence/five/a.cbor: not the file that SHA256SUMS names" in done.stderr
    with (copy / "SHA256SUMS").open("a") as file:
        file.write("\n")
    done = started("sh", "--vectors", copy, "--", CLIENTS / "crash.sh")
    assert (done.returncode, f"{copy}/SHA256SUMS: not the file" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a/none op - 0 - ids - -", "no case a/none"),
        ("sequence/five op - 7 - ids - -", "sequence/five: expected exit 0 or 10, got 7"),
        ("sequence/five op", "sequence/five: expected 8 fields"),
    ],
)
def test_damaged_index_is_no_clients_fault(tmp_path: Path, line: str, said: str):
    small_pack(tmp_path, line.replace(" ", "\t"))
    done = started("sh", "--vectors", tmp_path, "--", CLIENTS / "crash.sh")
    assert (done.returncode, f"{tmp_path}/INDEX.tsv: {said}" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["client"], 2),
        (["--only"], 2),
        (["--"], 2),
        (["--", "no-such-program-at-all"], 3),
        (["--vectors", "none", "--", "true"], 3),
        (["--only", "nothing/", "--", "true"], 3),
    ],
)
def test_wrong_usage_and_what_cannot_run(words, code):
    done = started("sh", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr


def test_it_leaves_nothing_behind(tmp_path: Path):
    words = ["sh", str(RUN), "--only", "sequence/five", "--", "true"]
    around = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=around, capture_output=True)
    assert done.returncode == 10
    assert list(tmp_path.iterdir()) == []
