"""Levers: the flags and environment variables by which an engine is set, and whether its version reads them.

A table is of one version of one engine (`lower-case engine-version.json` in lever_tables): a flag list that another
version has proves nothing. What no table covers is said to be unchecked, and never taken for right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Self

from mesh.launch.finding import Finding, error, note, warning

TABLES = "lever_tables"
_FLAG = re.compile(r"--?[A-Za-z]")
_HELP_NAME = re.compile(r"(?:^|, )(-{1,2}[A-Za-z][\w.-]*)")
# How the launcher itself sets an engine: these are derived from fields of the recipe and the cluster.
DERIVED = {
    "vllm": {
        "--host": "host",
        "--port": "port",
        "--tensor-parallel-size": "tensor_parallel_size",
        "--pipeline-parallel-size": "pipeline_parallel_size",
        "--nnodes": "required_nodes",
        "--node-rank": "cluster",
        "--master-addr": "cluster",
        "--master-port": "cluster",
        "--headless": "cluster",
        "--distributed-executor-backend": "distributed_backend",
        "--served-model-name": "served_model_name",
        "--revision": "model_revision",
        "--model": "model",
    },
    "sglang": {
        "--host": "host",
        "--port": "port",
        "--tp-size": "tensor_parallel_size",
        "--nnodes": "required_nodes",
        "--node-rank": "cluster",
        "--dist-init-addr": "cluster",
        "--served-model-name": "served_model_name",
        "--revision": "model_revision",
        "--model-path": "model",
    },
    "llama.cpp": {"--host": "host", "--port": "port", "--model": "model", "--alias": "served_model_name"},
    "mesh": {
        "--host": "host",
        "--port": "port",
        "--gguf": "model",
        "--reference": "model",
        "--name": "served_model_name",
    },
}
# Spellings that hold in every version: two levers by other names are one.
ALIASES = {
    "vllm": {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"},
    "sglang": {
        "--tp": "--tp-size",
        "--tensor-parallel-size": "--tp-size",
        "--model": "--model-path",
        "--nccl-init-addr": "--dist-init-addr",
    },
    "llama.cpp": {"-m": "--model", "-a": "--alias", "-c": "--ctx-size", "-ngl": "--n-gpu-layers"},
    "mesh": {},
}


@dataclass(frozen=True, slots=True)
class Lever:
    """`name` is the flag's first spelling in the table, `written` as it stands in the recipe. `values` are what follows
    it, none for a switch."""

    name: str
    written: str
    values: tuple[str, ...]

    @property
    def shown(self) -> str:
        return " ".join((self.written, *self.values))


@dataclass(frozen=True, slots=True)
class LeverTable:
    """`flags` maps each spelling to the first one; `environment` are the variables that are read; `same` says which
    variable and which flag set one thing."""

    engine: str
    version: str
    prefix: str
    flags: Mapping[str, str]
    environment: frozenset[str]
    same: Mapping[str, str]

    @classmethod
    def of(cls, text: str) -> Self:
        table = json.loads(text)
        flags = {name: row[0] for row in table["flags"] for name in row}
        return cls(
            table["engine"],
            table["version"],
            table["prefix"],
            flags,
            frozenset(table["environment"]),
            dict(table["same"]),
        )

    def canonical(self, flag: str) -> str | None:
        """The first spelling of the lever that a parser of this version would take the flag for."""
        if flag in self.flags:
            return self.flags[flag]
        # argparse takes a prefix of one long name for the name
        near = {first for name, first in self.flags.items() if name.startswith(flag)} if flag.startswith("--") else ()
        return next(iter(near)) if len(near) == 1 else None


@lru_cache
def known_versions() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for entry in files("mesh.launch").joinpath(TABLES).iterdir():
        if entry.name.endswith(".json"):
            engine, _, version = entry.name.removesuffix(".json").rpartition("-")
            found.setdefault(engine, []).append(version)
    return {engine: tuple(sorted(versions)) for engine, versions in found.items()}


@lru_cache
def table_of(engine: str, version: str) -> LeverTable | None:
    if version not in known_versions().get(engine, ()):
        return None
    text = files("mesh.launch").joinpath(TABLES, f"{engine}-{version}.json").read_text(encoding="utf-8")
    return LeverTable.of(text)


def read_levers(args: Sequence[str], engine: str, table: LeverTable | None) -> tuple[list[Lever], list[str]]:
    """The levers of a command line, and the words that belong to none."""
    levers: list[Lever] = []
    loose: list[str] = []
    for word in args:
        if _FLAG.match(word):
            flag, equals, value = word.partition("=")
            levers.append(Lever(spelled(flag, engine, table), flag, (value,) if equals else ()))
        elif levers:
            levers[-1] = Lever(levers[-1].name, levers[-1].written, (*levers[-1].values, word))
        else:
            loose.append(word)
    return levers, loose


def spelled(flag: str, engine: str, table: LeverTable | None) -> str:
    """One name for every spelling of a flag: dashes for underscores, what a dot sets left out."""
    base = flag.partition(".")[0]
    if engine == "vllm" and re.fullmatch(r"-O[0-9]?", base):
        base = "--optimization-level"  # its parser's own shorthand: -O3, or -O 3
    if base.startswith("--"):
        base = "--" + base[2:].replace("_", "-")
    base = ALIASES[engine].get(base, base)
    return (table.canonical(base) if table is not None else None) or base


def lever_findings(
    engine: str,
    version: str | None,
    args: Sequence[str],
    env: Mapping[str, str],
    allowed: Iterable[str] = (),
    derived: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What is in two places, and what the engine's version does not read. `derived` are the flags that the launcher
    makes itself, with their values. What is in `allowed` is noted where it would be an error."""
    table = None if version is None else table_of(engine, version)
    levers, loose = read_levers(args, engine, table)
    findings = [error("lever-loose", "args", f"{word!r} belongs to no flag") for word in loose[:8]]
    findings += _twice(engine, levers, derived or {})
    if table is None:
        findings.append(_unchecked(engine, version))
        return findings
    allow = set(allowed)
    for lever in levers:
        if table.canonical(lever.name) is None:
            findings.append(
                _unread(lever.written, f"{engine} {version} has no such flag", table.flags, lever.written, allow)
            )
    for name in env:
        if name.startswith(table.prefix) and name not in table.environment:
            findings.append(
                _unread(name, f"{engine} {version} does not read it", table.environment, f"env.{name}", allow)
            )
    for name, flag in table.same.items():
        if name in env:
            for lever in levers:
                if lever.name == flag:
                    findings.append(_two_places(lever, f"env.{name}", env[name]))
    return findings


