"""Nodes are chosen by what really runs on them: the next one where the first has a run, none where all have."""

from __future__ import annotations

import json
import re
import shlex
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


def served(site: Site, name: str, *argv: str) -> dict[str, Any]:
    done = site.mesh("serve", name, *argv, "--json")
    return dict(json.loads(done.stdout)) | {"err": done.stderr}


def test_run_on_the_first_node_sends_the_next_to_the_second_and_then_none_is_left(busy: Site) -> None:
    from tests.sshd.hosts import free_port

    first = served(busy, "one", "--solo")
    assert list(first["nodes"]) == ["n0"]
    config = busy.folder / "launch.toml"
    text = config.read_text()
    other, third = free_port(), free_port()
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


FORCED = """#!/bin/sh
printf %s "$SSH_ORIGINAL_COMMAND" >"$(mktemp "$HOME/commands/XXXXXXXX")"
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


def run_there(site: Site) -> set[str]:
    """Every command that the node was given, by its own server."""
    commands = (site.sshds[0].folder / "home" / "commands").iterdir()
    return {shlex.split(path.read_text())[4] for path in commands}


def test_every_command_that_touches_a_node_was_in_the_dry_run(one: Site) -> None:
    """The node's server writes each down. What the id of a run and the bytes of a record are, no dry run can know."""
    script = one.sshds[0].folder / "forced"
    script.write_text(FORCED)
    script.chmod(0o755)
    config = one.sshds[0].folder / "sshd_config"
    config.write_text(config.read_text() + f"ForceCommand {script}\n")
    one.sshds[0].stop()
    one.sshds[0].start()
    commands = one.sshds[0].folder / "home" / "commands"
    commands.mkdir()
    one.reference("ref", 'before_serve = ["true"]\nafter_stop = [{ command = "false", on_failure = "warn" }]')
    dry = json.loads(one.mesh("serve", "ref", "--dry-run", "--json").stdout)["steps"]
    assert list(commands.iterdir()) == []
    told = served(one, "ref")
    stop = json.loads(one.mesh("stop", "ref", "--dry-run", "--json").stdout)["steps"]
    launched = run_there(one)
    assert one.mesh("stop", "ref").returncode == 0

    def plain(command: str) -> str:
        return re.sub(r"printf %s [A-Za-z0-9+/=]+ \| base64", "RECORD", command.replace(told["run"], "DRY-RUN"))

    planned = {plain(step["command"]) for step in dry}
    waiting = {
        plain(step["command"]) for step in dry if step["phase"] == "wait"
    }  # not asked where it was ready at once
    assert planned - waiting <= {plain(one) for one in launched} <= planned
    assert {plain(one) for one in run_there(one) - launched} <= {plain(step["command"]) for step in stop}


def test_launch_and_stop_that_wait_for_nothing_leave_the_run_open_until_it_is_verified(one: Site) -> None:
    one.reference("ref")
    told = served(one, "ref", "--no-wait")
    assert one.events("ref") == ["opened"]
    assert told["processes"].keys() == {"n0"}  # who is there so soon, if anybody
    assert one.mesh("stop", "ref", "--no-wait").returncode == 0
    assert one.events("ref") == ["opened", "stopping"]
    assert one.mesh("stop", "ref").returncode == 0
    assert one.closed("ref")["verified"] is True
