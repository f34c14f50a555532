from __future__ import annotations

from pathlib import Path

from mesh.identity.weights import gguf_weights
from tests.support.tiny_gguf import write_tiny_gguf


def test_weights_digest_of_a_model_file(mesh, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    expected = gguf_weights(path)
    result = mesh("weights", "digest", path)
    assert (result.code, result.out) == (0, f"{expected.digest}\n")
    told = mesh("weights", "digest", path, "--json").json
    assert told == {
        "weights_digest": expected.digest.text,
        "bytes": path.stat().st_size,
        "files": [{"name": "model.gguf", "digest": expected.files[0].id.text, "bytes": path.stat().st_size}],
    }
    assert mesh("weights", "digest", tmp_path, "--json").json == told


def test_weights_digest_of_no_model(mesh, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert mesh("weights", "digest", broken).code == 10
    result = mesh("weights", "digest", tmp_path / "none.gguf", "--json")
    assert (result.code, result.json["error"]["code"]) == (3, "io")
