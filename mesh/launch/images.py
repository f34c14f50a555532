"""An image of our own: the folder that it is built from, its pins put together, and the checksum that names both.

docker-images/NAME/Dockerfile, versions.env (KEY=VALUE, each an ARG of the Dockerfile), profiles/PROFILE.env, anything
else that the build reads. Pins: the image's, over them the profile's, over them the recipe's [build.versions].
"""

from __future__ import annotations

import io
import re
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from mesh.errors import UsageError
from mesh.launch.image_names import IMAGES_DIR, image_name, image_tag
from mesh.launch.recipe import RecipeFile, without_tag
from mesh.launch.toml_file import read_bounded

PINS_FILE = "versions.env"
PROFILES = "profiles"
DOCKERFILE = "Dockerfile"
CHECKSUM_LABEL = "mesh.checksum"
VERSION_CHARS = 12
MAX_CONTEXT_BYTES = 1 << 30
_LEFT_OUT = (".git",)  # moves without the sources moving
_PIN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z")
_ARG = re.compile(r"^\s*ARG\s+([A-Za-z_][A-Za-z0-9_]*)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Context:
    """What an image is built from. `ref` is the name that it gets, `pins` the build arguments and `origins` where each
    is from, `checksum` 64 hex digits over every file and the merged pins."""

    folder: Path
    ref: str
    pins: Mapping[str, str]
    origins: Mapping[str, str]
    checksum: str

    @property
    def version(self) -> str:
        return self.checksum[:VERSION_CHARS]

    def tar(self) -> bytes:
        """The folder with the merged pins in it: the same bytes from the same content, wherever it is made."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, mode, data in _entries(self.folder, self.pins):
                info = tarfile.TarInfo(name)
                info.mode = 0o755 if mode == "x" else 0o644
                if mode == "l":
                    info.type, info.linkname = tarfile.SYMTYPE, data.decode()
                    tar.addfile(info)
                else:
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return out.getvalue()


def images_root(file: RecipeFile) -> Path:
    """Beside the folder of recipes that the recipe is in."""
    path = file.path
    return (path.parent.parent.parent if path.name == "recipe.toml" else path.parent) / IMAGES_DIR


def context_folder(file: RecipeFile) -> Path | None:
    """The folder that the recipe's image is built from: the one that it names, else the one of its own name. None
    where neither is there."""
    folder = images_root(file) / (file.recipe.docker_image_dir or file.name)
    return folder if folder.is_dir() else None


def is_built(file: RecipeFile) -> bool:
    """Whether the recipe runs an image of a folder, and not one that a registry has under a digest."""
    recipe = file.recipe
    image = recipe.docker_image
    if recipe.deploy != "docker" or image is None or "@" in image or recipe.pins.image is not None:
        return False
    return context_folder(file) is not None


def context_of(file: RecipeFile) -> Context:
    """Raises UsageError for a folder or pins that nothing can be built from, OSError where it cannot be read."""
    recipe, folder = file.recipe, context_folder(file)
    where = f"recipe {file.name}"
    if recipe.docker_image is None:
        raise UsageError(f"{where}: docker_image: missing, and the image is named by it")
    if folder is None:
        raise UsageError(f"{where}: no folder {recipe.docker_image_dir or file.name!r} in {images_root(file)}")
    if not (folder / DOCKERFILE).is_file():
        raise UsageError(f"{folder}: no {DOCKERFILE} in it")
    pins, origins = merged_pins(folder, recipe.build_profile, recipe.build.versions)
    checksum = checksum_of(folder, pins)
    image = recipe.docker_image.partition("@")[0]
    named = image if image_tag(image) is not None and "@" not in recipe.docker_image else None
    ref = named or f"{without_tag(image, force=True)}:{checksum[:VERSION_CHARS]}"
    return Context(folder, ref, pins, origins, checksum)


def merged_pins(
    folder: Path, profile: str | None, versions: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The pins in force and where each is from. Raises UsageError for a key that the image does not have, or that its
    Dockerfile does not take: it would change nothing and look as if it did."""
    base = _pins_of(folder / PINS_FILE) if (folder / PINS_FILE).is_file() else {}
    pins, origins = dict(base), dict.fromkeys(base, PINS_FILE)
    over: list[tuple[str, Mapping[str, str]]] = []
    if profile is not None:
        path = folder / PROFILES / f"{profile}.env"
        if not path.is_file():
            known = ", ".join(sorted(one.stem for one in (folder / PROFILES).glob("*.env"))) or "none"
            raise UsageError(f"build_profile {profile!r}: no such profile in {folder / PROFILES}; there are {known}")
        over.append((f"profile {profile}", _pins_of(path)))
    over.append(("build.versions", versions))
    for origin, values in over:
        for key, value in values.items():
            if key not in base:
                raise UsageError(f"{origin}: {key}: not a pin of {folder / PINS_FILE}, which has {_list(base)}")
            pins[key], origins[key] = value, origin
    taken = set(_ARG.findall((folder / DOCKERFILE).read_text(encoding="utf-8", errors="replace")))
    for key in pins:
        if key not in taken:
            raise UsageError(f"{folder / PINS_FILE}: {key}: no ARG of its {DOCKERFILE}, which takes {_list(taken)}")
    return dict(sorted(pins.items())), origins


def _list(names: Mapping[str, str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _pins_of(path: Path) -> dict[str, str]:
    pins: dict[str, str] = {}
    for number, raw in enumerate(read_bounded(path).decode("utf-8", errors="replace").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _PIN.match(line)
        if found is None:
            raise UsageError(f"{path}: line {number}: {line[:80]!r} is no KEY=VALUE")
        value = found[2].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if found[1] in pins:
            raise UsageError(f"{path}: line {number}: {found[1]} again")
        pins[found[1]] = value
    return pins


def checksum_of(folder: Path, pins: Mapping[str, str]) -> str:
    """SHA-256 over a line `mode NUL path NUL sha256-in-hex LF` for each file, sorted by the path's bytes. The mode is x
    for what may be executed, l for a link (whose content is where it leads), - otherwise. The pins file counts as the
    merged pins, a line KEY=VALUE each, sorted."""
    hasher = sha256()
    for name, mode, data in _entries(folder, pins):
        hasher.update(b"\0".join((mode.encode(), name.encode(), sha256(data).hexdigest().encode())) + b"\n")
    return hasher.hexdigest()


def _entries(folder: Path, pins: Mapping[str, str]) -> list[tuple[str, str, bytes]]:
    """Every file of the folder: its path in it, its mode, its bytes."""
    found: dict[str, tuple[str, bytes]] = {}
    size = 0
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if name.parts[0] in _LEFT_OUT or (path.is_dir() and not path.is_symlink()):
            continue
        status = path.lstat()
        size += status.st_size
        if size > MAX_CONTEXT_BYTES:
            raise UsageError(f"{folder}: over {MAX_CONTEXT_BYTES} bytes: large files are fetched by the build")
        if stat.S_ISLNK(status.st_mode):
            found[name.as_posix()] = ("l", str(path.readlink()).encode())
        elif stat.S_ISREG(status.st_mode):
            found[name.as_posix()] = ("x" if status.st_mode & 0o111 else "-", path.read_bytes())
        else:
            raise UsageError(f"{path}: neither a file nor a link")
    if pins:
        found[PINS_FILE] = ("-", "".join(f"{key}={value}\n" for key, value in pins.items()).encode())
    ordered = sorted(found.items(), key=lambda one: one[0].encode())
    return [(name, mode, data) for name, (mode, data) in ordered]


def pushed_ref(base: str, ref: str, version: str) -> str:
    """What an image is called at the registry: the tag is its content's, so that it never moves."""
    return f"{base.rstrip('/')}/{image_name(ref)}:{version}"
