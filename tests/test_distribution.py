"""What is in the wheel and in the source archive, built as a release would be."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[1]
MODULES = [*(ROOT / "web").glob("*.js"), ROOT / "web" / "client.mjs", *(ROOT / "web" / "page").iterdir()]
WEB = {"mesh/" + path.relative_to(ROOT).as_posix() for path in MODULES}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist. The build backend is there with the development tools, so nothing is fetched."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(built: Path) -> set[str]:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def committed(*folders: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_the_package_and_the_javascript(wheel):
    modules = {name for name in committed("mesh") if name.endswith(".py")}
    assert modules <= wheel
    assert len(WEB) > 10
    assert {name for name in wheel if name.startswith("mesh/web/")} == WEB


def test_wheel_holds_nothing_else(wheel):
    tops = {name.partition("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops == {"mesh"}
    assert not [name for name in wheel if "test" in Path(name).name and name.endswith((".mjs", ".py"))]


def test_sdist_holds_what_an_implementer_and_a_tester_need(sdist):
    assert {"SPEC.md", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml"} <= sdist
    assert committed("vectors", "conformance", "web", "mesh") <= sdist
    assert {name for name in committed("tests") if name.endswith(".py")} <= sdist


def test_installed_command_says_that_the_pack_is_not_in_the_wheel(built, tmp_path):
    """Not installed but unpacked: what else is in the environment stays out of it."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-P", "-c", "import sys; from mesh.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    done = subprocess.run(
        [*command, "conformance", "run", "--", "true"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert "conformance" in done.stderr
    assert "checkout" in done.stderr
