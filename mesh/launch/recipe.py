"""A recipe: which model an engine serves, from which image, with which levers. `recipe.toml`, one in a folder.

engine, engine_version, model, model_revision, docker_image, deploy, args, [env], ...   what runs
required_nodes, solo, tensor_parallel_size, pipeline_parallel_size, distributed_backend  on how many nodes
before_serve, after_stop, [mods]            commands around it; `on_failure` is "abort" or "warn"
[[extra_mounts]], [composed_model], [[staging]]       what it reads
[pins]                                      what `mesh launch pin` resolved
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from mesh.errors import UsageError
from mesh.launch.toml_file import Table, parse_toml, read_bounded, validated

MAX_NODES = 8
MAX_VALUE_CHARS = 100_000  # of a variable: a kernel takes no word of a command line over 131,072 bytes
RUN_MARKER = "MESH_RUN"  # in the environment of every process of a run, its children's too
RECIPE_FILE = "recipe.toml"

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Content = Annotated[str, Field(pattern=r"^[^\x00]*$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
FileHash = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40})$")]
ImageDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


def _within(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} leads out of the folder")
    return path


PathPattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?._/-]+$", max_length=512), AfterValidator(_within)]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SHELL_LINE = re.compile(r"\s*(#|$)")


class Hook(Table):
    """A command on each node, or a script by the name that the package knows it under."""

    command: Text | None = None
    script: Text | None = None
    on_failure: Literal["abort", "warn"] = "abort"

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.command is None) == (self.script is None):
            raise ValueError("one of command and script says what runs")
        return self


def _hooks(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{"command": one} if isinstance(one, str) else one for one in value]


Hooks = Annotated[list[Hook], BeforeValidator(_hooks)]


class FromField(Table):
    from_: Literal["port"] = Field(alias="from")


def _env(value: Any) -> Any:
    # TOML has numbers, an environment only text: what people write without quotes means the same
    if not isinstance(value, Mapping):
        return value
    return {key: str(item) if type(item) in (int, float) else item for key, item in value.items()}


class Mount(Table):
    """A folder of the host in the container, or (`repo`) the folder of a model, named by a placeholder `{{name}}`."""

    alias: Text | None = None
    host: Text | None = None
    repo: Text | None = None
    subfolder: Text | None = None
    container: Text
    read_only: bool = False
    env: EnvName | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.repo is not None and (self.alias is not None or self.host is not None):
            raise ValueError("repo excludes alias and host: it is found in the model cache")
        if self.repo is None and self.alias is None and self.host is None:
            raise ValueError("names no source: one of alias, host and repo")
        if self.subfolder is not None and self.repo is None:
            raise ValueError("subfolder is of a repo")
        if self.repo is None and not self.container.startswith("/"):
            raise ValueError(f"container {self.container!r} is no absolute path")
        return self


class Mods(Table):
    commands: Hooks = []


class Source(Table):
    repo: Text
    glob: PathPattern | None = None
    exclude: list[PathPattern] = []


class Generated(Table):
    name: PathPattern
    content: Content


class LocalFile(Table):
    host: Text
    name: PathPattern | None = None


class ComposedModel(Table):
    mount: Text
    sources: Annotated[list[Source], Field(min_length=1)]
    files: list[Generated] = []
    local_files: list[LocalFile] = []


class Staging(Table):
    """`hub-mirror` copies repos of the model cache to `dst` on each node. `sparse-rows` is a plug-in's."""

    kind: Literal["hub-mirror", "sparse-rows"]
    dst: Text
    repos: list[Text] = []
    skip: list[Text] = []
    min_free: Annotated[str, Field(pattern=r"^[0-9]{1,6}(G|T|%)$")] | None = None
    format: Literal["packed", "sparse-copy"] | None = None

    @model_validator(mode="after")
    def _format(self) -> Self:
        if self.format is not None and self.kind != "sparse-rows":
            raise ValueError("format is of sparse-rows")
        return self


class Build(Table):
    versions: dict[EnvName, Text] = {}


class Pins(Table):
    """What `pin` resolved: the commit behind the model's name, its files, and the image's digest."""

    model_revision: Commit | None = None
    model_files: dict[Text, FileHash] = {}
    image: ImageDigest | None = None


def _plain_repo(model: str) -> str:
    if model.count("@") > 1:
        raise ValueError("more than one @ in it")
    return model


