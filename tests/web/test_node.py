"""The JavaScript verifier's own tests, run by Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[2] / "web"


@pytest.mark.parametrize("which", ["vectors", pytest.param("*", marks=pytest.mark.deep)])
def test_node_runs_the_javascript_tests(which: str) -> None:
    node = shutil.which("node")
    if node is None:
        # In CI a missing Node is a broken CI, not a reason to leave the verifier untested.
        assert "CI" not in os.environ, "web/: CI has no node, so the JavaScript verifier was not tested"
        pytest.skip("NOT TESTED: web/ needs node 20 or later on the PATH")
    tests = sorted(str(path) for path in (WEB / "test").glob(f"{which}.test.mjs"))
    assert tests
    done = subprocess.run([node, "--test", *tests], cwd=WEB, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
