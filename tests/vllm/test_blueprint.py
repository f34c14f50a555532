"""A blueprint of a folder and the vLLM that is installed, and a lever that it does not state."""

from __future__ import annotations

from pathlib import Path

from tests.support.blueprints import Signers, mesh
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import ENVIRONMENT, FLAGS

# What the mesh sets for a server of its own itself.
_OURS = ("VLLM_NO_USAGE_STATS",)


def test_folder_has_a_blueprint_under_which_another_lever_is_refused(tmp_path: Path, executable: Path) -> None:
    folder = write_tiny_hf(tmp_path / "tiny")
    signers = Signers.in_(tmp_path / "keys")
    levers = [word for name, value in ENVIRONMENT.items() if name not in _OURS for word in ("--env", f"{name}={value}")]
    where = ("--vllm-managed", folder, "--vllm-executable", executable)
    blueprint = signers.build(
        tmp_path / "tiny.kbp",
        *where,
        "--name",
        "m",
        "--device",
        "cpu",
        *levers,
        last=("--", "--dtype", "float32", *FLAGS),
    )
    under = ("--blueprint", tmp_path / "tiny.kbp", *signers.trusted, *where)
    code, told = mesh("serve", *under, "--port", "0", VLLM_ATTENTION_BACKEND="x")
    assert (code, told["error"]["code"]) == (2, "unstated-lever")
    assert "VLLM_ATTENTION_BACKEND" in told["error"]["message"]
    _, seen = mesh("blueprint", "inspect", tmp_path / "tiny.kbp")
    assert (seen["blueprint_id"], seen["settings"]["engine"]) == (blueprint, "vllm")
    assert {kernel["function"] for kernel in seen["kernels"]} >= {"onednn_mm", "cpu_attention_with_kv_cache"}
