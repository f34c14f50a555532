"""A candidate served: what it says is kept, or refused by its field."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mesh.cli import candidates, envelope
from mesh.cli.candidates import spec_of_candidate
from mesh.cli.envelope import Envelope
from mesh.cli.specs import EngineSpec, GgufSpec
from mesh.cli.starting import start_engine
from mesh.engine import excess
from mesh.errors import EngineFailed, EngineUnavailable, EngineUnsupported, ModelFileError, UsageError
from mesh.runtime.packing import pack
from tests.runtime.candidates import MACOS, PARALLEL, runtime_json
from tests.support.candidates import SMOLLM2, bound, own_document, refused, tiny_candidate, write_candidate


def test_our_candidate_is_what_it_says(mesh) -> None:
    result = mesh("runtime", "validate", SMOLLM2, "--launch", "--json")
    assert result.code == 0
    assert result.json["publication"] == [{"file": "release.json", "path": "", "fault": "missing"}]
    said = own_document()
    assert said["engine"]["distribution"]["payload_id"] == candidates.llama_payload()
    assert bound(own_document()) == said


def test_a_candidate_becomes_an_engine_with_its_limits(tmp_path: Path) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    value["engine"]["arguments"] = ["-c", "2048", "-ctk", "f16", "-ctv", "f16", "-fa", "off", "-t", "2", "-ub", "32",
                                    "--n-gpu-layers", "0"]  # fmt: skip
    write_candidate(folder, value)
    spec = spec_of_candidate(folder, models)
    assert isinstance(spec, GgufSpec)
    assert (spec.name, spec.slots, spec.context, spec.threads, spec.ubatch) == (value["id"], 2, 1024, 2, 32)
    assert (spec.kv_type, spec.flash_attention) == ("f16", False)
    assert spec.candidate is not None
    assert (spec.candidate.logical_model, spec.candidate.queue) == ("smollm2-135m", 14)
    assert spec.candidate.payload == candidates.llama_payload()
    assert spec.candidate.envelope == Envelope(1 << 30, 0, 0, 300)
    packed = pack(folder, tmp_path / "p.letsinfer")
    of_pack = spec_of_candidate(tmp_path / "p.letsinfer", models)
    assert of_pack == spec
    assert spec.candidate.runtime_digest == packed.descriptor.digest


def test_a_served_candidate_stands_in_its_settings_and_is_held_to_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    value["container"]["runtime_min_available_gib"] = 1
    value["container"]["cpuset_cpus"] = str(min(os.sched_getaffinity(0)))
    monkeypatch.setattr(excess, "LOOK_S", 0.01)
    packed = pack(write_candidate(folder, value), tmp_path / "p.letsinfer")

    async def run() -> None:
        engine: Any = await start_engine(spec_of_candidate(folder, models))
        try:
            assert (engine.recipe_id, engine.context_tokens) == (value["id"], 1024)
            assert engine.settings["candidate"] == {
                "id": value["id"], "version": "0.1.0", "runtime": f"sha256:{packed.descriptor.digest}",
                "payload": candidates.llama_payload(),
            }  # fmt: skip
            recipe = engine.identity.recipe
            assert (recipe.recipe_id, recipe.recipe_version) == (value["id"], "0.1.0")
            assert engine.identity.artifact.content_digest == value["artifacts"][0]["sha256"]
            assert os.sched_getaffinity(engine.pid) == {min(os.sched_getaffinity(0))}
            await held_to_memory(engine)
        finally:
            await engine.close()

    async def held_to_memory(engine: Any) -> None:
        monkeypatch.setattr(envelope, "memory_bytes", lambda name: 1 << 29)
        with pytest.raises(EngineUnavailable, match=r"container\.runtime_min_available_gib: 1 GiB, here are 0\.5 GiB"):
            await engine.ready()
        monkeypatch.setattr(envelope, "memory_bytes", lambda name: None)  # nobody can say
        await engine.ready()
        pid, held = engine.pid, envelope.held_bytes
        monkeypatch.setattr(envelope, "held_bytes", lambda pid: 2 << 30)
        async with asyncio.timeout(60):
            while engine.pid is not None:
                await asyncio.sleep(0.01)
        with pytest.raises(EngineUnavailable, match="its process ended and is started again"):
            await engine.ready()
        monkeypatch.setattr(envelope, "held_bytes", held)
        await engine.until_up()
        assert engine.pid != pid
        assert os.sched_getaffinity(engine.pid) == {min(os.sched_getaffinity(0))}

    asyncio.run(run())
    assert "engine process: container.memory_bytes: 1073741824, and it takes 2147483648" in caplog.text


def test_a_candidate_that_takes_more_memory_than_it_says_does_not_start(tmp_path: Path) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    value["container"]["memory_bytes"] = 4096
    spec = spec_of_candidate(write_candidate(folder, value), models)
    with pytest.raises(EngineFailed, match=r"engine process: container\.memory_bytes: 4096, and it takes \d+"):
        asyncio.run(start_engine(spec))


@pytest.mark.parametrize(
    ("path", "new", "expected"),
    [
        ("engine/arguments", ["--mlock"], "engine.arguments[0]: '--mlock': nothing that the llama.cpp inside"),
        ("engine/arguments", ["--ctx-size", "many"], "engine.arguments[0]: --ctx-size: expected a number"),
        ("engine/arguments", ["--ctx-size"], "engine.arguments[0]: --ctx-size: expected a number, got ''"),
        ("engine/arguments", ["--ctx-size", "512"], "serving.max_context_tokens: 1024, and --ctx-size is 512"),
        ("engine/arguments", ["--parallel", "1"], "serving.max_active_requests: 2, and --parallel is 1"),
        ("engine/arguments", ["-t", "999999999"], "engine.arguments, serving: gguf engine: threads is"),
        ("engine/arguments", ["-ub", "0"], "engine.arguments, serving: gguf engine: n_ubatch is 0, expected 1"),
        ("engine/arguments", ["-ngl", "99"], "--n-gpu-layers: the llama.cpp inside has no GPU"),
        ("engine/arguments", ["-fa", "auto"], "-fa: expected on or off, got 'auto'"),
        ("engine/arguments", ["-ctk", "q8_0"], "--cache-type-k and --cache-type-v: expected both"),
        ("engine/arguments", ["-ctk", "q3"], "-ctk: expected q8_0, f16, f32"),
        ("engine/environment", {"GGML_X": "1"}, "engine.environment.GGML_X: the llama.cpp inside reads no variables"),
        ("target/accelerator/vendor", "nvidia", "target.accelerator: nvidia/"),
        ("target/memory/minimum_total_gib", 1 << 20, "target.memory.minimum_total_gib: 1048576 GiB, here are"),
        ("container/cpuset_cpus", "0-9999", "container.cpuset_cpus: 0-9999, here are "),
        ("container/other", 1, "would not launch: container.other: unknown field"),
        ("engine/distribution/bundle_id", "ai.other.app", "engine.distribution.kind: embedded-application: the llama"),
        ("engine/distribution/minimum_version", "9" * 5000 + ".0.0", "engine.distribution.minimum_version: 999"),
        ("engine/distribution/minimum_version", "99.0.0", "engine.distribution.minimum_version: 99.0.0, this is"),
        ("engine/distribution/payload_id", "sha256:" + "0" * 64, "engine.distribution.payload_id: sha256:000"),
        ("engine/id", "tgi", "engine.id: 'tgi': no such engine runs here"),
    ],
)  # fmt: skip
def test_what_would_not_be_kept_is_refused_by_its_field(path: str, new: Any, expected: str, tmp_path: Path) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    *parents, last = path.split("/")
    at = value
    for step in parents:
        at = at[step]
    at[last] = new
    assert expected in refused(write_candidate(folder, bound(value)), models)


def test_candidates_of_others_are_refused_by_what_this_machine_is(tmp_path: Path) -> None:
    for name in (MACOS, PARALLEL):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "runtime.json").write_bytes(runtime_json(name))
        assert "cannot run here: target.p" in refused(folder, tmp_path)


def test_models_are_found_below_their_folder_and_held_to_their_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    monkeypatch.setenv("LETSINFER_HOME", str(tmp_path))
    spec = spec_of_candidate(folder, None)
    assert spec == spec_of_candidate(folder, models)
    monkeypatch.delenv("LETSINFER_HOME")
    with pytest.raises(UsageError, match="--models says where"):
        spec_of_candidate(folder, None)
    with pytest.raises(FileNotFoundError, match="No such file or directory, where artifact 'model' should be"):
        spec_of_candidate(folder, tmp_path / "elsewhere")
    (file,) = models.rglob("*.gguf")
    shutil.copytree(models, tmp_path / "other")
    (tmp_path / "other" / file.relative_to(models)).unlink()
    (tmp_path / "other" / file.relative_to(models)).mkdir()
    with pytest.raises(ModelFileError, match="artifact 'model': no file at"):
        spec_of_candidate(folder, tmp_path / "other")
    assert isinstance(spec, GgufSpec)
    seen: list[tuple[int, int]] = []
    assert spec.candidate is not None
    spec.candidate.check(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (value["artifacts"][0]["bytes"],) * 2
    data = bytearray(spec.path.read_bytes())
    data[-1] ^= 1
    spec.path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"artifact 'model': sha256 is .*, expected"):
        asyncio.run(start_engine(spec))
    spec.path.write_bytes(data + b"x")
    with pytest.raises(ModelFileError, match="bytes, expected"):
        asyncio.run(start_engine(spec))


def test_a_start_is_held_to_memory_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    value["container"]["min_available_gib"] = 1 << 20
    with pytest.raises(EngineUnsupported, match=r"container\.min_available_gib: 1048576 GiB, here are"):
        asyncio.run(start_engine(spec_of_candidate(write_candidate(folder, value), models)))
    value["container"].update(min_available_gib=0, startup_timeout_seconds=1)
    spec = spec_of_candidate(write_candidate(folder, value), models)

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("mesh.engine.gguf.GgufEngine.start", never)
    with pytest.raises(EngineFailed, match=r"container\.startup_timeout_seconds: not ready in 1 s"):
        asyncio.run(start_engine(spec))


def test_serve_takes_a_candidate_by_flag_subcommand_and_file(mesh, tmp_path: Path) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    expected = [(f"{value['id']}", ["smollm2-135m"], [])]

    def served(*argv: Any) -> list[tuple[str, list[str], list[str]]]:
        result = mesh(*argv, "--check", "--json")
        assert result.code == 0, result
        return [(one["name"], one["aliases"], one["faults"]) for one in result.json["backends"]]

    state = ("--state", tmp_path / "state")
    assert served("serve", "--runtime", folder, "--models", models, *state) == expected
    assert served("runtime", "serve", folder, "--models", models, *state) == expected
    config = tmp_path / "mesh.toml"
    config.write_text('[[backend]]\nkind = "runtime"\npath = "candidate"\nmodels = "models"\naliases = ["chat"]\n')
    assert served("serve", "--config", config) == [(value["id"], ["smollm2-135m", "chat"], [])]
    assert mesh("serve", "--runtime", folder, "--models", models, "--name", "x").code == 2
    assert mesh("serve", "--runtime", folder, "--models", models, "--slots", "2").code == 2
    assert mesh("serve", "--runtime", folder, "--models", models, "--vllm-executable", "x").code == 2


def test_a_candidates_queue_is_kept(tmp_path: Path) -> None:
    from mesh.cli.serve_plan import of_candidate

    folder, models, _ = tiny_candidate(tmp_path)
    spec: EngineSpec = spec_of_candidate(folder, models)
    assert of_candidate(spec, ("a",), None) == (("smollm2-135m", "a"), 14)
    assert of_candidate(spec, (), 3) == (("smollm2-135m",), 3)
    assert of_candidate(spec, (), 100) == (("smollm2-135m",), 14)


def test_memory_figures_are_the_kernels(tmp_path: Path) -> None:
    total, available = envelope.memory_bytes("MemTotal"), envelope.memory_bytes("MemAvailable")
    assert total is not None
    assert available is not None
    assert 0 < available < total
    assert envelope.memory_bytes("NoSuchLine") is None
    assert (envelope.held_bytes(os.getpid()) or 0) > 1 << 20
    assert envelope.held_bytes(2**22 + 1) is None
    assert Envelope(1, 0, 0, 1).refusal(None) is None
    assert Envelope(1 << 60, 0, 0, 1).excess(os.getpid()) is None
    assert Envelope(1, 0, 0, 1).excess(2**22 + 1) is None
    assert re.fullmatch(r"container\.memory_bytes: 1, and it takes \d+", Envelope(1, 0, 0, 1).excess(os.getpid()) or "")


def test_memory_is_that_of_all_processes_and_what_they_share_counts_once() -> None:
    """A child of our own that holds 64 MiB, and one of its own that maps the same and holds 32 MiB more."""
    text = (
        "import mmap, os, sys\n"
        "shared = mmap.mmap(-1, 64 << 20); shared.write(b'x' * (64 << 20))\n"
        "down, up = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    held = b'y' * (32 << 20); seen = sum(shared[::4096]); os.write(up, b'!'); sys.stdin.read(); os._exit(0)\n"
        "os.read(down, 1); print(flush=True); sys.stdin.read(); os.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdout.readline()
        held = envelope.held_bytes(one.pid) or 0
        one.stdin.close()
    assert 96 << 20 <= held < 140 << 20
