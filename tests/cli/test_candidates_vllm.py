"""Runtime candidates of vLLM: the server that each becomes, and what it is held to."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mesh.cli import candidates
from mesh.cli.candidates import spec_of_candidate
from mesh.cli.specs import VllmSpec
from mesh.cli.starting import start_engine
from mesh.errors import ModelFileError
from tests.runtime.candidates import VLLM, document
from tests.support.candidates import refused, write_candidate


def vllm(tmp_path: Path, **changes: Any) -> tuple[Path, Path, dict[str, Any]]:
    """Our candidate of vLLM, made for the processor of this machine."""
    value = document(VLLM)
    value["target"]["platform"] = f"linux/{candidates.machine()}"
    value["target"]["accelerator"].update(vendor="cpu", architecture="any")
    value["target"]["memory"]["minimum_total_gib"] = 1
    for path, new in changes.items():
        value["engine"][path] = new
    models = tmp_path / "models"
    for artifact in value["artifacts"]:
        name = artifact["uri"].removeprefix("hf://").lower().replace("/", "--")
        (models / name / artifact["revision"]).mkdir(parents=True, exist_ok=True)
    return write_candidate(tmp_path / "candidate", value), models, value


def test_a_candidate_of_vllm_becomes_a_server_of_our_own(tmp_path: Path) -> None:
    folder, models, value = vllm(tmp_path, environment={"VLLM_MARLIN_USE_ATOMIC_ADD": "1"})
    spec = spec_of_candidate(folder, models, executable="/opt/vllm")
    assert isinstance(spec, VllmSpec)
    assert (spec.name, spec.slots, spec.start_s, spec.device) == (value["id"], 20, 2400, "cpu")
    assert spec.executable == "/opt/vllm"
    assert spec.environment == (("VLLM_MARLIN_USE_ATOMIC_ADD", "1"),)
    draft = models / "example-lab--harbour-14b-draft" / value["artifacts"][1]["revision"]
    assert list(spec.flags) == [
        str(draft) if flag == "${artifact:draft}" else flag for flag in value["engine"]["arguments"]
    ]
    assert spec.candidate is not None
    assert spec.candidate.payload == f"told:{value['engine']['distribution']['payload_id']}"
    spec.candidate.check(None)


def test_settings_of_vllm_hold_the_candidate() -> None:
    from mesh.engine.vllm_described import ServerFacts, VllmConfig, settings

    facts = ServerFacts("0.32.0", "m", None, 4096, {}, None)
    told = {"id": "x", "version": "1.0.0", "runtime": "sha256:00", "payload": "told:sha256:00"}
    common: dict[str, Any] = {
        "quantization": None, "tokenizer": None, "template": None, "probe": None, "logprobs": "raw"
    }  # fmt: skip
    assert settings(facts, VllmConfig("http://h", candidate=told), **common)["candidate"] == told
    assert "candidate" not in settings(facts, VllmConfig("http://h"), **common)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"arguments": ["--port", "1"]}, "engine.arguments: vllm: flag --port is refused"),
        ({"arguments": ["--served-model", "x"]}, "engine.arguments: vllm: flag --served-model (short for"),
        ({"environment": {"LD_PRELOAD": "x"}}, "engine.environment.LD_PRELOAD: set by whoever runs it"),
        ({"environment": {"PATH": "x"}}, "engine.environment.PATH: set by whoever runs it"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "engine.environment.CUDA_VISIBLE_DEVICES: set by whoever"),
    ],
)
def test_what_the_mesh_sets_itself_is_protected(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder, models, _ = vllm(tmp_path, **changes)
    assert expected in refused(folder, models)


def test_cards_that_are_not_here_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, models, value = vllm(tmp_path)
    value["target"]["accelerator"]["vendor"] = "nvidia"
    monkeypatch.setattr(candidates, "nvidia_cards", lambda: 0)
    assert "target.accelerator.count: 1, here are 0" in refused(write_candidate(folder, value), models)
    value["target"]["accelerator"]["vendor"] = "acme"
    assert "target.accelerator.vendor: 'acme', expected one of" in refused(write_candidate(folder, value), models)


def test_a_snapshot_is_held_to_what_its_client_wrote_down(tmp_path: Path) -> None:
    import hashlib

    folder, models, value = vllm(tmp_path)
    artifact = value["artifacts"][0]
    snapshot = models / "example-lab--harbour-14b-fp8" / artifact["revision"]
    notes = snapshot / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"weights")
    note = notes / "model.safetensors.metadata"
    good = hashlib.sha256(b"weights").hexdigest()
    note.write_text(f"{artifact['revision']}\n{good}\n1.5\n")
    (notes / "gone.metadata").write_text("x")
    spec = spec_of_candidate(folder, models)
    assert isinstance(spec, VllmSpec)
    assert spec.candidate is not None
    spec.candidate.check(None)
    note.write_text(f"{artifact['revision']}\n{'0' * 64}\n1.5\n")
    with pytest.raises(ModelFileError, match=r"artifact 'model': model\.safetensors: sha256 is"):
        spec.candidate.check(None)
    note.write_text(f"{'0' * 40}\n{good}\n1.5\n")
    with pytest.raises(ModelFileError, match=f"is of revision '{'0' * 40}', expected {artifact['revision']}$"):
        spec.candidate.check(None)
    note.write_text("x" * 100)
    with pytest.raises(ModelFileError, match=f"is of revision '{'x' * 80}', expected"):
        spec.candidate.check(None)


FAKE = """
import asyncio, json, os, sys
sys.path.insert(0, {root!r})
from tests.support.fake_vllm import running
at = sys.argv.index
async def main():
    with open({seen!r}, "w") as file:
        json.dump([sys.argv[1:], os.environ.get("VLLM_FROM_CANDIDATE"), list(os.sched_getaffinity(0))], file)
    name = sys.argv[at("--served-model-name") + 1]
    async with running(port=int(sys.argv[at("--port") + 1]), name=name, root=sys.argv[2], counts_cached=True):
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@pytest.mark.deep
def test_a_candidate_of_vllm_is_served_as_it_says(tmp_path: Path) -> None:
    from tests.support.vllm_folder import write_model_folder

    folder, models, value = vllm(
        tmp_path, arguments=["--max-model-len", "64", "--seed", "42042"], environment={"VLLM_FROM_CANDIDATE": "yes"}
    )
    value["serving"].update(max_active_requests=2, max_context_tokens=64)
    value["container"].update(min_available_gib=0, runtime_min_available_gib=0)
    value["container"]["cpuset_cpus"] = str(min(os.sched_getaffinity(0)))
    artifact = value["artifacts"][0]
    weights = models / artifact["uri"].removeprefix("hf://").lower().replace("/", "--") / artifact["revision"]
    write_model_folder(weights)
    program = tmp_path / "vllm"
    root = str(Path(__file__).parents[2])
    program.write_text(f"#!{sys.executable}\n" + FAKE.format(root=root, seen=str(tmp_path / "seen")))
    program.chmod(0o755)
    spec = spec_of_candidate(write_candidate(folder, value), models, executable=str(program))

    async def run() -> dict[str, Any]:
        engine = await start_engine(spec)
        try:
            await engine.ready()
            assert (engine.recipe_id, engine.slots) == (value["id"], 2)
            told: dict[str, Any] = engine.settings["candidate"]
            return told
        finally:
            await engine.close()

    told = asyncio.run(run())
    assert (told["id"], told["payload"]) == (value["id"], f"told:{value['engine']['distribution']['payload_id']}")
    argv, variable, processors = json.loads((tmp_path / "seen").read_bytes())
    assert processors == [min(os.sched_getaffinity(0))]
    assert argv[:2] == ["serve", str(weights)]
    assert argv[-4:] == ["--max-model-len", "64", "--seed", "42042"]
    assert variable == "yes"
