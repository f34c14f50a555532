"""What an engine says that it was started with, held against what the recipe asked for.

A flag may be taken and then overridden, a variable warned of once among a thousand lines: the engine's own log knows.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from mesh.launch.finding import Finding, error, note, warning
from mesh.launch.levers import read_levers

_ARGS = re.compile(r"non-default args: (\{.*\})")
# SGLang prints the call that would make its settings, all of them, after its own changes.
_SGLANG = re.compile(r"server_args=(ServerArgs\(.*\))")
_UNKNOWN = re.compile(r"Unknown vLLM environment variable detected: ([A-Za-z0-9_]+)")
PATTERN = "non-default args: |server_args=ServerArgs|Unknown vLLM environment variable detected"
MAX_LOG_BYTES = 65_536


def log_command(log: str) -> str:
    """Prints the lines in which an engine says what it runs with. `log` is a shell word, or a command after `|`."""
    return f"grep -aE {shlex.quote(PATTERN)} {log} | tail -c {MAX_LOG_BYTES}; true"


def effective_findings(engine: str, args: Sequence[str], said: str, allowed: Collection[str] = ()) -> list[Finding]:
    """What is other than asked, or unread. `said` are the lines of the log, empty where the engine said nothing: that
    is noted, and taken for no agreement. Engines that never say it are not asked."""
    if engine not in ("vllm", "sglang"):
        return []
    findings = []
    for name in dict.fromkeys(_UNKNOWN.findall(said) if engine == "vllm" else ()):
        make = note if name in allowed else error
        findings.append(make("lever-unread", f"env.{name}", "the engine says that it does not know it"))
    found = (_ARGS if engine == "vllm" else _SGLANG).search(said)
    if found is None:
        return [*findings, warning("levers-unsaid", "args", "the engine did not say what it runs with: not compared")]
    try:
        used = _call(found[1]) if engine == "sglang" else ast.literal_eval(found[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [*findings, warning("levers-unsaid", "args", "what the engine said it runs with cannot be read")]
    levers, _ = read_levers(args, engine, None)
    for lever in levers:
        key = lever.name.lstrip("-").replace("-", "_")
        if key not in used or not lever.values or "." in lever.written:
            continue
        if not _same(used[key], lever.values):
            make = note if lever.written in allowed else error
            findings.append(
                make(
                    "lever-overridden",
                    lever.written,
                    f"asked for {' '.join(lever.values)!r}, the engine runs with {str(used[key])[:80]!r}",
                )
            )
    return findings


def _call(text: str) -> dict[str, Any]:
    """The named arguments of a call, those that are plain values. Raises ValueError, SyntaxError."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("no call")
    used = {}
    for word in call.keywords:
        with contextlib.suppress(ValueError):
            used[str(word.arg)] = ast.literal_eval(word.value)
    return used


def _same(used: Any, asked: tuple[str, ...]) -> bool:
    if isinstance(used, (list, tuple)):
        return [str(one) for one in used] == list(asked) or _json(asked[0]) == list(used)
    if isinstance(used, dict):
        return bool(_json(asked[0]) == used)
    if isinstance(used, bool):
        return asked[0].lower() == str(used).lower()
    if isinstance(used, (int, float)):
        try:
            return float(asked[0]) == float(used)
        except ValueError:
            return _human(asked[0]) == used
    return str(used) == " ".join(asked)


def _human(text: str) -> float | None:
    """1k is 1000, 1K is 1024, as vLLM reads sizes."""
    found = re.fullmatch(r"([0-9.]+)([kKmMgG])", text)
    if found is None:
        return None
    power = "kmg".index(found[2].lower()) + 1
    return float(found[1]) * float((1000 if found[2].islower() else 1024) ** power)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
