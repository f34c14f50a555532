"""The house keeps its order: imports point down, each module imports alone, and what has one room stays in it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mesh"

# Rooms of one floor do not import each other; a room imports from lower floors only.
FLOORS = (
    ("errors",),
    ("schema",),
    ("identity",),
    ("grant", "blueprint", "runtime"),
    ("ledger", "engine", "meter", "launch"),
    ("replay", "steward"),
    ("gateway",),
    ("cli",),
)
FLOOR_OF = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}

# Third-party modules that have one place.
PLACES = {
    "aiohttp": ("mesh/gateway/",),
    "pynvml": ("mesh/meter/nvml.py",),
    "nacl": ("mesh/schema/envelope.py",),
    "cryptography": ("mesh/blueprint/signature.py",),
    "xllamacpp": ("mesh/engine/",),
    "numpy": ("mesh/engine/",),
    "jinja2": ("mesh/engine/",),
    "rich": ("mesh/cli/",),
    "sqlite3": ("mesh/ledger/",),
    "psutil": ("mesh/meter/",),
    "uvloop": ("mesh/cli/loop.py",),
    "msgspec": ("mesh/schema/", "mesh/engine/vllm_stream.py"),
    "pydantic": (
        "mesh/gateway/config.py",
        "mesh/launch/config.py",
        "mesh/launch/recipe.py",
        "mesh/launch/toml_file.py",
        "mesh/runtime/",
    ),
    "asyncssh": ("mesh/launch/ssh.py",),
    "yaml": ("mesh/launch/",),
    "tomlkit": ("mesh/launch/",),
}


@cache
def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = frozenset(dotted(path) for path in modules())


@cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from mesh.schema import canonical` names a module, and not what its package holds
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            submodules = [name for name in named if name in MODULES]
            yield from submodules
            if len(submodules) < len(named):
                yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path: Path) -> None:
    room = dotted(path).split(".")[1] if "." in dotted(path) else None
    if room is None:
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "mesh" or len(parts) < 2 or parts[1] not in FLOOR_OF or parts[1] == room:
            continue
        assert FLOOR_OF[parts[1]] < FLOOR_OF[room], f"{dotted(path)} imports {name}, which is not below it"


def test_every_room_has_a_floor() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"} | {"errors"}
    assert rooms <= FLOOR_OF.keys()


def test_imports_make_no_circle() -> None:
    graph = {dotted(path): {n for n in imports(path) if n in MODULES} - {dotted(path)} for path in modules()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_third_party_modules_stay_in_their_rooms(path: Path) -> None:
    where = path.relative_to(ROOT).as_posix()
    for name in imports(path):
        places = PLACES.get(name.split(".")[0])
        assert places is None or where.startswith(places), f"{where} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_only_commands_read_the_environment(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("getenv", "environ"):
            pytest.fail(f"{dotted(path)}:{node.lineno} reads the environment")


@pytest.mark.deep
def test_every_module_imports_alone_without_a_warning() -> None:
    """In one interpreter, which has what others made and forgets what is ours between one module and the next."""
    names = [dotted(path) for path in modules() if path.name != "__main__.py"]
    theirs = {name for path in modules() for name in imports(path) if name.split(".")[0] != "mesh"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE, ",".join(sorted(theirs)), *names],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout.split()[-1:]
    assert done.stdout.split() == names


ALONE = """
import importlib, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
assert not any(name.partition(".")[0] == "mesh" for name in sys.modules)
for name in sys.argv[2:]:
    print(name, flush=True)
    importlib.import_module(name)
    for known in [known for known in sys.modules if known.partition(".")[0] == "mesh"]:
        del sys.modules[known]
"""
