"""`make mutate`: small faults planted one at a time in what decides about evidence, each of which a test must notice.

    python tests/mutation/run.py [--count N] [--seed N] [--workers N] [--only WORD]

A sample of cosmic-ray's mutants of the listed modules, the same for one seed. Each is tried in a copy of the tree by
the tests of its room. One that no test notices fails the run unless `survivors.toml` says why it may live.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
# The modules of a room, and its tests with the quickest to fail first.
ROOMS = {
    "mesh/schema": ("tests/schema", "tests/conformance"),
    "mesh/replay": ("tests/replay/test_facts.py", "tests/replay/test_verdict.py", "tests/replay/test_replayer.py",
                    "tests/replay/test_replayer_runs.py", "tests/replay/test_replay_properties.py",
                    "tests/replay/test_gguf_rows.py"),
    "mesh/grant": ("tests/grant/test_caveats.py", "tests/grant/test_decision.py", "tests/grant/test_chain.py",
                   "tests/grant/test_text.py", "tests/grant/test_properties.py", "tests/cli/test_grant.py",
                   "tests/gateway/test_grants.py"),
}  # fmt: skip
# A mutant that hangs is one that was noticed.
TIMEOUT_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants to try (300)")
    parser.add_argument("--seed", type=int, default=1, help="which of them (1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="at once (one for each core)")
    parser.add_argument("--only", default="", help="of modules with WORD in their path")
    args = parser.parse_args()
    every = [spec for room in ROOMS for spec in mutants(room) if args.only in str(spec.module_path)]
    chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
    reasons = tomllib.loads(SURVIVORS.read_text())["survivor"]
    unexplained, explained = [], 0
    with ProcessPoolExecutor(args.workers, initializer=_into_a_copy) as pool:
        for number, (spec, outcome, diff) in enumerate(pool.map(_try, chosen), start=1):
            place = f"{spec.module_path}:{spec.start_pos[0]}"
            print(f"{number}/{len(chosen)} {outcome} {place} {spec.operator_name}", file=sys.stderr, flush=True)
            if outcome != "survived":
                continue
            if _explained(spec, diff, reasons):
                explained += 1
            else:
                unexplained.append(f"{place} {spec.operator_name}\n{diff}")
    print(f"{len(chosen)} mutants of {len(every)}, seed {args.seed}: {len(unexplained) + explained} survived, ", end="")
    print(f"{explained} of them for a written reason")
    for one in unexplained:
        print(one)
    return 1 if unexplained else 0


def mutants(room: str) -> Iterator[MutationSpec]:
    names = [name for name in plugins.operator_names() if "Variable" not in name]  # those want to be told which
    operators = [plugins.get_operator(name)() for name in names]
    for path in sorted((ROOT / room).glob("*.py")):
        source = path.read_text()
        tree, unread = get_ast(source), list(_unread(source))
        for name, operator in zip(names, operators, strict=True):
            places = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
            for occurrence, (start, end) in enumerate(places):
                if any(first <= start and end <= last for first, last in unread):
                    continue
                yield MutationSpec(
                    module_path=path.relative_to(ROOT), operator_name=name, occurrence=occurrence,
                    start_pos=start, end_pos=end, operator_args={},
                )  # fmt: skip


def _unread(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the annotations of functions are: nothing evaluates them here, so that no test could notice."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            for found in (node.returns, *(one.annotation for one in every if one is not None)):
                if found is not None:
                    assert found.end_lineno is not None
                    assert found.end_col_offset is not None
                    yield (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def _into_a_copy() -> None:
    """Each worker has a tree of its own to plant in."""
    folder = Path(tempfile.mkdtemp(prefix="mesh-mutation-"))
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def _try(spec: MutationSpec) -> tuple[MutationSpec, str, str]:
    tests = [name for name in ROOMS[str(spec.module_path.parent)] if Path(name).exists()]
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {' '.join(tests)}"
    result = mutate_and_test([spec], command, TIMEOUT_S)
    return spec, "survived" if result.test_outcome == TestOutcome.SURVIVED else "killed", result.diff or ""


def _explained(spec: MutationSpec, diff: str, reasons: list[dict[str, str]]) -> bool:
    added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    return any(
        (reason["module"], reason["line"]) == (str(spec.module_path), line) for reason in reasons for line in added
    )


if __name__ == "__main__":
    sys.exit(main())
