"""A state directory as `mesh serve` leaves it: three sealed serves of the reference engine, two of them kept."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance import regenerate
from mesh.cli.main import main
from mesh.engine.reference import ReferenceEngine
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import Sealed, SigningKey
from mesh.schema.ids import steward_text
from mesh.steward import keys
from mesh.steward.serves import SealedServe
from tests.support import vector_cases
from tests.support.stewards import KEY, PROMPT, Client, request, running

TRUSTED = steward_text(KEY.public)
STRANGER = steward_text(SigningKey(b"\x01" * 32).public)
YEAR_NS = 365 * 24 * 3600 * 10**9


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


Mesh = Callable[..., Result]


@pytest.fixture
def mesh(capsys: pytest.CaptureFixture[str]) -> Mesh:
    """Runs `mesh` in this process."""

    def run(*argv: str | Path) -> Result:
        capsys.readouterr()
        code = main([str(arg) for arg in argv])
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def trusted() -> str:
    """The steward's key, as --trust takes it."""
    return TRUSTED


@pytest.fixture
def stranger() -> str:
    return STRANGER


@dataclass(frozen=True)
class Served:
    """A state directory and what its serves' callers hold."""

    state: Path
    sealed: tuple[Sealed, ...]
    disclosures: tuple[Disclosure, ...]

    @property
    def envelope(self) -> bytes:
        return self.sealed[0].envelope


async def serve(folder: Path, count: int, *, recipe_id: str = "reference", **options: Any) -> list[SealedServe]:
    engine = ReferenceEngine(recipe_id)
    serves = []
    async with running(folder, **options) as steward:
        for _ in range(count):
            admitted = await steward.admit(request(), [engine], caller="caller")
            done = await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id(), prompt_text="hi")
            assert isinstance(done, SealedServe)
            serves.append(done)
        await steward.checkpoint()
    return serves


def make_state(folder: Path) -> list[SealedServe]:
    keys.load_or_create(folder / "key", random=lambda _: KEY.seed)
    kept = asyncio.run(serve(folder, 2, keep_ns=YEAR_NS))
    return kept + asyncio.run(serve(folder, 1))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("made") / "state"
    serves = make_state(folder)
    return Served(
        folder, tuple(serve.sealed for serve in serves), tuple(serve.disclosure(prompt="hi") for serve in serves)
    )


@pytest.fixture
def served(made: Served, tmp_path: Path) -> Served:
    """A copy of the state directory for one test."""
    state = tmp_path / "state"
    shutil.copytree(made.state, state)
    return Served(state, made.sealed, made.disclosures)


@pytest.fixture
def receipt_file(made: Served, tmp_path: Path) -> Path:
    path = tmp_path / "receipt.cbor"
    path.write_bytes(made.envelope)
    return path


@pytest.fixture
def serve_into() -> Callable[..., Any]:
    return serve


@pytest.fixture
def vectors_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mesh conformance regenerate` finds them made: that takes seconds, and is tested where they are made."""
    monkeypatch.setattr(regenerate, "tree", vector_cases.files)
