"""Benches as tests need them: made by hand, landed like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesh.cli.launch_tables import markdown_report
from mesh.launch.bench_data import FORMAT, BenchData, Cell, Request
from mesh.launch.bench_package import DATA, LOG, RECIPE, REPORT, Manifest, NodeOf, digests, land

MS = 1_000_000


def request(stream: int = 0, **said: Any) -> Request:
    """Its first token after 100 ms, nine more within 450 ms."""
    told = {"first_ns": 100 * MS, "last_ns": 550 * MS, "total_ns": 600 * MS, "prompt_tokens": 512, "output_tokens": 10}
    return Request(stream=stream, started_ns=0, **{**told, "finish": "length", **said})


def failed(stream: int = 0, why: str = "status 503") -> Request:
    return Request(stream=stream, started_ns=0, total_ns=5 * MS, failed=why)


def cell(*requests: Request, depth: int = 512, **said: Any) -> Cell:
    told = {"concurrency": len(requests) or 1, "repetition": 0, "wall_ns": 600 * MS, "requests": list(requests), **said}
    return Cell(depth=depth, **told)


def data(*cells: Cell, **said: Any) -> BenchData:
    told = {
        "v": FORMAT, "recipe": "good", "run": "20300101T000000-aaaaaa", "engine": "vllm", "model": "org/model",
        "way": "ssh", "endpoint": "/v1/completions", "prompts": "mesh-code-prose/1", "seed": "s", "output_tokens": 10,
        "began_ms": 1_900_000_000_000, "ended_ms": 1_900_000_060_000, "cells": list(cells) or [cell(request())],
    }  # fmt: skip
    return BenchData(**{**told, **said})


def manifest(stem: str, bench: BenchData, recipe_sha256: str = "a" * 64, **said: Any) -> Manifest:
    told = {
        "v": FORMAT, "stem": stem, "label": stem.rpartition("_")[2], "recipe": bench.recipe, "run": bench.run,
        "model": bench.model, "cluster": "pair", "recipe_sha256": recipe_sha256,
        "config_sha256": {"launch.toml": "b" * 64},
        "launch_digest": "b3:" + "c" * 64,
        "nodes": [NodeOf(node="a", rank=0, image="sha256:" + "d" * 64, machine={"cores": "8", "gpu": "<b>GPU</b>"})],
        "launcher": {"mesh": "1"}, "drift": [], "unknown": [], "began_ms": bench.began_ms, "ended_ms": bench.ended_ms,
        "files": {},
    }  # fmt: skip
    return Manifest(**{**told, **said})


def landed(folder: Path, stem: str, bench: BenchData | None = None, recipe: bytes = b"engine\n", **said: Any) -> Path:
    bench = bench or data()
    made = manifest(stem, bench, **said)
    parts = {REPORT: markdown_report(made, bench).encode(), DATA: bench.to_json(), LOG: b"", RECIPE: recipe}
    return land(folder, stem, parts, made.model_copy(update={"files": digests(parts)}))
