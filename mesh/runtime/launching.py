"""What the stricter of the two readers asks, the one that looks before a candidate runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from mesh.runtime.candidate import Candidate
from mesh.runtime.distribution import Archive, EmbeddedApplication, NativeArchive, OciContainer, PythonStandalone
from mesh.runtime.engine import Engine
from mesh.runtime.faults import Fault, Table, faults_of
from mesh.runtime.kinds import Natural, Positive, matching
from mesh.runtime.limits import (
    MAX_ACCELERATORS,
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_ARGUMENTS_BYTES,
    MAX_CASES,
    MAX_ENVIRONMENT_BYTES,
    MAX_STARTUP_S,
    MAX_VARIABLE_NAME_CHARS,
    MAX_VARIABLES,
)
from mesh.runtime.orchestration import LAUNCH_SHELLS, ExecReadiness

PLATFORMS: Final = ("linux/arm64", "linux/x86_64", "macos/arm64")
_PROCESSOR_DIGITS: Final = 4
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")


def _processors(text: str) -> Iterator[int]:
    """Raises ValueError for a range that ends before it begins, and for more digits than any machine's have."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if max(len(first), len(last)) > _PROCESSOR_DIGITS:
            raise ValueError(f"expected processors of at most {_PROCESSOR_DIGITS} digits")
        if int(last or first) < int(first):
            raise ValueError("expected ranges that do not end before they begin")
        yield from range(int(first), int(last or first) + 1)


def _check_processors(text: str) -> str:
    for _ in _processors(text):
        pass
    return text


Processors = Annotated[
    str, matching(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", "processors like 0-3,8"), AfterValidator(_check_processors)
]


class Container(Table):
    """The measured envelope, also of an engine that no container holds. `_gib` are GiB of the machine's memory."""

    memory_bytes: Positive
    shm_bytes: Natural
    min_available_gib: Natural
    runtime_min_available_gib: Natural
    startup_timeout_seconds: Annotated[int, Field(ge=1, le=MAX_STARTUP_S)]
    cpuset_cpus: Processors | None = None

    @property
    def processors(self) -> frozenset[int] | None:
        """Those that it names; None where it names none."""
        return None if self.cpuset_cpus is None else frozenset(_processors(self.cpuset_cpus))


class Serving(Table):
    max_connections: Positive
    max_active_requests: Positive
    max_context_tokens: Positive
    gate: dict[str, Any] | None

    def contradictions(self) -> Iterator[Fault]:
        if self.max_active_requests > self.max_connections:
            yield Fault("max_active_requests", f"expected at most max_connections, {self.max_connections}")


def launch_faults(candidate: Candidate) -> list[Fault]:
    """Why a candidate that may be packed would not launch; empty where it would."""
    return list(_faults(candidate))


def _faults(candidate: Candidate) -> Iterator[Fault]:
    target, engine = candidate.target, candidate.engine
    embedded = isinstance(engine.distribution, EmbeddedApplication)
    if not embedded and target.platform not in PLATFORMS:
        yield Fault("target.platform", f"expected one of {', '.join(PLATFORMS)}, got {target.platform!r}")
    if target.accelerator.count > MAX_ACCELERATORS:
        expected = f"expected at most {MAX_ACCELERATORS}"
        yield Fault("target.accelerator.count", f"{expected}, got {target.accelerator.count}")
    yield from _of_arguments(engine)
    yield from _of_environment(engine)
    yield from _of_paths(engine)
    yield from _of_envelope(candidate)
    if len(candidate.benchmark.contract.cases) > MAX_CASES:
        yield Fault("benchmark.contract.cases", f"expected at most {MAX_CASES}")
    yield from _of_commands(candidate)


def _of_arguments(engine: Engine) -> Iterator[Fault]:
    if len(engine.arguments) > MAX_ARGUMENTS:
        yield Fault("engine.arguments", f"expected at most {MAX_ARGUMENTS}, got {len(engine.arguments)}")
    for at, argument in enumerate(engine.arguments):
        if len(argument.encode()) > MAX_ARGUMENT_BYTES:
            yield Fault(f"engine.arguments[{at}]", f"over {MAX_ARGUMENT_BYTES} bytes")
        if "\0" in argument:
            yield Fault(f"engine.arguments[{at}]", "holds a NUL")
    if sum(len(argument.encode()) for argument in engine.arguments) > MAX_ARGUMENTS_BYTES:
        yield Fault("engine.arguments", f"over {MAX_ARGUMENTS_BYTES} bytes together")


def _of_environment(engine: Engine) -> Iterator[Fault]:
    environment = engine.environment
    if len(environment) > MAX_VARIABLES:
        yield Fault("engine.environment", f"expected at most {MAX_VARIABLES}, got {len(environment)}")
    for name, value in environment.items():
        if len(name) > MAX_VARIABLE_NAME_CHARS:
            yield Fault(f"engine.environment.{name[:80]}", f"a name over {MAX_VARIABLE_NAME_CHARS} characters")
        if _PRIVATE_KEY.search(value):
            yield Fault(f"engine.environment.{name[:80]}", "holds a private key")
        if "\0" in value:
            yield Fault(f"engine.environment.{name[:80]}", "holds a NUL")
    if sum(len(name.encode()) + len(value.encode()) for name, value in environment.items()) > MAX_ENVIRONMENT_BYTES:
        yield Fault("engine.environment", f"over {MAX_ENVIRONMENT_BYTES} bytes together")


def _of_paths(engine: Engine) -> Iterator[Fault]:
    distribution = engine.distribution
    if isinstance(distribution, OciContainer):
        return
    paths = {"entrypoint": distribution.entrypoint}
    archive: Archive | None = None
    match distribution:
        case NativeArchive():
            paths["upstream_executable"] = distribution.upstream_executable
            where, archive = "archive", distribution.archive
        case PythonStandalone():
            paths["requirements_lock"] = distribution.requirements_lock
            where, archive = "python.archive", distribution.python.archive
    if archive is not None:
        paths[f"{where}.strip_prefix"] = archive.strip_prefix
    for name, path in paths.items():
        if "." in path.split("/"):
            yield Fault(f"engine.distribution.{name}", f"expected a path without '.' segments, got {path!r}")


def _of_envelope(candidate: Candidate) -> Iterator[Fault]:
    for name, table in (("container", Container), ("serving", Serving)):
        try:
            table.model_validate(getattr(candidate, name))
        except ValidationError as e:
            yield from faults_of(e, under=name)
    shm = candidate.container.get("shm_bytes")
    if type(shm) is int:
        container = isinstance(candidate.engine.distribution, OciContainer)
        if container and candidate.target.platform.startswith("linux/") and shm == 0:
            yield Fault("container.shm_bytes", "expected more than 0 on linux")
        if not container and shm != 0:
            yield Fault("container.shm_bytes", f"expected 0 for a native engine, got {shm}")


def _of_commands(candidate: Candidate) -> Iterator[Fault]:
    tasks = candidate.orchestration.tasks if candidate.orchestration else []
    for at, task in enumerate(tasks):
        commands = {"command": task.command}
        if isinstance(task.readiness, ExecReadiness):
            commands["readiness.command"] = task.readiness.command
        for name, command in commands.items():
            if command and PurePosixPath(command[0]).name in LAUNCH_SHELLS:
                yield Fault(f"orchestration.tasks[{at}].{name}", "a shell or env is no program of a task")
