"""Real candidates, and folders and packs made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).parent / "letsinfer"
EXPECTED: dict[str, Any] = json.loads((CORPUS / "expected.json").read_bytes())
VLLM = "vllm--nvidia--nvidia-nemotron-3.5-lightning-30b-a3b-nvfp4--dgx-spark"
MACOS = "llamacpp--qwen--qwen3-0.6b-gguf--macos-apple-silicon"
PARALLEL = "sglang--radixark--qwen3.8-flash-next-nvfp4--dgx-spark-connectx-2"


def runtime_json(candidate: str) -> bytes:
    return (CORPUS / "schema6" / candidate / "runtime.json").read_bytes()


def document(candidate: str = VLLM) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(runtime_json(candidate))
    return value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The macOS candidate's runtime.json alone."""
    made = tmp_path / "candidate"
    made.mkdir()
    (made / "runtime.json").write_bytes(runtime_json(MACOS))
    return made


def write_tree(root: Path, files: list[dict[str, Any]]) -> Path:
    """A pack of expected.json as files."""
    for file in files:
        path = root / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((CORPUS / file["from"]).read_bytes() if "from" in file else file["utf8"].encode())
        path.chmod(int(file["mode"], 8))
    return root
