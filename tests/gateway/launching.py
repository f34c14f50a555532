"""A launch state folder with one run of each kind, as launches and looks at them leave it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

MARKUP = "<img src=x onerror=alert(1)>"
NODES = [{"name": "a", "ssh_ip": "10.0.0.1", "rank": 0}, {"name": "b", "ssh_ip": "10.0.0.2", "rank": 1}]


def opened(run: str, ago_s: int, **said: Any) -> dict[str, Any]:
    told = {
        "event": "opened", "run": run, "at_ns": time.time_ns() - ago_s * 10**9, "cluster": "pair", "recipe": "qwen",
        "port": 30_000, "record": "b3:" + "c" * 64, "deploy": "tmux", "engine": "vllm", "model": "Qwen/Qwen3-8B",
        "nodes": NODES,
    }  # fmt: skip
    return {**told, **said}


def ledger(folder: Path, recipe: str, *events: dict[str, Any]) -> None:
    (folder / recipe).mkdir(parents=True, exist_ok=True)
    with (folder / recipe / "runs.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def closed(run: str) -> dict[str, Any]:
    return {"event": "closed", "run": run, "at_ns": time.time_ns(), "how": "stopped", "verified": True}


def looked(folder: Path, *runs: dict[str, Any], ago_s: int = 0, up: bool = True, **said: Any) -> None:
    """The last look, at the cluster `pair`."""
    nodes = [{"node": "a", "address": "10.0.0.1", "state": "reachable"}]
    other = {"node": "b", "address": "10.0.0.2", "state": "reachable"}
    if not up:
        other |= {"state": "unreachable", "why": "node b: 10.0.0.2: no route to host"}
    told = {
        "v": "mesh-launch-live/1", "every_s": 3600, "at_ns": time.time_ns() - ago_s * 10**9, "damaged": {},
        "clusters": [{"cluster": "pair", "up": up, "nodes": [*nodes, other], "runs": list(runs)}],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / "live.new"
    beside.write_text(json.dumps({**told, **said}))
    beside.replace(folder / "live.json")


def seen(run: str, state: str = "up", readiness: str = "ready", liveness: str = "alive") -> dict[str, Any]:
    ranks = [{"node": "a", "rank": 0, "liveness": liveness}, {"node": "b", "rank": 1, "liveness": liveness}]
    return {"run": run, "state": state, "readiness": readiness, "why": f"because it is {state}", "nodes": ranks}


def filled(folder: Path) -> Path:
    """Three open runs, which the last look found up, stale and inconclusive, and one that is closed."""
    ledger(folder, "qwen", opened("r-old", 90_000), closed("r-old"), opened("r-up", 7300))
    ledger(folder, "gone", opened("r-stale", 600, recipe="gone"))
    ledger(folder, "odd", opened("r-odd", 30, recipe="odd", model=MARKUP, nodes=[{**NODES[0], "name": MARKUP}]))
    looked(
        folder, seen("r-up"), seen("r-stale", "stale", "not-ready", "dead"),
        seen("r-odd", "inconclusive", "unknown", "unknown"),
    )  # fmt: skip
    return folder
