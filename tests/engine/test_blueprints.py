"""What a blueprint states of an engine's file, build and machine, and what is no longer so."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.blueprint.body import Body, planned
from mesh.engine import vllm_blueprint
from mesh.engine.gguf_blueprint import body_of, check_gguf, config_of
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.vllm_blueprint import check_folder_body, environment_of, folder_body
from mesh.errors import BodyError, EngineUnsupported, KernelError, UsageError
from mesh.identity.model import GgufModel, read_model
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_hf import write_tiny_hf

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the plans are those of x86-64")
NAMED: dict[str, Any] = {"name": "m", "lineage": bytes(16), "revision": 1, "environment": {}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    return read_model(write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", layers=2))


@pytest.fixture(scope="module")
def body(model: GgufModel) -> Body:
    return body_of(model, GgufConfig(model.files[0], "m"), **NAMED)


def test_what_was_stated_is_what_would_be_loaded(model: GgufModel, body: Body) -> None:
    check_gguf(body, model)
    config = config_of(body.settings, model.files[0], blueprint_id=b"b" * 32, environment={"A": "b"})
    assert replace(config, blueprint_id=None, environment=None) == replace(
        GgufConfig(model.files[0], "m"), context_tokens=2048
    )
    # how long it is waited for is nothing that a blueprint states
    patient = config_of(body.settings, model.files[0], blueprint_id=b"b" * 32, environment={"A": "b"}, silent_s=7)
    assert patient == replace(config, silent_s=7)
    # the arms for one row take other functions than those for several
    functions = {
        (arm.mode, arm.rows_from): {body.kernels[group.kernel].function for group in arm.groups} for arm in body.plan
    }
    assert "ggml_vec_dot_q8_0_q8_0" in functions["decode", 1]
    assert "llamafile_sgemm" in functions["decode", 2]
    assert "llamafile_sgemm" not in functions["decode", 1]


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"settings": {"kv_type": "f16"}}, BodyError, "another circuit than it states"),
        ({"settings": {"flash_attention": False}}, BodyError, "another circuit than it states"),
        ({"settings": {"slots": 1}}, BodyError, "plan of decode, rows 2 to 2: none here"),
        ({"settings": {"n_ubatch": 32}}, BodyError, "plan of prefill, rows 2 to 32: [0-9a-f]{64} here, it states none"),
        ({"hardware": {"features": ("a-feature-of-none", "avx2")}}, EngineUnsupported, "lacks a-feature-of-none"),
        ({"module": {"digest": b"d" * 32}}, KernelError, "with SHA-256"),
        ({"module": {"length": 7}}, KernelError, "expected 7 with"),
    ],
)
def test_what_is_no_longer_so_is_refused_by_name(
    model: GgufModel, body: Body, change: dict[str, dict[str, Any]], error: type[Exception], told: str
) -> None:
    settings = replace(body.settings, **change.get("settings", {}))
    hardware = replace(body.hardware, **change.get("hardware", {}))
    modules = (replace(body.modules[0], **change.get("module", {})),)
    plan = tuple(planned(arm, modules, body.kernels) for arm in body.plan)
    with pytest.raises(error, match=told):
        check_gguf(replace(body, settings=settings, hardware=hardware, modules=modules, plan=plan), model)


def test_model_with_a_tensor_more_is_another(tmp_path: Path, body: Body) -> None:
    other = read_model(write_tiny_gguf(tmp_path / "tiny.gguf", layers=3))
    with pytest.raises(BodyError, match="another circuit"):
        check_gguf(body, other)


ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
OPERATORS = b"onednn_mm cpu_attention_with_kv_cache cpu_attn_reshape_and_cache rotary_embedding"


def environment_with_vllm(root: Path, *, version: str = "0.32.0+cpu", operators: bytes = OPERATORS) -> Path:
    """Laid out as an installation is: the program, and modules that are large enough for their names."""
    packages = root / "lib" / "python3.11" / "site-packages"
    for name in ("_C", "_C_AVX2", "_C_AVX512"):
        (packages / "vllm").mkdir(parents=True, exist_ok=True)
        (packages / "vllm" / f"{name}.abi3.so").write_bytes(ELF + operators)
    (packages / "torch" / "lib").mkdir(parents=True)
    (packages / "torch" / "lib" / "libtorch_cpu.so").write_bytes(ELF + b"embedding rsqrt silu add to")
    (packages / f"vllm-{version}.dist-info").mkdir()
    (root / "bin").mkdir()
    (root / "bin" / "vllm").write_text("")
    return root / "bin" / "vllm"


FLAGS = ("--dtype", "float32", "--enforce-eager")


def of_folder(folder: Path, program: Path, **changes: Any) -> Body:
    told = {"served": "m", "slots": 8, "device": "cpu", "flags": FLAGS, **NAMED, **changes}
    return folder_body(folder, executable=program, **told)


def test_folder_for_vllm_is_stated_and_held(tmp_path: Path) -> None:
    folder, program = write_tiny_hf(tmp_path / "hf"), environment_with_vllm(tmp_path / "env")
    body = of_folder(folder, program)
    check_folder_body(body, folder, program)
    assert body.circuit.kinds["linear"] == 14
    assert {weight.name for weight in body.circuit.weights} >= {"lm_head.weight", "model.layers.1.mlp.up_proj.weight"}
    flags = ("--dtype", "bfloat16", "--enforce-eager")
    with pytest.raises(BodyError, match="another circuit"):
        check_folder_body(replace(body, settings=replace(body.settings, flags=flags)), folder, program)
    flags = (*FLAGS, "--speculative-config", "{}")
    with pytest.raises(EngineUnsupported, match="what '--speculative-config' does"):
        check_folder_body(replace(body, settings=replace(body.settings, flags=flags)), folder, program)
    flags = (*FLAGS, "--max-model-len=64", "--seed", "3", "--no-enable-prefix-caching")
    check_folder_body(replace(body, settings=replace(body.settings, flags=flags)), folder, program)
    with pytest.raises(KernelError, match=r"for vllm 0\.31, 0\.32\.0\+cpu is installed"):
        check_folder_body(replace(body, settings=replace(body.settings, version="0.31")), folder, program)
    for module in (program.parent.parent / "lib").rglob("*.so"):
        module.write_bytes(module.read_bytes() + b"!")
    with pytest.raises(KernelError, match="with SHA-256"):
        check_folder_body(body, folder, program)


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"device": "cuda"}, EngineUnsupported, "known for --device cpu alone"),
        ({"flags": ("--dtype", "float32")}, UsageError, "without --enforce-eager"),
        ({"version": "0.99.0"}, EngineUnsupported, r"that of vLLM 0\.32, this is 0\.99\.0"),
        ({"operators": b"onednn_mm"}, KernelError, "no operator cpu_att"),
        ({"flags": (*FLAGS, "--quantization", "fp8")}, EngineUnsupported, "what '--quantization' does"),
        ({"flags": (*FLAGS, "--kv-cache-dtype=fp8")}, EngineUnsupported, "what '--kv-cache-dtype=fp8' does"),
        ({"flags": (*FLAGS, "--config", "more.yaml")}, EngineUnsupported, "what '--config' does"),
        ({"flags": (*FLAGS, "--enforce-eager=no")}, EngineUnsupported, "what '--enforce-eager=no' does"),
        ({"flags": ("--enforce-eager", "--seed")}, EngineUnsupported, "--seed: a value is missing"),
        ({"flags": ("--seed", *FLAGS)}, EngineUnsupported, "--seed: a value is missing before '--dtype'"),
        ({"flags": (*FLAGS, "more")}, EngineUnsupported, "what 'more' does"),
    ],
)
def test_what_cannot_be_stated_of_vllm_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], told: str
) -> None:
    folder = write_tiny_hf(tmp_path / "hf")
    installed = {name: value for name, value in changes.items() if name in ("version", "operators")}
    program = environment_with_vllm(tmp_path / "env", **installed)
    asked = {name: value for name, value in changes.items() if name not in installed}
    with pytest.raises(error, match=told):
        of_folder(folder, program, **asked)


def test_server_under_a_blueprint_gets_what_is_stated_and_what_moves_no_number(tmp_path: Path) -> None:
    folder, program = write_tiny_hf(tmp_path / "hf"), environment_with_vllm(tmp_path / "env")
    body = of_folder(folder, program, environment={"OMP_NUM_THREADS": "1"})
    given = environment_of(body.settings, {"PATH": "/bin", "PYTHONPATH": "/x", "ANYTHING": "1", "HOME": "/h"})
    assert given == {"PATH": "/bin", "HOME": "/h", "OMP_NUM_THREADS": "1"}
    assert vllm_blueprint.version_of(vllm_blueprint.packages_of(program)) == "0.32.0+cpu"
