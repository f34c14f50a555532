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
    state = tmp_path / "state"
    for flags, code, words in (
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


def test_a_port_that_is_taken_is_found_before_anything_is_made(mesh, tmp_path: Path, taken: int) -> None:
    done = mesh("serve", "--gguf", tmp_path / "mistyped.gguf", "--state", tmp_path / "state", "--port", taken)
    assert done.code == 3
    assert f"cannot listen on 127.0.0.1 port {taken}: address already in use" in done.err
    assert not (tmp_path / "state").exists()


def test_an_address_that_others_reach_is_refused_before_anything_is_made(mesh, tmp_path: Path) -> None:
    done = mesh("serve", "--reference", "--state", tmp_path / "state", "--host", "0.0.0.0", "--port", "0")
    assert (done.code, "not loopback" in done.err) == (2, True)
    assert not (tmp_path / "state").exists()
