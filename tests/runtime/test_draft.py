"""What is made has its name once it is whole, and whatever ends the process leaves nothing that stays."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.runtime import draft
from mesh.runtime.draft import PREFIX, new_file, new_folder
from tests.support.corpora import ROOT


@pytest.fixture(params=["unnamed", "named"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system that holds files without a name, and one that does not."""
    if request.param == "named":
        monkeypatch.setattr(draft, "_UNNAMED", 0)
    return str(request.param)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.usefixtures("kind")
def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with new_file(tmp_path / "new", 0o644) as file:
            file.write(b"x" * 100_000)
            assert not (tmp_path / "new").exists()
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"x" * 100_000
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["new"]


@pytest.mark.usefixtures("kind")
def test_a_file_that_fails_is_nowhere(tmp_path: Path) -> None:
    def fails() -> None:
        with new_file(tmp_path / "new", 0o644) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert names(tmp_path) == []


@pytest.mark.usefixtures("kind")
def test_a_file_takes_no_others_name(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"theirs")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("there", "dangling"):
        with pytest.raises(FileExistsError), new_file(tmp_path / name, 0o644):
            raise AssertionError

    def late() -> None:
        with new_file(tmp_path / "late", 0o644) as file:
            file.write(b"ours")
            (tmp_path / "late").write_bytes(b"theirs")

    with pytest.raises(FileExistsError, match=r"late'$"):
        late()
    assert (tmp_path / "late").read_bytes() == b"theirs"
    assert names(tmp_path) == ["dangling", "late", "there"]


def test_a_file_is_made_where_nothing_can_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(draft, "_UNNAMED", 0)
    monkeypatch.setattr(os, "link", refuse)
    with new_file(tmp_path / "new", 0o644) as file:
        file.write(b"x")
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_folder_that_takes_no_file_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="new") as caught, new_file(tmp_path / "new", 0o644):
        raise AssertionError
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "new"))


def test_where_nothing_can_be_linked_no_other_file_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def appears(*_: object, **__: object) -> None:
        (tmp_path / "new").write_bytes(b"theirs")
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(draft, "_UNNAMED", 0)
    monkeypatch.setattr(os, "link", appears)
    with pytest.raises(PermissionError, match=r"new'$"), new_file(tmp_path / "new", 0o644):
        pass
    assert (tmp_path / "new").read_bytes() == b"theirs"
    assert names(tmp_path) == ["new"]


def test_a_named_file_sweeps_too_and_takes_nothing_of_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "_UNNAMED", 0)
    (tmp_path / f"{PREFIX}left").write_bytes(b"left")
    with monkeypatch.context() as patched:
        patched.setattr(draft.os, "geteuid", lambda: (tmp_path / f"{PREFIX}left").stat().st_uid + 1)
        with new_file(tmp_path / "one", 0o644):
            pass
    assert names(tmp_path) == [f"{PREFIX}left", "one"]
    with new_file(tmp_path / "two", 0o644):
        pass
    assert names(tmp_path) == ["one", "two"]


def test_a_folder_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "n" * 255):
        with new_folder(tmp_path / name) as folder:
            (folder / "file").write_bytes(b"x")
            assert folder.parent == tmp_path
            assert folder.stat().st_mode & 0o777 == 0o700
        assert names(tmp_path / name) == ["file"]
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o755

    def fails() -> None:
        with new_folder(tmp_path / "other") as folder:
            (folder / "sub").mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with pytest.raises(OSError, match="new") as caught, new_folder(tmp_path / "new") as folder:
        (folder / "file").write_bytes(b"ours")
    assert caught.value.filename == str(tmp_path / "new")
    assert (tmp_path / "new" / "file").read_bytes() == b"x"
    assert names(tmp_path) == ["empty", "new", "n" * 255]


@pytest.mark.usefixtures("kind")
def test_what_can_neither_be_listed_nor_locked_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    with monkeypatch.context() as patched:
        patched.setattr(draft.fcntl, "flock", refuse)
        patched.setattr(draft.os, "listdir", refuse)
        with new_folder(tmp_path / "new"), new_file(tmp_path / "file", 0o644):
            pass
    assert names(tmp_path) == ["file", "new"]


