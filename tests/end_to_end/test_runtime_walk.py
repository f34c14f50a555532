"""README's walk with a runtime candidate, as its reader goes through it: on the real model."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from mesh.engine.server_port import KeptPort
from tests.end_to_end import test_readme
from tests.end_to_end.test_readme import BLOCKS, Block, Ended, Reading, Terminal, commands, serving
from tests.support.models import smollm2_path

ROOT = Path(__file__).parents[2]
WALK = [block for block in BLOCKS if "mesh runtime" in block.text or "runtime-answers" in block.text]


@pytest.mark.deep
@pytest.mark.real_model
def test_a_candidate_goes_from_its_folder_to_receipts_that_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_readme, "PATIENCE_S", 600)  # a real model, on a machine that may be busy
    smollm2_path()
    assert len(WALK) == 4
    prepared, served, asked, benched = WALK
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    kept = KeptPort("127.0.0.1")
    port = str(kept.number)
    got = Reading()
    terminal = Terminal(tmp_path, env)

    def typed(block: Block) -> list[Ended]:
        ended = [terminal.type(command) for command in commands(block.text.replace("8080", port))]
        for one in ended:
            assert one.code == 0, f"{one.command}\n{one.said}"
        return ended

    try:
        said = typed(prepared)
        assert "could not be published: release.json: missing" in said[0].said
        assert "good: llamacpp--quantfactory" in said[0].said
        (command,) = commands(served.text.replace("8080", port))
        with serving(command, tmp_path, env, got, served):
            said = typed(asked)
        measured = typed(benched)
    finally:
        terminal.close()
        kept.close()
    code, log = got.served[served]
    assert code in (0, -signal.SIGINT)
    assert "self-check: bit-identical" in log
    assert "claims to give the same again" in said[2].said
    assert re.search("Verified by (prefill|decode), prompt: checked, output: matches", said[-1].said)
    assert "256 prose x2" in measured[0].said
    assert "12 receipts" in measured[1].said
