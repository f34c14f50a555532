"""A virtual environment on a node: made where it is not there, left alone where it is, looked for again afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mesh.launch.commands import venv_steps
from mesh.launch.config import Node
from tests.launch.recipes import recipe_file

NODE = Node(name="a", ssh_ip="h", rank=0)
RECIPE = 'engine = "vllm"\nmodel = "a/b"\ndeploy = "tmux"\nvenv = "~/my venvs/v"\n'
MAKE = r"""mkdir -p "$HOME/my venvs/v/bin"
# a comment
touch \
  "$HOME/my venvs/v/bin/activate"
echo made >>"$HOME/made"
"""


def run(home: Path, more: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    (step,) = venv_steps(NODE, recipe_file(RECIPE + more).recipe, script)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", step.command], capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("script", [None, MAKE], ids=["lines", "script"])
def test_environment_is_made_once(tmp_path: Path, script: str | None) -> None:
    more = f"venv_setup = '''\n{MAKE}'''\n" if script is None else "venv_setup = ['exit 9']\n"
    for _ in range(2):
        assert run(tmp_path, more, script).returncode == 0
    assert (tmp_path / "made").read_text() == "made\n"


def test_environment_that_is_not_there_after_its_setup_fails_the_launch(tmp_path: Path) -> None:
    assert run(tmp_path, "venv_setup = ['true']\n").returncode != 0
    assert run(tmp_path, "venv_setup = ['false', 'touch made']\n").returncode != 0
    assert not (tmp_path / "made").exists()
    assert run(tmp_path, "").returncode != 0
