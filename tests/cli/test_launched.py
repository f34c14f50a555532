"""A backend with a launch record: what that says is taken from it, and what is told or is here otherwise refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mesh.cli.assembly import assembled
from mesh.cli.checking import checked
from mesh.cli.launched import as_launched, check_started
from mesh.cli.specs import EngineSpec, GgufSpec, ReferenceSpec, VllmSpec
from mesh.cli.state import State
from mesh.engine.protocol import ServingEngine, identity_of
from mesh.errors import EnvelopeError, LaunchError
from mesh.gateway.backends import Route
from mesh.launch.config import load_config
from mesh.launch.marks import SAMPLED_OVER_BYTES, listing
from mesh.launch.plan import make_plan
from mesh.launch.record import keep, make_record
from mesh.launch.selection import Wish, choose
from mesh.schema.envelope import SigningKey
from tests.launch.recipes import CLUSTERS, recipe_file
from tests.support.fake_vllm import running
from tests.support.vllm_folder import write_model_folder

KEY = SigningKey(b"\x07" * 32)
URL = "http://127.0.0.1:1"
VLLM = 'engine = "vllm"\nengine_version = "0.32.0"\ndeploy = "tmux"\nmodel = "/m"\nserved_model_name = "tiny"\n'
REFERENCE = 'engine = "mesh"\ndeploy = "tmux"\nmodel = "reference"\n'


def record_at(folder: Path, text: str, model: str, weights: str | None = None) -> Path:
    """The path of a record of that recipe, with what was kept beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "launch.toml").write_text(CLUSTERS)
    loaded, file = load_config(folder / "launch.toml"), recipe_file(text)
    plan = make_plan(loaded.config, file, choose(loaded.config, file.recipe, Wish("2nodes", solo=True)), run="r1")
    facts = {} if weights is None else {"a": {"weights": weights}}
    record = make_record(plan, loaded, facts, model=model, launched_ns=5, key=KEY)
    return keep(folder / "run", record, plan, loaded, facts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_bytes(b"{}")
    (made / "model.safetensors").write_bytes(bytes(range(256)) * (SAMPLED_OVER_BYTES // 256 + 1))
    return made


def test_model_dtype_and_whether_it_quantizes_are_those_of_the_record(tmp_path: Path) -> None:
    path = record_at(tmp_path / "a", VLLM + 'args = ["--dtype", "half", "--quantization", "fp8"]\n', "tiny")
    spec, record = as_launched(VllmSpec(URL), path)
    assert isinstance(spec, VllmSpec)
    assert spec.model == "tiny"
    assert spec.flags == tuple(record.fields["ranks"][0]["argv"])
    from mesh.engine.vllm_described import quantizes, told_dtype

    assert (told_dtype(spec.flags), quantizes(spec.flags)) == ("float16", True)
    assert as_launched(VllmSpec(URL, dtype="float16"), path)[0] == spec.__class__(
        URL, dtype="float16", model="tiny", flags=spec.flags
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (VllmSpec(URL, dtype="float32"), "launched with --dtype bfloat16, told is float32"),
        (VllmSpec(URL, model="other"), "of model 'tiny', told is 'other'"),
        (ReferenceSpec(), "of vllm, the backend is the gateway's own engine"),
        (VllmSpec(None, weights=Path("w")), "of vllm, the backend is the gateway's own engine"),
    ],
)
def test_what_is_told_otherwise_than_launched_is_refused(tmp_path: Path, spec: EngineSpec, words: str) -> None:
    path = record_at(tmp_path / "a", VLLM + 'args = ["--dtype=bfloat16"]\n', "tiny")
    with pytest.raises(LaunchError, match=words):
        as_launched(spec, path)
    (one,) = checked([spec], [Route()], [path])
    assert any(words in fault for fault in one.faults)


def test_record_of_another_engine_is_no_record_of_a_vllm_server(tmp_path: Path) -> None:
    path = record_at(tmp_path / "a", REFERENCE, "reference")
    with pytest.raises(LaunchError, match="of mesh, the backend is a vLLM server"):
        as_launched(VllmSpec(URL), path)


@pytest.mark.parametrize("full", [False, True])
def test_weights_are_those_that_were_found_on_the_nodes_sampled_or_whole(
    tmp_path: Path, folder: Path, full: bool
) -> None:
    path = record_at(tmp_path / "a", VLLM, "tiny", listing(folder, full=full))
    as_launched(VllmSpec(URL, weights=folder), path)
    (folder / "config.json").write_bytes(b"[]")
    with pytest.raises(LaunchError, match=r"is not the model that was found on a: config\.json"):
        as_launched(VllmSpec(URL, weights=folder), path)
    path.with_name("weights-a.txt").write_text("another listing")
    with pytest.raises(LaunchError, match=r"is not the model that was found on a$"):
        as_launched(VllmSpec(URL, weights=folder), path)


def test_gguf_file_is_held_to_its_record_by_its_name_and_bytes(tmp_path: Path, folder: Path) -> None:
    model = folder / "model.safetensors"
    path = record_at(tmp_path / "a", REFERENCE.replace("reference", str(model)), "model", listing(model))
    spec = GgufSpec(model)
    assert as_launched(spec, path)[0] is spec
    data = model.read_bytes()
    model.write_bytes(b"\xff" + data[1:])
    with pytest.raises(LaunchError, match="is not the model that was found on a"):
        as_launched(spec, path)


def test_running_model_is_the_one_of_the_record_and_another_version_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def engine(name: str, backend: str) -> ServingEngine:
        return cast(ServingEngine, SimpleNamespace(recipe_id=name, backend_id=backend))

    path = record_at(tmp_path / "a", REFERENCE, "reference")
    spec, record = as_launched(ReferenceSpec("other"), path)
    with pytest.raises(LaunchError, match="of model 'reference', the backend serves 'other'"):
        check_started(engine("other", "reference/1/none/none/none/none"), spec, record, path)
    path = record_at(tmp_path / "b", VLLM, "tiny")
    spec, record = as_launched(VllmSpec(URL), path)
    check_started(engine("any", "vllm/0.32.0/none/none/cpu/none"), spec, record, path)
    assert capsys.readouterr().err == ""
    check_started(engine("any", "told:vllm/told:0.31.0/none/none/cpu/none"), spec, record, path)
    assert "drift: its recipe is for version 0.32.0, 0.31.0 is running" in capsys.readouterr().err


def test_gateway_does_not_begin_under_the_record_of_another_model(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    path = record_at(tmp_path / "a", REFERENCE, "reference")

    async def begin(spec: EngineSpec) -> str:
        async with assembled(state, [spec], launches=[path], note=lambda _: None) as mesh:
            return mesh.engine.recipe_id

    assert asyncio.run(begin(ReferenceSpec())) == "reference"
    with pytest.raises(LaunchError, match="the backend serves 'other'"):
        asyncio.run(begin(ReferenceSpec("other")))
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(EnvelopeError):
        asyncio.run(begin(ReferenceSpec()))


@pytest.mark.parametrize(("args", "dtype"), [('["--dtype", "float32"]', "float32"), ("[]", None)])
def test_settings_and_identity_of_a_server_follow_from_its_record(tmp_path: Path, args: str, dtype: str | None) -> None:
    """Nobody tells the gateway the dtype: the command line that was launched does, or nothing."""
    model = write_model_folder(tmp_path / "model")
    path = record_at(tmp_path / "a", f"{VLLM}args = {args}\n", "tiny", listing(model))

    async def main() -> None:
        async with running(others=("another",)) as fake:
            spec = VllmSpec(fake.url, weights=model, device="cpu")
            state = State(tmp_path / "state")
            async with assembled(state, [spec], launches=[path], note=lambda _: None) as mesh:
                engine = mesh.engine
                assert engine.recipe_id == "tiny"  # of two that the server has
                assert engine.settings.get("dtype") == (None if dtype is None else f"told:{dtype}")
                identity = identity_of(engine)
                assert (None if identity is None else identity.recipe.compute_dtype) == dtype

    asyncio.run(main())