class Recipe(Table):
    engine: Literal["vllm", "sglang", "llama.cpp", "mesh"]
    engine_version: Text | None = None  # whose levers `args` and [env] are held to
    docker_image: Text | None = None
    model: Annotated[Text, AfterValidator(_plain_repo)]
    model_revision: Text | None = None
    served_model_name: Text | None = None
    parent_model: Text | None = None
    archived: bool = False
    host: Text = "0.0.0.0"  # noqa: S104 - where the engine listens on its own node; clients come from other hosts
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    required_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] | None = None
    solo: bool = False
    deploy: Literal["docker", "tmux"] = "docker"
    venv: Text | None = None
    venv_setup: list[Text] = []
    venv_setup_script: Text | None = None
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    pipeline_parallel_size: Annotated[int, Field(ge=0, le=1024)] = 1  # 0: as many as there are nodes
    distributed_backend: Literal["mp", "ray"] = "mp"
    shm_size: Annotated[str, Field(pattern=r"^[0-9]{1,9}[bkmgBKMG]{0,2}$")] | None = None
    entrypoint: list[Text] = []
    docker_image_dir: Text | None = None
    build_profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    build: Build = Build()
    before_serve: Hooks = []
    after_stop: Hooks = []
    args: list[Text] = []
    allowed_levers: list[Text] = []  # unknown to the engine and meant so; every launch record names them
    extra_mounts: list[Mount] = []
    mods: Mods = Mods()
    env: Annotated[dict[EnvName, str | FromField], BeforeValidator(_env)] = {}
    composed_model: ComposedModel | None = None
    staging: list[Staging] = []
    pins: Pins = Pins()
    origins: dict[Text, Text] = {}  # where an importer found each value: it moves nothing, and reports show it

    @field_validator("venv_setup", mode="before")
    @classmethod
    def _lines(cls, value: Any) -> Any:
        return shell_lines(value) if isinstance(value, str) else value

    @field_validator("env")
    @classmethod
    def _carried(cls, env: dict[str, Any]) -> dict[str, Any]:
        if RUN_MARKER in env:
            raise ValueError(f"has {RUN_MARKER}, which is the launcher's own: by it is found what it started")
        for name, value in env.items():
            if isinstance(value, str) and ("\x00" in value or len(value) > MAX_VALUE_CHARS):
                raise ValueError(
                    f"the value of {name} has {len(value)} characters, expected {MAX_VALUE_CHARS} at most and no zero"
                )
        return env

    @property
    def repo(self) -> str:
        """The model's name without a revision."""
        return self.model.partition("@")[0]

    @property
    def revision(self) -> str | None:
        """What the recipe pins the model to, however it says so; None where it floats."""
        return self.pins.model_revision or self.model_revision or (self.model.partition("@")[2] or None)

    @property
    def local_model(self) -> bool:
        """Whether `model` is a path and not a repository's name."""
        return self.model.startswith(("/", "~", "./")) or self.model.endswith(".gguf") or self.engine == "mesh"

    @property
    def image(self) -> str | None:
        """The image as it is run: by digest where one is known. A digest in `docker_image` wins over its tag, and
        over [pins], which was resolved from an earlier text."""
        if self.docker_image is None or "@" in self.docker_image or self.pins.image is None:
            return None if self.docker_image is None else without_tag(self.docker_image)
        return f"{without_tag(self.docker_image, force=True)}@{self.pins.image}"


def without_tag(image: str, *, force: bool = False) -> str:
    """An image's name without the tag that a digest makes superfluous. A colon before a slash is a registry's port."""
    name, at, digest = image.partition("@")
    if not at and not force:
        return image
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}{at}{digest}"


def shell_lines(text: str) -> list[str]:
    """Commands of a block, one a line, blank lines and comments left out, a trailing backslash joining two."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line.strip() for line in joined.split("\n") if not _SHELL_LINE.match(line)]


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe and the bytes it was read from. `digest` is their SHA-256, in hex."""

    name: str
    path: Path
    data: bytes
    recipe: Recipe

    @property
    def digest(self) -> str:
        return sha256(self.data).hexdigest()

    @classmethod
    def of(cls, data: bytes, path: Path) -> Self:
        """Raises UsageError naming every key at fault."""
        recipe = validated(Recipe, parse_toml(data, str(path)), str(path))
        return cls(recipe_name(path), path, data, recipe)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Of a file, or of the `recipe.toml` in a folder. Raises UsageError, OSError."""
        if path.is_dir():
            path = path / RECIPE_FILE
        return cls.of(read_bounded(path), path)


def recipe_name(path: Path) -> str:
    """The name of the recipe that is in a file: its folder's, or its own where it is no `recipe.toml`. Containers and
    ledgers are called by it. Raises UsageError for what cannot be one."""
    name = path.absolute().parent.name if path.name == RECIPE_FILE else path.stem
    if not _NAME.match(name):
        raise UsageError(
            f"{path}: {name[:80]!r} is no name of a recipe: expected letters, digits, '.', '_' and '-', 1 to 100 of "
            "them, the first a letter or digit"
        )
    return name


def find_recipe(name: str, sources: list[Path]) -> Path:
    """The recipe's file: `name` as a path, or a folder of that name in one of `sources`, the first of which wins.
    Raises UsageError saying where was looked."""
    path = Path(name)
    if path.suffix == ".toml" or "/" in name or (path / RECIPE_FILE).is_file():
        return path / RECIPE_FILE if path.is_dir() else path
    for source in sources:
        if (source / name / RECIPE_FILE).is_file():
            return source / name / RECIPE_FILE
    looked = ", ".join(str(source) for source in sources) or "nowhere"
    raise UsageError(f"recipe {name[:80]!r}: no folder of that name with a {RECIPE_FILE} in {looked}")
