"""The tasks of a candidate that several nodes run as one: opaque names, commands, what shows that they are ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from mesh.runtime.document import canonical
from mesh.runtime.engine import RESERVED_PREFIX
from mesh.runtime.faults import Fault, Table
from mesh.runtime.kinds import Text, equal, matching, reserved
from mesh.runtime.limits import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_ARGUMENTS_BYTES,
    MAX_ENVIRONMENT_BYTES,
    MAX_NODES,
    MAX_ORCHESTRATION_BYTES,
    MAX_TASK_PORTS,
    MAX_VARIABLES,
)

# The reader that packs lets zsh through; the one that launches does not.
SHELLS: Final = frozenset(("sh", "bash", "dash", "fish", "ksh", "env"))
LAUNCH_SHELLS: Final = SHELLS | {"zsh"}


def _argv(argv: list[str]) -> list[str]:
    sizes = [len(argument.encode()) for argument in argv]
    if not argv:
        raise ValueError("expected a program")
    if len(argv) > MAX_ARGUMENTS:
        raise ValueError(f"expected at most {MAX_ARGUMENTS} arguments")
    if max(sizes) > MAX_ARGUMENT_BYTES or sum(sizes) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"expected at most {MAX_ARGUMENT_BYTES} bytes each and {MAX_ARGUMENTS_BYTES} together")
    if any("\0" in argument for argument in argv):
        raise ValueError("expected no NUL")
    program = argv[0]
    if not program.startswith("/") or ".." in program.split("/"):
        raise ValueError("expected the absolute path of a program, without '..'")
    if PurePosixPath(program).name in SHELLS:
        raise ValueError("a shell or env is no program of a task")
    return argv


Argv = Annotated[list[Text], AfterValidator(_argv)]


def _small(environment: dict[str, str]) -> dict[str, str]:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in environment.items())
    if len(environment) > MAX_VARIABLES or size > MAX_ENVIRONMENT_BYTES:
        raise ValueError(f"expected at most {MAX_VARIABLES} variables of {MAX_ENVIRONMENT_BYTES} bytes together")
    return environment


_Name = Annotated[str, matching(r"[A-Z][A-Z0-9_]{0,63}", "a variable's name in capitals")]
TaskEnvironment = Annotated[dict[_Name, str], AfterValidator(_small), AfterValidator(reserved(RESERVED_PREFIX))]


class ManifestReadiness(Table):
    kind: Literal["manifest"]


class ExecReadiness(Table):
    kind: Literal["exec"]
    command: Argv
    interval_seconds: Annotated[int, Field(ge=1, le=60)]
    timeout_seconds: Annotated[int, Field(ge=1, le=30)]
    retries: Annotated[int, Field(ge=1, le=600)]


class Task(Table):
    task_id: str
    launcher: Literal["runtime-command", "manifest"]
    port_count: Annotated[int, Field(ge=1, le=MAX_TASK_PORTS)]
    environment: TaskEnvironment
    readiness: Annotated[ManifestReadiness | ExecReadiness, Field(discriminator="kind")]
    command: Argv | None = None

    def contradictions(self) -> Iterator[Fault]:
        if self.launcher == "runtime-command":
            if self.command is None:
                yield Fault("command", "missing: launcher is runtime-command")
            if self.readiness.kind != "exec":
                yield Fault("readiness.kind", "expected exec where launcher is runtime-command")
        elif "command" in self.model_fields_set:
            yield Fault("command", "unknown field where launcher is manifest")


class Orchestration(Table):
    schema_version: Annotated[int, equal(3)]
    failure_policy: Literal["whole-group"]
    endpoint_owner: str
    startup_order: Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]
    tasks: Annotated[list[Task], Field(min_length=1, max_length=MAX_NODES)]

    def contradictions(self) -> Iterator[Fault]:
        names = [f"task-{at}" for at in range(len(self.tasks))]
        for at, task in enumerate(self.tasks):
            if task.task_id != names[at]:
                yield Fault(f"tasks[{at}].task_id", f"expected {names[at]!r}")
        if self.endpoint_owner not in names:
            yield Fault("endpoint_owner", "expected the id of a task")
        started = [name for phase in self.startup_order for name in phase]
        if sorted(started) != sorted(names):
            yield Fault("startup_order", "expected every task once, and nothing else")
        if len(canonical(self.model_dump(exclude_unset=True))) > MAX_ORCHESTRATION_BYTES:
            yield Fault("", f"over {MAX_ORCHESTRATION_BYTES} bytes")
