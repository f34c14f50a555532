"""`mesh launch bench`: a matrix of prompt depths and streams against a run, landed as one package."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, printable_text, say
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import add_common_flags, ledgers, loaded, login_of, recipe_at
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.bench_data import BenchData
    from mesh.launch.bench_matrix import Matrix
    from mesh.launch.bench_package import Manifest
    from mesh.launch.config import Loaded, Node
    from mesh.launch.http_stream import Open
    from mesh.launch.recipe import RecipeFile
    from mesh.launch.run_ledger import Run
    from mesh.launch.running import Kept, Running
    from mesh.launch.ssh import Hosts


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "bench",
        help="measure a running serve: first token, prefill and decode by prompt depth and streams",
        description="Sends streamed completions with texts of our own, whose sizes the served tokenizer counts. Lands "
        "report, data, recipe and manifest under one stem; exit 10 where a cell failed, which its row names.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name, whose open run is measured")
    parser.add_argument("--depths", type=_numbers, metavar="N,N", help="prompt sizes in tokens (512,2048)")
    parser.add_argument("--concurrency", type=_numbers, metavar="N,N", help="streams at once (1,2)")
    parser.add_argument("--runs", type=positive, metavar="N", help="times that each cell is measured (1)")
    parser.add_argument(
        "--suite", choices=("depth",), help="depth: 16,384 to 131,072 tokens, 1 and 2 streams, twice each"
    )
    parser.add_argument("--output-tokens", type=positive, default=128, metavar="N", help="of each completion (128)")
    parser.add_argument("--timeout-s", type=positive, default=600, metavar="SECONDS", help="for one completion (600)")
    parser.add_argument("--label", default="bench", metavar="WORD", help="in the stem, after the time (bench)")
    parser.add_argument(
        "--seed", metavar="TEXT", help="of the texts (the stem): the same again meets the engine's cache"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the package lands (reports/, beside the recipe)")
    parser.add_argument(
        "--direct", action="store_true", help="connect to the port itself, and not through ssh to its node"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent and written, and do neither")
    add_common_flags(parser)
    parser.set_defaults(run=run)


def _numbers(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and 0 < len(word) < 9 and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected numbers above 0, with commas between them")
    return tuple(dict.fromkeys(map(int, words)))


def run(args: argparse.Namespace) -> int:
    from mesh.launch.bench_matrix import dry_cells
    from mesh.launch.bench_package import MANIFEST, PARTS, check_free, stem_of
    from mesh.launch.run_choice import open_run_of
    from mesh.launch.running import kept_of

    config = loaded(args)
    root = ledgers(config)
    measured = open_run_of(root, args.recipe)
    kept = kept_of(root / args.recipe / measured.id, args.recipe, measured)
    stem = stem_of(args.label, time.strftime("%Y-%m-%d_%H%M%S", time.gmtime()))
    folder = args.out or _beside(args.recipe, config)
    check_free(folder, stem)
    matrix = _matrix(args, stem)
    engine, model = str(measured.opened["engine"]), str(measured.opened["model"])
    if args.dry_run:
        cells = dry_cells(matrix, engine, model)
        files = [f"{folder / stem}{suffix}" for suffix in (*PARTS, MANIFEST)]
        if args.json:
            emit({"run": measured.id, "cells": cells, "files": files})
            return ACCEPTED
        say(f"# run {measured.id} of {args.recipe}; nothing is sent or written")
        for cell in cells:
            say(f"{cell['concurrency']} x {cell['path']} of {cell['depth']} tokens: {json.dumps(cell['body'])}")
        for file in files:
            say(file)
        return ACCEPTED
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
        note(text)

    tell(f"run {measured.id} of {args.recipe}: {model} by {engine}")
    data, manifest = asyncio.run(_measure(args, config, measured, kept, matrix, stem, tell))
    path = _land(folder, stem, data, manifest, kept, said)
    _tell(args, path, data, manifest)
    return REFUSED if data.failed else ACCEPTED


def _matrix(args: argparse.Namespace, stem: str) -> Matrix:
    from mesh.launch.bench_matrix import SUITES, Matrix

    depths, streams, times = SUITES[args.suite] if args.suite else ((512, 2048), (1, 2), 1)
    return Matrix(
        args.depths or depths, args.concurrency or streams, args.runs or times, args.output_tokens, args.seed or stem,
        float(args.timeout_s),
    )  # fmt: skip


def _beside(name: str, config: Loaded) -> Path:
    from mesh.launch.bench_package import REPORTS_FOLDER

    try:
        return recipe_at(name, config).path.parent / REPORTS_FOLDER
    except (UsageError, OSError) as e:
        raise UsageError(f"{e}; --out says where the package lands") from None


async def _measure(
    args: argparse.Namespace,
    config: Loaded,
    measured: Run,
    kept: Kept,
    matrix: Matrix,
    stem: str,
    tell: Callable[[str], None],
) -> tuple[BenchData, Manifest]:
    from mesh.launch.bench_data import FORMAT, BenchData
    from mesh.launch.bench_matrix import ENDPOINT, PROMPTS, Bench
    from mesh.launch.http_stream import Client
    from mesh.launch.running import observe
    from mesh.launch.runs import nodes_of
    from mesh.launch.ssh import Hosts

    engine, model = str(measured.opened["engine"]), str(measured.opened["model"])
    nodes = nodes_of(measured)
    port = int(measured.opened["port"])
    began_ms = time.time_ns() // 10**6
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(Hosts(login_of(config), nodes))
        if nodes[0].name in hosts.down:
            raise hosts.down[nodes[0].name]
        opener = _direct(nodes[0], port) if args.direct else _through(hosts, nodes[0].name, port)
        client = Client(opener, f"{nodes[0].ssh_ip if args.direct else '127.0.0.1'}:{port}", time.monotonic_ns)
        found = await Bench(client, engine, model, matrix, tell).run()
        seen = await observe(hosts, measured, kept)
    data = BenchData(
        v=FORMAT, recipe=args.recipe, run=measured.id, engine=engine, model=model,
        way="direct" if args.direct else "ssh", endpoint=ENDPOINT, prompts=PROMPTS, seed=matrix.seed,
        output_tokens=matrix.output_tokens, engine_version=found.engine_version, warm_up_tokens=found.warm_up_tokens,
        began_ms=began_ms, ended_ms=time.time_ns() // 10**6, cells=found.cells,
    )  # fmt: skip
    return data, _manifest(args, config, measured, kept, seen, data, stem)


def _through(hosts: Hosts, head: str, port: int) -> Open:
    async def open_through() -> tuple[Any, Any]:
        return await hosts.up[head].open(port)

    return open_through


def _direct(node: Node, port: int) -> Open:
    async def open_direct() -> tuple[Any, Any]:
        return await asyncio.open_connection(node.ssh_ip, port)

    return open_direct


def _manifest(
    args: argparse.Namespace, config: Loaded, measured: Run, kept: Kept, seen: list[Running], data: BenchData, stem: str
) -> Manifest:
    from mesh.launch.bench_data import FORMAT
    from mesh.launch.bench_package import Manifest, NodeOf
    from mesh.launch.running import all_drift, all_unknown, file_drift

    nodes = [
        NodeOf(node=one.node, rank=one.rank, image=one.image, program=one.program, machine=dict(one.machine),
               labels={key: str(value) for key, value in one.labels.items()})
        for one in seen
    ]  # fmt: skip
    digest = measured.opened.get("record")
    return Manifest(
        v=FORMAT, stem=stem, label=args.label, recipe=args.recipe, run=measured.id, model=data.model,
        cluster=str(measured.opened["cluster"]), recipe_sha256=str(measured.opened.get("recipe_sha256")),
        config_sha256=config.digests, launch_digest=digest if isinstance(digest, str) else None, nodes=nodes,
        launcher=_launcher(), drift=[*file_drift(kept, _now(args.recipe, config), config), *all_drift(seen)],
        unknown=all_unknown(seen), began_ms=data.began_ms, ended_ms=data.ended_ms, files={},
    )  # fmt: skip


def _now(name: str, config: Loaded) -> RecipeFile | str:
    try:
        return recipe_at(name, config)
    except (UsageError, OSError) as e:
        return str(e)


def _launcher() -> dict[str, str]:
    """This machine, as its kernel says; nothing that names it among others."""
    import mesh
    from mesh.meter.load import processor_name

    return {
        "mesh": mesh.__version__, "code": _code(), "python": ".".join(map(str, sys.version_info[:3])),
        "system": platform.system(), "release": platform.release(), "architecture": platform.machine(),
        "processor": processor_name() or "unknown", "cores": str(len(os.sched_getaffinity(0))),
    }  # fmt: skip


def _code() -> str:
    """SHA-256 over the modules of this package, each by its name and its own SHA-256: which launcher it was, to the
    byte, wherever it came from."""
    import mesh

    root = Path(mesh.__file__).parent
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root).as_posix()}\n"
             for path in sorted(root.rglob("*.py"))]  # fmt: skip
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _land(folder: Path, stem: str, data: BenchData, manifest: Manifest, kept: Kept, said: list[str]) -> Path:
    from mesh.cli.launch_tables import markdown_report
    from mesh.launch.bench_package import DATA, LOG, RECIPE, REPORT, digests, land

    # the recipe as it was launched, which is what was measured; where that is lost, nothing stands in for it
    recipe = b"" if kept.recipe is None else kept.recipe.data
    log = "".join(printable_text(line) for line in said).encode()
    parts = {REPORT: markdown_report(manifest, data).encode(), DATA: data.to_json(), LOG: log, RECIPE: recipe}
    return land(folder, stem, parts, manifest.model_copy(update={"files": digests(parts)}))


def _tell(args: argparse.Namespace, path: Path, data: BenchData, manifest: Manifest) -> None:
    from mesh.cli.launch_tables import HEADINGS, drift_lines, rows, terminal_table
    from mesh.launch.bench_data import figures

    if args.json:
        cells = []
        for cell in data.cells:
            told = figures(cell)
            shown = {
                "ttft_ms": told.ttft_ms, "prefill_per_s": told.prefill, "decode_per_s": told.decode,
                "output_per_s": told.total, "fault": told.fault,
            }  # fmt: skip
            cells.append(
                {"depth": cell.depth, "concurrency": cell.concurrency, "repetition": cell.repetition}
                | {key: round(value, 3) if isinstance(value, float) else value for key, value in shown.items()
                   if value is not None}
            )  # fmt: skip
        emit({"ok": not data.failed, "manifest": str(path), "run": data.run, "drift": manifest.drift,
              "unknown": manifest.unknown, "cells": cells})  # fmt: skip
        return
    say(terminal_table(HEADINGS, rows(data)))
    for line in drift_lines(manifest):
        note(f"drift: {line}")
    note(f"{path}")
