"""A folder and the vLLM that is installed under their blueprint: served, replayed, and refused where it is not what was
stated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.blueprints import Signers, kept, mesh, serving
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import ENVIRONMENT, FLAGS

# What the mesh sets for a server of its own itself.
_OURS = ("VLLM_NO_USAGE_STATS",)


@dataclass(frozen=True)
class Stage:
    folder: Path
    signers: Signers
    where: tuple[str | Path, ...]
    blueprint: str

    @property
    def under(self) -> tuple[str | Path, ...]:
        return ("--blueprint", self.folder / "tiny.kbp", *self.signers.trusted, *self.where)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, executable: Path) -> Stage:
    folder = tmp_path_factory.mktemp("stage")
    signers = Signers.in_(folder / "keys")
    levers = [word for name, value in ENVIRONMENT.items() if name not in _OURS for word in ("--env", f"{name}={value}")]
    where = ("--vllm-managed", write_tiny_hf(folder / "tiny"), "--vllm-executable", executable)
    last = ("--", "--dtype", "float32", *FLAGS)
    blueprint = signers.build(
        folder / "tiny.kbp", *where, "--name", "m", "--device", "cpu", *levers, last=last,
    )  # fmt: skip
    return Stage(folder, signers, where, blueprint)


def test_lever_that_is_not_stated_is_refused(stage: Stage) -> None:
    code, told = mesh("serve", *stage.under, "--port", "0", VLLM_ATTENTION_BACKEND="x")
    assert (code, told["error"]["code"]) == (2, "unstated-lever")
    assert "VLLM_ATTENTION_BACKEND" in told["error"]["message"]
    _, seen = mesh("blueprint", "inspect", stage.folder / "tiny.kbp")
    assert (seen["blueprint_id"], seen["settings"]["engine"]) == (stage.blueprint, "vllm")
    assert {kernel["function"] for kernel in seen["kernels"]} >= {"onednn_mm", "cpu_attention_with_kv_cache"}


def test_server_of_our_own_serves_under_its_blueprint_and_replays(stage: Stage) -> None:
    flags = (*stage.under, "--state", stage.folder / "state")
    with serving(stage.folder / "log", *flags) as gate:
        status, answer = gate.ask("m", mesh={"disclose": True})
        assert (status, answer["mesh"]["deterministic"]) == (200, True)
    receipt, disclosure = kept(answer, stage.folder)
    code, told = mesh("verify", receipt, "--trust", gate.steward)
    assert code == 0
    assert f"b3:{stage.blueprint.removeprefix('sha256:')}" in json.dumps(told)
    code, verdict = mesh("replay", receipt, disclosure, "--trust", gate.steward, *stage.under)
    assert (code, verdict["verdict"], verdict.get("reason")) == (0, "verified", None)
