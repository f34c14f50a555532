"""A gateway that cannot start leaves nothing behind, and says so before it loads a model."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_model_that_is_not_there_or_no_model_makes_no_state(mesh, tmp_path: Path) -> None:
    broken, old = tmp_path / "broken.gguf", write_tiny_gguf(tmp_path / "old.gguf", eos=None)
    broken.write_bytes(b"GGUF")
    template = tmp_path / "bad.jinja"
    template.write_bytes(b"\xff")
    good = write_tiny_gguf(tmp_path / "good.gguf")
    strange = write_tiny_gguf(tmp_path / "strange.gguf", pre="not-known-to-the-library")
    state = tmp_path / "state"
    for flags, code, words in (
        (["--gguf", strange], 3, "not-known-to-the-library"),
        (["--gguf", tmp_path / "mistyped.gguf"], 3, "mistyped.gguf: no such file"),
        (["--gguf", broken], 10, "broken.gguf"),
        (["--gguf", old], 10, "eos_id in the configuration"),
        (["--gguf", good, "--context", "999999"], 10, "context_length"),
        (["--gguf", good, "--chat-template", template], 2, "not valid utf-8"),
        (["--vllm", "http://127.0.0.1:1", "--weights", tmp_path / "nowhere"], 3, "nowhere: no such file"),
        (["--vllm", "http://127.0.0.1:1", "--vllm-key-file", tmp_path / "nokey"], 3, "nokey: no such file"),
    ):
        done = mesh("serve", *flags, "--state", state, "--port", "0")
        assert (done.code, words in done.err) == (code, True), done.err
        assert not state.exists()


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "", "n" * 257, "\udcff"])
def test_a_name_that_no_receipt_can_hold_is_found_before_anything_is_made(mesh, tmp_path: Path, name: str) -> None:
    """Else each request would end as an internal error."""
    good, state = write_tiny_gguf(tmp_path / "good.gguf"), tmp_path / "state"
    managed = ["--vllm-managed", tmp_path, "--vllm-executable", "true"]
    for engine in (["--reference"], ["--gguf", good], ["--vllm", "http://127.0.0.1:1"], managed):
        for check in ([], ["--check"]):
            done = mesh("serve", *engine, "--name", name, "--state", state, "--port", "0", *check)
            assert done.code == 2
            assert f"--name {name[:80]!r}: no name that a receipt can hold" in done.err.replace("\\\\", "\\")
            assert not state.exists()


@pytest.mark.parametrize("stem", ["two\nlines", "\udcff"])
def test_a_model_file_whose_name_no_receipt_can_hold_needs_another(mesh, tmp_path: Path, stem: str) -> None:
    model, state = write_tiny_gguf(tmp_path / f"{stem}.gguf"), tmp_path / "state"
    for check in ([], ["--check"]):
        done = mesh("serve", "--gguf", model, "--state", state, "--port", "0", *check)
        assert (done.code, f"model {stem!r}: no name that a receipt can hold" in done.err) == (2, True), done.err
    assert mesh("serve", "--gguf", model, "--name", "fine", "--state", state, "--port", "0", "--check").code == 0
    assert not state.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port"], "is not a port, 0 to 65535"),
        (["--reference", "--slots"], "is over 2147483647"),
        (["--gguf", "none", "--eos-id"], "is not a token id, 0 to 2147483647"),
        (["--reference", "--cpu-watts"], "watts is over 1000000"),
    ],
)
def test_numbers_of_thousands_of_digits_are_told_in_short(mesh, flags: list[str], words: str) -> None:
    done = mesh("serve", *flags, "9" * 5000)
    assert (done.code, words in done.err, len(done.err) < 300) == (2, True, True), done.err


def test_a_vllm_url_that_is_none_makes_no_state(mesh, tmp_path: Path) -> None:
    for check in ([], ["--check"]):
        done = mesh("serve", "--vllm", "ftp://x", "--state", tmp_path / "state", "--port", "0", *check)
        assert (done.code, "'ftp://x' is not a url like http://127.0.0.1:8000" in done.err) == (2, True)
    assert not (tmp_path / "state").exists()


def test_a_port_that_is_taken_is_found_before_anything_is_made(mesh, tmp_path: Path, taken: int) -> None:
    done = mesh("serve", "--gguf", tmp_path / "mistyped.gguf", "--state", tmp_path / "state", "--port", taken)
    assert done.code == 3
    assert f"cannot listen on 127.0.0.1 port {taken}: address already in use" in done.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "loop"])
def test_a_place_where_no_state_can_be_is_found_before_a_model_loads(mesh, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    strange = write_tiny_gguf(tmp_path / "strange.gguf", pre="not-known-to-the-library")
    done = mesh("serve", "--gguf", strange, "--state", tmp_path / place, "--port", "0")
    assert (done.code, "not a directory" in done.err) == (3, True), done.err


def test_an_address_that_others_reach_is_refused_before_anything_is_made(mesh, tmp_path: Path) -> None:
    done = mesh("serve", "--reference", "--state", tmp_path / "state", "--host", "0.0.0.0", "--port", "0")
    assert (done.code, "not loopback" in done.err) == (2, True)
    assert not (tmp_path / "state").exists()
