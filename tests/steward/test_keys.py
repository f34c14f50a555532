"""The key file: made once, read by its owner alone, never overwritten."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mesh.errors import KeyFileError
from mesh.steward import keys

SEED = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "steward.key"


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def test_key_is_created_on_the_first_run_and_found_on_the_second(path):
    first = keys.load_or_create(path, random=lambda n: SEED[:n])
    assert first.seed == SEED
    assert path.read_bytes() == b"mesh-seed-1 " + SEED.hex().encode() + b"\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["steward.key"]
    assert keys.load_or_create(path).public == keys.load(path).public == first.public


def test_keys_of_two_stewards_differ(tmp_path):
    made = {keys.load_or_create(tmp_path / name / "key").seed for name in ("a", "b", "c")}
    assert len(made) == 3


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_key_is_private_whatever_the_umask(path, umask):
    path.parent.mkdir(mode=0o700)
    before = os.umask(umask)
    try:
        keys.load_or_create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_missing_key_is_not_made_by_load(path):
    path.parent.mkdir(mode=0o700)
    with pytest.raises(KeyFileError, match="does not exist"):
        keys.load(path)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_key_that_others_can_reach_is_refused(path, mode):
    write(path, b"mesh-seed-1 " + SEED.hex().encode() + b"\n", mode)
    for use in (keys.load, keys.load_or_create):
        with pytest.raises(KeyFileError, match=f"mode is {mode:04o}, expected 0600; run `chmod 600`"):
            use(path)


def test_directory_that_others_can_write_is_refused(path):
    keys.load_or_create(path)
    path.parent.chmod(0o770)
    with pytest.raises(KeyFileError, match="others may replace the key in it; run `chmod 700`"):
        keys.load(path)
    path.unlink()
    with pytest.raises(KeyFileError, match="others may replace"):
        keys.load_or_create(path)
    assert list(path.parent.iterdir()) == []
    path.parent.chmod(0o1777)  # with the sticky bit they may not
    keys.load_or_create(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_key_of_another_user_is_refused(path):
    keys.load_or_create(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(KeyFileError, match="owned by user 65534, expected 0"):
        keys.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"mesh-seed-1 \n",
        b"mesh-seed-1 " + SEED.hex().encode(),
        b"mesh-seed-1 " + SEED.hex().encode() + b"\n\n",
        b"mesh-seed-1 " + SEED.hex().encode() + b"\nmore",
        b"mesh-seed-1 " + SEED.hex().upper().encode() + b"\n",
        b"mesh-seed-1 " + SEED.hex()[:-2].encode() + b"\n",
        b"mesh-seed-2 " + SEED.hex().encode() + b"\n",
        b" mesh-seed-1 " + SEED.hex().encode() + b"\n",
        SEED.hex().encode() + b"\n",
        SEED,
        b"\x00" * 77,
        b"x" * 100_000,
    ],
)
def test_malformed_key_is_refused_without_telling_it(path, content):
    write(path, content)
    with pytest.raises(KeyFileError, match="malformed, expected one line `mesh-seed-1") as refused:
        keys.load_or_create(path)
    assert SEED.hex()[:16] not in str(refused.value).lower()
    assert path.read_bytes() == content


def test_link_is_refused(path, tmp_path):
    keys.load_or_create(tmp_path / "real" / "key")
    path.parent.mkdir(mode=0o700)
    path.symlink_to(tmp_path / "real" / "key")
    for use in (keys.load, keys.load_or_create):
        with pytest.raises(KeyFileError, match="is a symbolic link"):
            use(path)


def test_dangling_link_is_not_followed_to_make_a_key(path, tmp_path):
    path.parent.mkdir(mode=0o700)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="is a symbolic link"):
        keys.load_or_create(path)
    assert not (tmp_path / "elsewhere").exists()


def test_directory_and_pipe_are_no_key_files(path):
    path.mkdir(mode=0o700, parents=True)
    with pytest.raises(KeyFileError, match="not a plain file"):
        keys.load_or_create(path)
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(KeyFileError, match="not a plain file"):
        keys.load_or_create(path)


def test_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(KeyFileError, match="key directory"):
        keys.load_or_create(tmp_path / "file" / "key")
    with pytest.raises(KeyFileError, match="key directory"):
        keys.load(tmp_path / "nowhere" / "key")


def test_many_first_runs_at_once_get_one_key(path):
    start = threading.Barrier(16)
    made: list[bytes] = []

    def run() -> None:
        start.wait()
        made.append(keys.load_or_create(path).seed)

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 16
    assert set(made) == {keys.load(path).seed}
    assert [p.name for p in path.parent.iterdir()] == ["steward.key"]


def test_many_first_processes_get_one_key(path):
    code = (
        "import sys, pathlib; sys.stdin.read(); from mesh.steward import keys;"
        "print(keys.load_or_create(pathlib.Path(sys.argv[1])).public.hex())"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = {run.communicate()[0] for run in runs}
    assert said == {keys.load(path).public.hex() + "\n"}


def test_backup_is_a_key_file_and_never_overwrites(path, tmp_path):
    key = keys.load_or_create(path)
    target = tmp_path / "backup.key"
    keys.backup(path, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert keys.load(target).seed == key.seed
    for each in (target, path):
        with pytest.raises(KeyFileError, match="exists already, and is never overwritten"):
            keys.backup(path, each)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="exists already"):
        keys.backup(path, tmp_path / "link")
    with pytest.raises(KeyFileError, match="No such file"):
        keys.backup(path, tmp_path / "nowhere" / "backup.key")
    with pytest.raises(KeyFileError, match="does not exist"):
        keys.backup(tmp_path / "missing", tmp_path / "other.key")
    assert not (tmp_path / "elsewhere").exists()


def test_key_is_not_shown_by_its_repr(path):
    key = keys.load_or_create(path)
    assert key.seed.hex() not in repr(key)
