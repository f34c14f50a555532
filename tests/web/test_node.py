"""The JavaScript verifier's own tests, run by Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mesh.errors import SchemaError
from mesh.grant.text import grant_from_text

WEB = Path(__file__).resolve().parents[2] / "web"


def node_of(what: str) -> str:
    node = shutil.which("node")
    if node is None:
        # In CI a missing Node is a broken CI, not a reason to leave the verifier untested.
        assert "CI" not in os.environ, f"web/: CI has no node, so {what} was not tested"
        pytest.skip("NOT TESTED: web/ needs node 20 or later on the PATH")
    return node


@pytest.mark.parametrize("which", ["vectors", pytest.param("*", marks=pytest.mark.deep)])
def test_node_runs_the_javascript_tests(which: str) -> None:
    node = node_of("the JavaScript verifier")
    tests = sorted(str(path) for path in (WEB / "test").glob(f"{which}.test.mjs"))
    assert tests
    done = subprocess.run([node, "--test", *tests], cwd=WEB, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_text_that_is_no_grant_is_refused_in_the_same_words() -> None:
    texts = ["", "mg2_AAAA", "mg1_A", "mg1_AA==", "mg1_+A", "mg1_AB", "mg1_" + "A" * 5464]
    script = f"""
        import {{ parseGrantText }} from "./grant.js";
        console.log(JSON.stringify({json.dumps(texts)}.map((text) => {{
            try {{ parseGrantText(text); }} catch (error) {{ return error.message; }}
        }})));
    """
    command = [node_of("what it says of grants"), "--input-type=module", "-e", script]
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True, check=True)
    said = []
    for text in texts:
        with pytest.raises(SchemaError) as refused:
            grant_from_text(text)
        said.append(str(refused.value))
    assert json.loads(done.stdout) == said
