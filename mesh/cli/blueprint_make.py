"""Making files: `mesh blueprint build`, `sign`, `lite` and `full`."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mesh.cli.blueprint_files import naming, opened, read_certificate, read_regular, read_secret_key
from mesh.cli.console import emit, note, say
from mesh.cli.engines import kind_of, spec_of
from mesh.cli.exits import ACCEPTED
from mesh.cli.governed import program
from mesh.cli.newfile import check_new, write_new
from mesh.cli.specs import GgufSpec, VllmSpec
from mesh.errors import KernelError, UsageError

if TYPE_CHECKING:
    from mesh.blueprint.body import Body, Evidence, Module
    from mesh.blueprint.container import Source

_MAX_EVIDENCE_BYTES = 1 << 16
_VLLM_SLOTS = 8  # the default of VllmConfig, spelled out
_HEX = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"https://[^/\s]+")


def run_build(args: argparse.Namespace) -> int:
    from mesh.blueprint.body import blueprint_id, encode_body
    from mesh.blueprint.packing import preview

    if kind_of(args) not in ("gguf", "vllm_managed"):
        raise UsageError("name what it is of: --gguf FILE, or --vllm-managed DIR for a vLLM server of our own")
    spec = spec_of(args)
    assert isinstance(spec, (GgufSpec, VllmSpec))
    check_new(args.out)
    lineage, revision = _place(args.after)
    environment = _environment(args.env)
    told = {"lineage": lineage, "revision": revision, "environment": environment, "title": args.title}
    body = _body(spec, evidence=[_evidence(path) for path in args.evidence], **told)
    write_new(args.out, [preview(body)])
    made = blueprint_id(encode_body(body))
    if args.json:
        emit({"blueprint_id": f"sha256:{made.hex()}", "signed": False, "out": str(args.out), **_counts(body)})
    else:
        say(f"blueprint  sha256:{made.hex()}")
        for name, value in _counts(body).items():
            say(f"{name:<9}  {value}")
        note("a preview: it is not signed, and nothing serves under it until it is (mesh blueprint sign)")
    return ACCEPTED


def _body(spec: GgufSpec | VllmSpec, *, title: str | None, **told: Any) -> Body:
    from mesh.cli.starting import gguf_config

    if isinstance(spec, GgufSpec):
        config = gguf_config(spec, None)
        from mesh.engine.gguf_blueprint import body_of
        from mesh.identity.model import read_model

        return body_of(read_model(spec.path), config, name=title or config.recipe_id, **told)
    if spec.chat_template is not None or spec.tokenizer is not None:
        raise UsageError("--chat-template and --tokenizer: a blueprint of a folder takes both from the folder")
    from mesh.engine.vllm_blueprint import folder_body

    assert spec.weights is not None
    served = spec.name or spec.weights.resolve().name
    return folder_body(
        spec.weights, executable=program(spec.executable), name=title or served, served=served,
        slots=spec.slots or _VLLM_SLOTS, device=spec.device, flags=spec.flags, **told,
    )  # fmt: skip


def _counts(body: Body) -> dict[str, int]:
    return {
        "layers": body.checkpoint.layers, "nodes": len(body.circuit.nodes), "edges": len(body.circuit.edges),
        "weights": len(body.circuit.weights), "kernels": len(body.kernels), "arms": len(body.plan),
    }  # fmt: skip


def _place(after: Path | None) -> tuple[bytes, int]:
    """The lineage and revision of what comes after the blueprint in a file, or of a first one."""
    from mesh.blueprint.verification import read_unverified

    if after is None:
        return os.urandom(16), 1
    with opened(after) as container:
        body = read_unverified(container).body
        return body.lineage, body.revision + 1


def _environment(given: Iterable[str]) -> dict[str, str]:
    """Raises UsageError, KernelError."""
    from mesh.blueprint.settings import check_loaded

    environment: dict[str, str] = {}
    for text in given:
        name, found, value = text.partition("=")
        if not found:
            raise UsageError(f"--env {text[:80]!r}: expected NAME=VALUE")
        if name in environment:
            raise UsageError(f"--env {name[:80]}: given twice")
        environment[name] = value
    check_loaded(environment)
    return environment


def _evidence(path: Path) -> Evidence:
    from mesh.blueprint.body import Evidence

    data = read_regular(path, _MAX_EVIDENCE_BYTES)
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    names = ("kind", "record", "engine_commit", "engine_binary", "argv", "env")
    if (
        not isinstance(told, dict)
        or sorted(told) != sorted(names)
        or not all(type(one) is str for one in told.values())
    ):
        raise UsageError(f"{path}: expected a JSON object of the texts {', '.join(names)}")
    for name in ("record", "engine_binary", "argv", "env"):
        if not _HEX.fullmatch(told[name]):
            raise UsageError(f"{path}: {name}: expected a SHA-256 of 64 lower-case hex digits")
        told[name] = bytes.fromhex(told[name])
    return Evidence(**told)


def run_sign(args: argparse.Namespace) -> int:
    from mesh.blueprint.packing import signed
    from mesh.blueprint.verification import read_unverified

    key, chain = read_secret_key(args.key), [read_certificate(path) for path in args.cert]
    check_new(args.out)
    with opened(args.file) as container:
        blueprint = read_unverified(container)  # nobody signs what nobody can read
        write_new(args.out, signed(container, key, chain))
    return _made(args, blueprint.id, f"signed by {chain[0].label}")


def run_lite(args: argparse.Namespace) -> int:
    from mesh.blueprint.packing import lite
    from mesh.blueprint.verification import read_unverified

    check_new(args.out)
    with opened(args.file) as container:
        blueprint = read_unverified(container)
        sources = None if args.at is None else {one.digest: _at(args.at, one) for one in blueprint.body.modules}
        write_new(args.out, lite(container, sources))
    return _made(args, blueprint.id, "lite")


def _at(where: str, module: Module) -> Source:
    """A module in a folder of this name, or below an address. Raises UsageError for anything else."""
    from mesh.blueprint.container import Disk, Remote

    if _ADDRESS.match(where):
        return Remote(f"{where.rstrip('/')}/{quote(module.name)}")
    if not Path(where).is_absolute():
        raise UsageError(f"--at {where[:80]!r}: expected a folder from / on, or an address that begins with https://")
    return Disk(str(Path(where) / module.name))


def run_full(args: argparse.Namespace) -> int:
    from mesh.blueprint.packing import full
    from mesh.blueprint.verification import read_unverified

    check_new(args.out)
    with opened(args.file) as container:
        blueprint = read_unverified(container)
        folders = [args.kernels] if args.kernels is not None else []

        def find(module: Module, source: Source) -> Path:
            return found(module, source, folders)

        write_new(args.out, _named(args.file, full(container, blueprint, find)))
    return _made(args, blueprint.id, "full")


def found(module: Module, source: Source, folders: Iterable[Path]) -> Path:
    """Where a module of this name is: in one of `folders`, where its locator says, or in the installed engine. Raises
    KernelError."""
    from mesh.blueprint.container import Disk, Remote

    for folder in folders:  # as the engine lays them out, or all beside each other
        for path in (folder / module.name, folder / Path(module.name).name):
            if path.is_file():
                return path
    if isinstance(source, Disk):
        return Path(source.path)
    if isinstance(source, Remote):
        raise KernelError(
            f"kernel module {module.name!r}: at {source.url}: it is not fetched here; --kernels names a folder with it"
        )
    if module.origin.startswith("xllamacpp "):
        from mesh.engine.gguf_blueprint import compiled_module

        return compiled_module()
    raise KernelError(f"kernel module {module.name!r} of {module.origin}: not found; --kernels names a folder")


def _named(path: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    with naming(path):
        yield from chunks


def _made(args: argparse.Namespace, blueprint: bytes, form: str) -> int:
    if args.json:
        emit({"blueprint_id": f"sha256:{blueprint.hex()}", "form": form, "out": str(args.out)})
    else:
        say(f"blueprint  sha256:{blueprint.hex()}")
        note(f"{args.out}: {form}")
    return ACCEPTED