@pytest.mark.usefixtures("kind")
def test_what_was_left_behind_goes_with_the_next(tmp_path: Path) -> None:
    """What somebody is making stays, as does what only looks like a draft."""
    left = tmp_path / f"{PREFIX}left"
    (left / "deep" / "er").mkdir(parents=True)
    (tmp_path / f"{PREFIX}link").symlink_to("nowhere")
    (tmp_path / f"{PREFIX}file").write_bytes(b"left")
    os.mkfifo(tmp_path / f"{PREFIX}pipe")  # which nobody waits for
    with new_folder(tmp_path / "outer") as outer:
        (outer / "x").write_bytes(b"x")
        assert names(tmp_path) == sorted([outer.name, f"{PREFIX}link"])
        with new_folder(tmp_path / "inner"), new_file(tmp_path / "file", 0o644):
            pass
        assert (outer / "x").read_bytes() == b"x"
    assert names(tmp_path) == sorted([f"{PREFIX}link", "file", "inner", "outer"])


def test_a_draft_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = []
    lock = draft.fcntl.flock

    def late(fd: int, how: int) -> None:
        if not swept:
            swept.append(names(tmp_path))
            (tmp_path / names(tmp_path)[0]).rmdir()
        lock(fd, how)

    monkeypatch.setattr(draft.fcntl, "flock", late)
    with new_folder(tmp_path / "new") as folder:
        assert swept != [[folder.name]]
    assert names(tmp_path) == ["new"]


def test_what_is_no_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotADirectoryError) as caught, new_file(tmp_path / "pipe" / "new", 0o644):
        pass
    assert caught.value.filename == str(tmp_path / "pipe")


def test_what_has_a_name_is_told_from_what_another_has(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.touch()
    for path in paths:
        with path.open() as file:
            assert [draft._is_at(other, file.fileno()) for other in paths] == [other == path for other in paths]


KILLED = """
import os, signal, sys
from pathlib import Path
from mesh.runtime.packing import pack
from mesh.runtime.unpacking import unpack
def die(done, total):
    if done > total * 3 // 4:
        os.kill(os.getpid(), signal.SIGKILL)
{"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), progress=die)
"""


def killed(command: str, source: Path, target: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, command, source, target], cwd=ROOT, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_killed_while_it_packs_or_unpacks_nothing_stays(folder: Path, tmp_path: Path) -> None:
    from mesh.runtime.packing import pack
    from mesh.runtime.unpacking import unpack

    (folder / "large.dat").write_bytes(bytes(8 << 20))
    out, target = tmp_path / "out.letsinfer", tmp_path / "target"
    killed("pack", folder, out)
    assert not out.exists()
    pack(folder, out)
    killed("unpack", out, target)
    assert not target.exists()
    unpack(out, target)
    assert names(tmp_path) == [folder.name, "out.letsinfer", "target"]
    assert names(target) == ["large.dat", "runtime.json"]


FULL = """
import resource, sys
from pathlib import Path
from mesh.runtime import draft
from mesh.runtime.oci import write_layout
from mesh.runtime.packing import pack
from mesh.runtime.unpacking import unpack
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
if sys.argv[5] == "named":
    draft._UNNAMED = 0
try:
    {"pack": pack, "unpack": unpack, "oci": write_layout}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
except OSError as e:
    print(e.filename)
"""


@pytest.mark.parametrize(
    ("command", "limit", "kind"),
    [("pack", 1 << 20, ""), ("pack", 9000, ""), ("pack", 9000, "named"), ("unpack", 1 << 20, ""), ("oci", 1 << 20, "")],
)  # 9000: what is left to write when all is handed over
def test_where_no_more_can_be_written_the_target_is_named(
    command: str, limit: int, kind: str, folder: Path, tmp_path: Path
) -> None:
    from mesh.runtime.packing import pack

    if limit > 9000:
        (folder / "large.dat").write_bytes(bytes(2 << 20))
    source = folder
    if command != "pack":
        source = tmp_path / "in.letsinfer"
        pack(folder, source)
    before = names(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FULL, command, source, tmp_path / "target", str(limit), kind],
        cwd=ROOT, check=False, capture_output=True,
    )  # fmt: skip
    assert (done.stdout.decode().strip(), done.stderr) == (str(tmp_path / "target"), b"")
    assert names(tmp_path) == before
