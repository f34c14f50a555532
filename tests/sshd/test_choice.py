"""Nodes are chosen by what really runs on them: the next one where the first has a run, none where all have."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.sshd.hosts import Site

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def busy(two: Site) -> Iterator[Site]:
    """Recipe `one` serves on one of two nodes; `two` and `three` listen on ports of their own."""
    for name in ("one", "two", "three"):
        two.reference(name)
    yield two
    for name in ("one", "two", "three"):
        two.mesh("stop", name, "--drain-s", "1")


def ports(site: Site) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    found = [sock.getsockname()[1] for sock in held]
    for sock in held:
        sock.close()
    return found


def served(site: Site, name: str, *argv: str) -> dict[str, Any]:
    done = site.mesh("serve", name, *argv, "--json")
    return dict(json.loads(done.stdout)) | {"err": done.stderr}


def test_run_on_the_first_node_sends_the_next_to_the_second_and_then_none_is_left(busy: Site) -> None:
    first = served(busy, "one", "--solo")
    assert list(first["nodes"]) == ["n0"]
    config = busy.folder / "launch.toml"
    text = config.read_text()
    other, third = ports(busy)
    config.write_text(text.replace(f"default_port = {busy.port}", f"default_port = {other}"))
    second = served(busy, "two", "--cluster", "auto")
    assert list(second["nodes"]) == ["n1"], second["err"]
    config.write_text(text.replace(f"default_port = {busy.port}", f"default_port = {third}"))
    none = served(busy, "three", "--solo")
    assert none["error"]["code"] == "launch"
    assert f"n0 (run {first['run']} is on it), n1 (run {second['run']} is on it) being" in none["error"]["message"]
    forced = served(busy, "three", "--solo", "--force")
    assert list(forced["nodes"]) == ["n0"], forced["err"]


def test_node_that_is_down_is_passed_over_where_another_does(busy: Site) -> None:
    busy.sshds[0].stop()
    told = served(busy, "one", "--solo")
    assert list(told["nodes"]) == ["n1"], told["err"]
    assert "node n0: [127.0.0.1]" in told["err"]
    busy.sshds[0].start()
