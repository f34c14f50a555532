"""A backend that a launcher started: what its launch record says of it is taken from there, and what is told otherwise,
or is here otherwise, is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.console import note
from mesh.cli.specs import EngineSpec, GgufSpec, VllmSpec
from mesh.errors import LaunchError

if TYPE_CHECKING:
    from mesh.engine.protocol import ServingEngine
    from mesh.launch.record import LaunchRecord


def as_launched(spec: EngineSpec, path: Path) -> tuple[EngineSpec, LaunchRecord]:
    """The backend with its model's name, its dtype and whether it quantizes as its record has them. Its weights here,
    where it has some, are those that were found on its nodes. Raises LaunchError, EnvelopeError, OSError."""
    from mesh.launch.record import load_record

    record = load_record(path)
    engine = str(record.fields["engine"])
    external = isinstance(spec, VllmSpec) and spec.url is not None
    if (engine == "vllm") != external or engine not in ("vllm", "mesh"):
        kind = "a vLLM server" if external else "the gateway's own engine"
        raise LaunchError(f"launch record {path}: of {engine}, the backend is {kind}")
    if isinstance(spec, VllmSpec) and external:
        spec = _vllm(spec, record, path)
    weights = spec.weights if isinstance(spec, VllmSpec) else spec.path if isinstance(spec, GgufSpec) else None
    if weights is not None:
        _check_weights(weights, record, path)
    return spec, record


def _vllm(spec: VllmSpec, record: LaunchRecord, path: Path) -> VllmSpec:
    from mesh.engine.vllm_described import told_dtype

    flags, model = tuple(record.fields["ranks"][0]["argv"]), str(record.fields["model"])
    if spec.model not in (None, model):
        raise LaunchError(f"launch record {path}: of model {model!r}, told is {spec.model!r}")
    dtype = told_dtype(flags)
    if dtype is not None and spec.dtype not in (None, dtype):
        raise LaunchError(f"launch record {path}: launched with --dtype {dtype}, told is {spec.dtype}")
    return replace(spec, model=model, flags=flags)


def _check_weights(weights: Path, record: LaunchRecord, path: Path) -> None:
    """Raises LaunchError, with the first file that is other than on the nodes where their listing is at hand."""
    from mesh.launch.marks import large, listing
    from mesh.schema.ids import ContentId

    rank = record.fields["ranks"][0]
    found = rank["found"].get("weights")
    if found is None:
        return
    here = listing(weights)
    if ContentId.of_bytes(here.encode()).text == found:
        return
    if large(weights):
        here = listing(weights, full=True)  # the record does not say which of both was asked for
        if ContentId.of_bytes(here.encode()).text == found:
            return
    there = _beside(path, str(rank["node"]), found)
    ours = set(here.splitlines())
    other = sorted({line.partition(" ")[2] for line in ours ^ set(there)}) if there is not None else []
    named = f": {other[0]}" if other else ""
    raise LaunchError(f"launch record {path}: {weights} is not the model that was found on {rank['node']}{named}")


def _beside(path: Path, node: str, digest: str) -> list[str] | None:
    """The listing that the launcher kept beside its record, where it is there and the one that is meant."""
    from mesh.launch.toml_file import read_bounded
    from mesh.schema.ids import ContentId

    try:
        data = read_bounded(path.with_name(f"weights-{node}.txt"))
    except OSError:
        return None
    return data.decode(errors="replace").splitlines() if ContentId.of_bytes(data).text == digest else None


def check_started(engine: ServingEngine, spec: EngineSpec, record: LaunchRecord, path: Path) -> None:
    """Hold the running backend to its record. Raises LaunchError for another model; another version is told."""
    model, version = str(record.fields["model"]), record.fields.get("engine_version")
    if not isinstance(spec, VllmSpec) and engine.recipe_id != model:
        raise LaunchError(f"launch record {path}: of model {model!r}, the backend serves {engine.recipe_id!r}")
    running = engine.backend_id.split("/")[1].removeprefix("told:")
    if isinstance(spec, VllmSpec) and version is not None and running != version:
        note(f"launch record {path}: drift: its recipe is for version {version}, {running} is running")
