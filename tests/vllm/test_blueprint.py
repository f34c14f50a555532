"""A real vLLM server under a blueprint: what it gets of the environment, what receipts say, and what is refused."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.test_served_blueprint import serving
from tests.support.blueprints import Signers, mesh
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import ENVIRONMENT, FLAGS

# What the mesh sets for a server of its own itself.
_OURS = ("VLLM_NO_USAGE_STATS",)


def test_folder_is_served_under_its_blueprint(tmp_path: Path, executable: Path) -> None:
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
    state = tmp_path / "state"
    with serving(tmp_path / "log", *under, "--state", state, "--cpu-watts", "10") as gate:
        status, answer = gate.ask("m", mesh={"disclose": True})
        assert status == 200
    receipt = tmp_path / "receipt"
    code, _ = mesh("receipts", "export", answer["mesh"]["receipt_id"], "--state", state, "--out", receipt)
    assert code == 0
    _, told = mesh("verify", receipt, "--trust", gate.steward)
    assert f"b3:{blueprint.removeprefix('sha256:')}" in str(told)
