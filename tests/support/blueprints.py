"""Blueprints as an operator makes them: keys, a certificate, a list of revocations, signed files, by the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MESH = (sys.executable, "-m", "mesh.cli.main")
LATER = "2100-01-01T00:00:00Z"


def mesh(*arguments: str | Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    words = [str(word) for word in arguments]
    words.insert(words.index("--") if "--" in words else len(words), "--json")  # what follows -- is for the engine
    done = subprocess.run(
        [*MESH, *words], capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def made(*arguments: str | Path) -> dict[str, Any]:
    code, told = mesh("blueprint", *arguments)
    assert code == 0, told
    return told


@dataclass(frozen=True)
class Signers:
    """A root, a signer that it vouches for, and its empty list, in `folder`."""

    folder: Path

    @classmethod
    def in_(cls, folder: Path) -> Signers:
        folder.mkdir(mode=0o700)
        for name in ("root", "signer"):
            made("keygen", "--out", folder / name)
        made("certify", "--key", folder / "root", "--subject", folder / "signer.pub", "--label", "a signer",
             "--not-after", LATER, "--out", folder / "cert")  # fmt: skip
        made("revoke", "--key", folder / "root", "--not-after", LATER, "--out", folder / "revoked")
        return cls(folder)

    @property
    def trusted(self) -> tuple[str | Path, ...]:
        return ("--blueprint-root", self.folder / "root.pub", "--blueprint-revoked", self.folder / "revoked")

    def sign(self, preview: Path, out: Path) -> str:
        """The blueprint's id."""
        told = made("sign", preview, "--key", self.folder / "signer", "--cert", self.folder / "cert", "--out", out)
        blueprint_id: str = told["blueprint_id"]
        return blueprint_id

    def build(self, out: Path, *flags: str | Path, last: tuple[str, ...] = ()) -> str:
        """A signed file; its id. What is `last` is for the engine."""
        preview = out.with_suffix(".preview")
        made("build", *flags, "--out", preview, *last)
        return self.sign(preview, out)
