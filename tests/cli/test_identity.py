from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.identity.document import MAX_DOCUMENT_BYTES
from mesh.identity.shard import ShardIdentity
from mesh.ledger import Ledger
from mesh.schema.envelope import SigningKey
from tests.identity.identities import CUT, OTHER, binding, block, cut, evidence, identity
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, value: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(value.to_map() if isinstance(value, ShardIdentity) else value))
        return path

    return write


def test_fingerprint_prints_both_digests(mesh, write):
    path, expected = write("a.json", block()), identity().fingerprint
    result = mesh("identity", "fingerprint", path, "--json")
    assert (result.code, result.json) == (0, expected.to_map())
    result = mesh("identity", "fingerprint", path)
    assert result.out.splitlines() == [
        f"model artifact  {expected.model_artifact_digest}", f"runtime recipe  {expected.runtime_recipe_digest}",
    ]  # fmt: skip


def test_fingerprint_reads_stdin(mesh, monkeypatch):
    data = json.dumps(block()).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert mesh("identity", "fingerprint", "-").code == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data[:-1])))
    result = mesh("identity", "fingerprint", "-")
    assert (result.code, result.err[:30]) == (10, "mesh identity: stdin: identity")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"recipe__kv_dtype": None}, "schema"),
        ({"artifact__revision": "main"}, "moving-reference"),
        ({"shard_end": 5}, "layers"),
        ({"fingerprint": {**identity().fingerprint.to_map(), "runtime_recipe_digest": OTHER}}, "fingerprint"),
    ],
)
def test_an_identity_that_is_none_is_refused_by_its_class(mesh, write, changes, code):
    path = write("a.json", block(**changes))
    result = mesh("identity", "fingerprint", path, "--json")
    assert (result.code, result.json["error"]["code"]) == (10, code)
    assert str(path) in result.json["error"]["message"]


def test_files_that_are_none_are_refused(mesh, tmp_path):
    assert mesh("identity", "fingerprint", tmp_path / "missing").code == 3
    assert mesh("identity", "fingerprint", tmp_path).code == 10
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert mesh("identity", "fingerprint", pipe).code == 10
    long = tmp_path / "long"
    long.write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1))
    result = mesh("identity", "fingerprint", long, "--json")
    assert (result.code, result.json["error"]["code"]) == (10, "encoding")


def test_explain_names_what_differs(mesh, write):
    a, b = write("a.json", block()), write("b.json", block(recipe__kv_dtype="f16", artifact__layer_count=5))
    result = mesh("identity", "explain", a, b)
    assert result.code == 10
    assert result.out.splitlines() == [
        "artifact: number of layers is 5, expected 4", "cache-layout: kv_dtype is 'f16', expected 'q8_0'",
    ]  # fmt: skip
    told = mesh("identity", "explain", a, b, "--json").json
    assert told["compatible"] is False
    assert [(one["reason"], one["field"]) for one in told["mismatches"]] == [
        ("artifact", "layer_count"), ("cache-layout", "kv_dtype"),
    ]  # fmt: skip


def test_explain_says_where_nothing_differs(mesh, write):
    a, b = write("a.json", block()), write("b.json", cut(1, 2, recipe__recipe_id="another"))
    result = mesh("identity", "explain", a, b)
    assert result.code == 0
    assert result.out.startswith("the same")
    assert mesh("identity", "explain", a, b, "--json").json == {"compatible": True, "mismatches": []}


def test_check_route_names_holes_and_shards(mesh, write):
    near, far = write("near.json", cut(0, 2)), write("far.json", cut(2, 4))
    assert mesh("identity", "check-route", near, far).code == 0
    result = mesh("identity", "check-route", near)
    assert (result.code, result.out) == (10, "range: layers 2 to 4 are on no shard\n")
    other = write("other.json", block(artifact__content_digest=CUT, artifact__derived_from=binding(0, 4, OTHER)))
    result = mesh("identity", "check-route", near, far, other, "--json")
    assert result.code == 10
    assert [(one["shard_index"], one["reason"]) for one in result.json["mismatches"]] == [(2, "artifact")]


def test_check_route_asks_the_registry(mesh, write, tmp_path):
    near, far, state = write("near.json", cut(0, 2)), write("far.json", cut(2, 4)), tmp_path / "state"
    route = ["identity", "check-route", near, far, "--registry", "--state", state]
    assert mesh(*route).code == 3  # no ledger there
    with Ledger.open(state / "ledger.sqlite", steward=SigningKey(os.urandom(32)).public) as ledger:
        assert mesh(*route, "--for-certification").code == 10
        ledger.register_recipe(identity()).result()
        assert "uncertified: dark" in mesh(*route).out
        assert mesh(*route, "--for-certification").code == 0
        ledger.certify_recipe(identity(), evidence()).result()
        assert mesh(*route).code == 0


def test_wrong_usage_is_told(mesh, write):
    path = write("a.json", block())
    assert mesh("identity").code == 2
    assert mesh("identity", "check-route").code == 2
    assert mesh("identity", "check-route", path, "--for-certification").code == 2
    assert mesh("identity", "check-route", "-", "-").code == 2
    assert mesh("identity", "of").code == 2
    assert mesh("identity", "of", "--reference").code == 2
    assert mesh("identity", "of", "--vllm", "http://127.0.0.1:9", "--kv-type", "f16").code == 2


def test_of_a_gguf_is_the_same_under_another_path_and_names_one_changed_axis(mesh, tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.copy(path, tmp_path / "elsewhere" / "renamed.gguf"))
    files = {}
    for name, flags in {"one": (path,), "two": (moved, "--name", "x"), "wide": (path, "--kv-type", "f16")}.items():
        result = mesh("identity", "of", "--gguf", *flags)
        assert result.code == 0
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(result.out)
    one, two, wide = (ShardIdentity.from_json(file.read_bytes()) for file in files.values())
    assert one.fingerprint.key == two.fingerprint.key
    assert one.artifact == two.artifact
    assert mesh("identity", "explain", files["one"], files["two"]).code == 0
    result = mesh("identity", "explain", files["one"], files["wide"])
    assert (result.code, result.out) == (10, "cache-layout: kv_dtype is 'f16', expected 'q8_0'\n")
    assert wide.artifact == one.artifact


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address and the folder of a server that runs."""
    folder = tmp_path / "model"
    command = [sys.executable, "-m", "tests.support.fake_vllm", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}", folder
        finally:
            server.kill()


def test_of_a_vllm_server_needs_what_nobody_can_see(mesh, vllm):
    url, folder = vllm
    told = ("identity", "of", "--vllm", url, "--weights", folder)
    result = mesh(*told, "--dtype", "float32", "--device", "cpu")
    assert result.code == 0
    one = ShardIdentity.from_json(result.out.encode())
    assert (one.recipe.backend_id, one.recipe.kv_dtype, one.artifact.architecture) == ("vllm/cpu", "float32", "llama")
    result = mesh(*told, "--dtype", "float32", "--json")
    assert (result.code, result.json["error"]["code"]) == (3, "engine-unidentified")
    assert result.json["error"]["message"].startswith("recipe.backend_id: not known")