def _unchecked(engine: str, version: str | None) -> Finding:
    known = ", ".join(known_versions().get(engine, ())) or "none"
    if version is None:
        return warning("levers-unchecked", "engine_version", f"not said, so its levers are not checked ({known} known)")
    return warning(
        "levers-unchecked",
        "engine_version",
        f"levers of {engine} {version} could not be checked: there is no table of that version, only of {known}",
    )


def _unread(name: str, fault: str, names: Iterable[str], where: str, allowed: set[str]) -> Finding:
    near = get_close_matches(name, list(names), n=1, cutoff=0.85)
    message = fault + (f"; {near[0]} is near" if near else "")
    if name in allowed:
        return note("lever-allowed", where, f"{message}: allowed, and named in the launch record")
    return error("lever-unread", where, message)


def _two_places(lever: Lever, where: str, value: str) -> Finding:
    if lever.values == (value,):
        return warning("lever-twice", lever.written, f"also set by {where}, to the same")
    return error("lever-clash", lever.written, f"{lever.shown!r}, and {where} says {value!r}: one lever, two values")


def _twice(engine: str, levers: Sequence[Lever], derived: Mapping[str, str]) -> list[Finding]:
    findings = []
    first: dict[str, Lever] = {}
    for lever in levers:
        if lever.name in derived:
            findings.append(_two_places(lever, f"the launcher ({DERIVED[engine][lever.name]})", derived[lever.name]))
        elif lever.name in DERIVED[engine] and DERIVED[engine][lever.name] in ("cluster", "required_nodes"):
            findings.append(error("lever-launcher", lever.written, "is the launcher's, made from the cluster"))
        earlier = first.setdefault(lever.name, lever)
        if earlier is not lever and "." not in lever.written:
            same = earlier.values == lever.values
            message = f"given twice: {earlier.shown!r} and {lever.shown!r}"
            findings.append(
                (warning if same else error)("lever-twice" if same else "lever-clash", lever.written, message)
            )
    return findings


def table_from_help(text: str, engine: str, version: str, prefix: str, environment: Iterable[str] = ()) -> LeverTable:
    """The table that an engine's own `--help` gives: lines that begin with a flag, its spellings joined by commas."""
    flags: dict[str, str] = {}
    for line in text.splitlines():
        head = re.split(r"\s{2,}", line.strip())[0]
        names = _HELP_NAME.findall(head) if line.strip().startswith("-") else []
        longs = [name for name in names if name.startswith("--")]
        for name in names:
            flags.setdefault(name, (longs or names)[0])
    return LeverTable(engine, version, prefix, flags, frozenset(environment), {})
