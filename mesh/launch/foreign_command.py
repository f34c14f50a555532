"""A shell command that starts an engine, taken apart into the fields of a recipe and the flags that stay flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from mesh.launch.levers import read_levers

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)
_OPERATORS = frozenset((";", "&&", "||", "|", "&", "(", ")", "<", ">", ">>"))
_STARTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("vllm", "serve"), "vllm"),
    (("python3", "-m", "vllm.entrypoints.openai.api_server"), "vllm"),
    (("python", "-m", "vllm.entrypoints.openai.api_server"), "vllm"),
    (("sglang", "serve"), "sglang"),
    (("python3", "-m", "sglang.launch_server"), "sglang"),
    (("python", "-m", "sglang.launch_server"), "sglang"),
    (("llama-server",), "llama.cpp"),
)
# Flags that fields of a recipe hold, by the lever's name.
_WHOLE = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "--tp-size": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "--port": "port",
    "--nnodes": "required_nodes",
}
_WORDS = {
    "--host": "host",
    "--served-model-name": "served_model_name",
    "--alias": "served_model_name",
    "--revision": "model_revision",
    "--model": "model",
    "--model-path": "model",
    "--distributed-executor-backend": "distributed_backend",
}
_PLACE = ("--node-rank", "--master-addr", "--master-port", "--dist-init-addr", "--headless")


@dataclass(slots=True)
class Command:
    """`fields` are a recipe's; `args` what stays; `env` was set before it; `dropped` are flags that the launcher makes
    itself. `faults` says what could not be followed."""

    engine: str | None = None
    entrypoint: list[str] = field(default_factory=list)
    fields: dict[str, str | int] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def fill(text: str, values: Mapping[str, str]) -> tuple[str, set[str], set[str]]:
    """`{name}` replaced where a value is known; the names that were used, and those that nothing fills. Braces of JSON
    hold no such name."""
    used, missing = set(), set()

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name not in values:
            missing.add(name)
            return found[0]
        used.add(name)
        return values[name]

    return _PLACEHOLDER.sub(put, text), used, missing


def split(text: str) -> list[str]:
    """Words of one command, comments left out, operators apart. Raises ValueError."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    lines = [line for line in text.replace("\\\n", " ").split("\n") if not line.lstrip().startswith("#")]
    lexer = shlex.shlex(" ; ".join(line for line in lines if line.strip()), posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def read_command(words: list[str]) -> Command:
    """Take a command line apart."""
    command = Command()
    words = list(words)
    while words and words[-1] == ";":
        words.pop()
    while words:
        at = _ASSIGNMENT.match(words[0])
        if words[0] == "exec":
            words.pop(0)
        elif words[0] == "export" and len(words) > 1 and (at := _ASSIGNMENT.match(words[1])):
            command.env[at[1]] = at[2]
            del words[: 3 if words[2:3] == [";"] or words[2:3] == ["&&"] else 2]
        elif at:
            command.env[at[1]] = at[2]
            words.pop(0)
        else:
            break
    for start, engine in _STARTS:
        given = [words[0].rpartition("/")[2], *words[1 : len(start)]] if words else []
        if tuple(given) == start:
            command.engine, command.entrypoint = engine, words[: len(start)]
            words = words[len(start) :]
            break
    else:
        command.faults.append(f"begins with {' '.join(words[:3])!r}, which starts no engine that is known")
        return command
    operators = [word for word in words if word in _OPERATORS]
    if operators:
        command.faults.append(f"holds the shell's {operators[0]!r}, so more runs than one engine")
        return command
    _levers(command, words)
    return command


def _levers(command: Command, words: list[str]) -> None:
    assert command.engine is not None
    levers, loose = read_levers(words, command.engine, None)
    if loose:
        command.fields["model"] = loose[0]
        command.faults += [f"{word!r} belongs to no flag" for word in loose[1:]]
    for lever in levers:
        name = lever.name
        if name in _PLACE:
            command.dropped.append(lever.shown)
            continue
        target = _WHOLE.get(name) or _WORDS.get(name)
        value = lever.values[0] if len(lever.values) == 1 else None
        if target is None or value is None or (name in _WHOLE and not re.fullmatch(r"[0-9]{1,5}", value)):
            command.args += (
                [f"{lever.written}={lever.values[0]}"]
                if _joined(lever.written, lever.values, words)
                else [
                    lever.written,
                    *lever.values,
                ]
            )
            continue
        if target in command.fields and str(command.fields[target]) != value:
            command.faults.append(f"{lever.written} {value}: {target} is {command.fields[target]} already")
            continue
        if target == "distributed_backend" and value not in ("mp", "ray"):
            command.args += [lever.written, value]
            continue
        command.fields[target] = int(value) if name in _WHOLE else value


def _joined(written: str, values: tuple[str, ...], words: list[str]) -> bool:
    return len(values) == 1 and f"{written}={values[0]}" in words
