from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mesh.launch.commands import Step
from mesh.launch.looking import could_look, gpu_step, marked_step, pane_end, port_step, session_step
from mesh.launch.ssh import Done

TOOLS = ("sh", "grep", "sed", "cat", "awk", "tmux")


@pytest.mark.parametrize(
    ("step", "tools"),
    [
        (marked_step("a", "r1"), ("grep", "sed")),
        (port_step("a", 1), ("cat", "awk")),
        (session_step("a", "r1"), ("tmux",)),
    ],
    ids=["processes", "port", "session"],
)
def test_rc_08_look_without_one_of_its_tools_is_none_and_names_it(
    step: Step, tools: tuple[str, ...], tmp_path: Path
) -> None:
    for name in TOOLS:
        path = shutil.which(name)
        if path is not None:
            (tmp_path / name).symlink_to(path)

    def look() -> Done:
        done = subprocess.run(
            ["sh", "-c", step.command], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    assert could_look(look()) == all((tmp_path / tool).exists() for tool in tools)
    for tool in tools:
        (tmp_path / tool).unlink(missing_ok=True)
        seen = look()
        assert (could_look(seen), seen.out, seen.last) == (False, "", f"{tool}: not there")
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/true")


def test_node_without_a_gpu_and_its_tool_has_nobody_who_holds_its_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", gpu_step("a").command.replace("/proc/driver/nvidia", str(tmp_path))],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "none\n")
    (tmp_path / "version").touch()  # a driver
    done = subprocess.run(
        ["/bin/sh", "-c", gpu_step("a").command.replace("/proc/driver/nvidia", str(tmp_path))],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (127, "", "nvidia-smi: not there\n")


@pytest.mark.parametrize(
    ("done", "how"),
    [
        (Done(0, "812 1 3,\n", ""), "status 3"),
        (Done(0, "812 1 0,\n", ""), "status 0"),
        (Done(0, "812 1 ,9\n", ""), "signal 9"),
        (Done(0, "812 1 3, \n", ""), "status 3"),
        (Done(0, "812 1 , Z 768\n", ""), "status 3"),
        (Done(0, "812 1 , Z 0\n", ""), "status 0"),
        (Done(0, "812 1 , Z 9\n", ""), "signal 9"),
        (Done(0, "812 1 , Z 139\n", ""), "signal 11"),
        (Done(0, "812 1 , \n", ""), "status unknown"),
        (Done(0, "812 1 , R 0\n", ""), None),
        (Done(0, "812 1\n", ""), None),
        (Done(0, "812 0 , S 0\n", ""), None),
        (Done(0, "812 0 ,\n", ""), None),
        (Done(0, "none\n", ""), None),
        (Done(0, "", ""), None),
        (Done(127, "", "tmux: not found\n"), None),
        (Done(None, "812 1 3,\n", ""), None),
    ],
)
def test_end_of_an_engine_is_told_and_one_not_yet_waited_for_by_the_kernel(done: Done, how: str | None) -> None:
    assert pane_end(done) == how
