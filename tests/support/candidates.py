"""Our own candidate, made to fit another model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.candidates import llama_payload, machine, spec_of_candidate
from mesh.errors import CandidateError, EngineUnsupported
from tests.support.tiny_gguf import write_tiny_gguf

OWN = Path(__file__).parents[2] / "examples" / "runtime"
SMOLLM2 = OWN / "llamacpp--quantfactory--smollm2-135m-instruct-gguf--linux-x86-64-cpu"


def own_document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((SMOLLM2 / "runtime.json").read_bytes())
    return value


def bound(value: dict[str, Any]) -> dict[str, Any]:
    """With what follows from the rest: the benchmark's pins and the id."""
    contract, distribution = value["benchmark"]["contract"], value["engine"]["distribution"]
    contract["tokenizer"]["engine_image_sha256"] = distribution["payload_id"].removeprefix("sha256:")
    contract["tokenizer"]["model_sha256"] = value["artifacts"][0]["sha256"]
    owner, repository = value["model"]["uri"].removeprefix("hf://").lower().split("/")
    value["id"] = "--".join((value["engine"]["id"], owner, repository, value["target"]["id"]))
    return value


def write_candidate(folder: Path, value: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runtime.json").write_text(json.dumps(value))
    return folder


def tiny_candidate(root: Path, **gguf: Any) -> tuple[Path, Path, dict[str, Any]]:
    """A candidate for a tiny model on this machine: its folder, the folder of models, and what it says."""
    value = own_document()
    artifact = value["artifacts"][0]
    models = root / "models"
    model = models / "quantfactory--smollm2-135m-instruct-gguf" / artifact["revision"] / artifact["filename"]
    model.parent.mkdir(parents=True)
    write_tiny_gguf(model, context=2048, **gguf)
    data = model.read_bytes()
    artifact.update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    value["engine"]["distribution"].update(payload_id=llama_payload(), platform=f"linux/{machine()}")
    value["target"]["platform"] = f"linux/{machine()}"
    value["target"]["accelerator"]["architecture"] = machine()
    value["container"]["min_available_gib"] = 0
    return write_candidate(root / "candidate", bound(value)), models, value


def refused(folder: Path, models: Path) -> str:
    """Why there is no engine for a candidate."""
    with pytest.raises((EngineUnsupported, CandidateError)) as caught:
        spec_of_candidate(folder, models)
    return str(caught.value)
