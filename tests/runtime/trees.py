"""Trees of files, and the pack of each as the standard library writes it by the rules of the format."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runtime.candidates import EMBEDDED, MACOS, PARALLEL, VLLM, release, runtime_json

Tree = Mapping[str, tuple[bytes, int]]  # path: content, mode

TREES: dict[str, Tree] = {
    "a candidate alone": {"runtime.json": (runtime_json(VLLM), 0o644)},
    "sizes and modes": {
        "runtime.json": (runtime_json(PARALLEL), 0o600), "empty": (b"", 0o644), "one": (b"1", 0o640),
        "block/short": (b"s" * 511, 0o644), "block/full": (b"f" * 512, 0o644), "block/over": (b"o" * 513, 0o664),
        "record": (b"r" * 10_240, 0o644), "bin/all": (b"#!\n", 0o755), "bin/owner": (b"#!\n", 0o700),
        "bin/group": (b"#!\n", 0o650),
    },
    "order": {
        "runtime.json": (runtime_json(MACOS), 0o644), "m/n": (b"1", 0o644), "m.n": (b"2", 0o644),
        "m-n/o": (b"3", 0o644), "m0": (b"4", 0o644), "N": (b"5", 0o644), "_m": (b"6", 0o644), "z/z/z": (b"7", 0o644),
        ".hidden": (b"8", 0o644), "runtime.json.txt": (b"9", 0o644),
    },
    "left out": {
        "runtime.json": (runtime_json(MACOS), 0o644), "release.json": (json.dumps(release()).encode(), 0o644),
        "benchmark.json": (b"{}", 0o644), "benchmark-of-us.json": (b"{}", 0o644),
        "letsinfer-runtime.json": (b"", 0o644),
        "deep/letsinfer-runtime.json": (b"", 0o644), ".DS_Store": (b"", 0o644), "deep/a.pyc": (b"", 0o644),
        "deep/a.pyo": (b"", 0o644), "before.letsinfer": (b"", 0o644), "deep/__pycache__/a": (b"", 0o644),
        ".git/HEAD": (b"", 0o644), "deep/release.json": (b"in", 0o644), "deep/benchmark.json": (b"in", 0o644),
    },
    "names": {
        "runtime.json": (runtime_json(EMBEDDED), 0o644), "h/" + "u" * 98: (b"100", 0o644),
        "h/" + "v" * 99: (b"101", 0o644), "w" * 70 + "/" + "x" * 70: (b"two parts", 0o644),
        "i/" + "y" * 200: (b"long", 0o755), "k/größe-数.bin": (b"beyond ASCII", 0o644),
        "k/" + "ß" * 60: (b"120 bytes", 0o644), "l/" + "é" * 99: (b"both", 0o644),
    },
}  # fmt: skip
_OUT = ("release.json", "benchmark.json", "benchmark-of-us.json", "before.letsinfer")
_OUT_ANYWHERE = ("letsinfer-runtime.json", ".DS_Store", "a.pyc", "a.pyo", "__pycache__", ".git")


def write_tree(root: Path, tree: Tree) -> Path:
    for name, (data, mode) in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    return root


@dataclass(frozen=True)
class Expected:
    """Digests are 64 hex digits."""

    descriptor: dict[str, Any]
    archive: bytes
    oci_manifest: bytes

    @property
    def descriptor_sha256(self) -> str:
        return _sha(_canonical(self.descriptor) + b"\n")

    @property
    def archive_sha256(self) -> str:
        return _sha(self.archive)

    @property
    def oci_manifest_sha256(self) -> str:
        return _sha(self.oci_manifest)


def expected_pack(tree: Tree) -> Expected:
    """Nothing of the package takes part in it."""
    candidate = json.loads(tree["runtime.json"][0])
    packed = {
        name: (data, 0o755 if mode & 0o111 else 0o644)
        for name, (data, mode) in sorted(tree.items())
        if name not in _OUT and not set(name.split("/")) & set(_OUT_ANYWHERE)
    }
    descriptor = {
        "artifact_schema_version": 6,
        "media_type": "application/vnd.letsinfer.runtime.v6+tar",
        "runtime_sha256": _sha(packed["runtime.json"][0]),
        "candidate": {
            "id": candidate["id"], "version": candidate["version"], "logical_model": candidate["logical_model"],
            "engine": candidate["engine"]["id"], "target": candidate["target"]["id"],
        },
        "files": [
            {"path": name, "bytes": len(data), "mode": mode, "sha256": _sha(data)}
            for name, (data, mode) in packed.items()
        ],
    }  # fmt: skip
    told = (_canonical(descriptor) + b"\n", 0o644)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (data, mode) in {"letsinfer-runtime.json": told, **packed}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return Expected(descriptor, out.getvalue(), _oci_manifest(candidate, out.getvalue()))


def _oci_manifest(candidate: dict[str, Any], archive: bytes) -> bytes:
    media = "application/vnd.letsinfer.runtime.v6+tar"
    config = _canonical({
        "candidate": candidate["id"], "media_type": media, "schema_version": 1, "version": candidate["version"],
    })  # fmt: skip
    layer = {"mediaType": media, "digest": f"sha256:{_sha(archive)}", "size": len(archive)}
    return _canonical({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.letsinfer.runtime.config.v1+json", "digest": f"sha256:{_sha(config)}",
            "size": len(config),
        },
        "layers": [layer | {"annotations": {"org.opencontainers.image.title": "runtime.letsinfer"}}],
        "annotations": {
            "ai.letsinfer.candidate": candidate["id"], "ai.letsinfer.version": candidate["version"],
            "org.opencontainers.image.source": "https://github.com/letsinferlabs/runtimes",
        },
    })  # fmt: skip


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
