"""`make mutate`: small faults planted one at a time in what decides about evidence, each of which a test must notice.

    python tests/mutation/run.py [--count N] [--seed N] [--workers N] [--only RE] [--known FILE]

A sample of cosmic-ray's mutants of the listed modules: for one seed the same, as far as the lines are. Each is tried in
a copy of the tree by the tests of its module, then by those of its room, to the first that fails. One that no test
notices fails the run unless `survivors.toml` says why it may live. What annotations of functions and of dataclasses say
is never evaluated, so nothing is planted there.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import importlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import use_mutation
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
VECTORS = "tests/conformance/test_client.py::test_vectors_pass_our_client"


@dataclass(frozen=True)
class Room:
    """`own` are the tests that notice most of what is planted in a module, `all` those that its room has to offer."""

    folder: str
    own: Mapping[str, str]
    all: Sequence[str]

    def commands(self, module: str) -> list[str]:
        """The arguments of pytest, run by run."""
        return [*([self.own[module]] if module in self.own else []), *self.all]


SLOW = "--ignore=tests/schema/test_cddl.py --ignore=tests/schema/test_properties.py"
SCHEMA, REPLAY, GRANT = "tests/schema/test_", "tests/replay/test_", "tests/grant/test_"
IDENTITY, RUNTIME = "tests/identity/test_", "tests/runtime/test_"
BLUEPRINT, FILES = "tests/blueprint/test_", f"{VECTORS}[blueprint]"
ROOMS = {
    room.folder: room
    for room in (
        Room(
            "mesh/schema",
            {
                "canonical": f"{SCHEMA}canonical.py {SCHEMA}canonical_hostile.py",
                "checkpoint": f"{SCHEMA}checkpoint.py {VECTORS}[checkpoint]",
                "commitment": f"{SCHEMA}commitment.py {VECTORS}[commitment]",
                "cose": f"{SCHEMA}cose.py {SCHEMA}envelope_faults.py {SCHEMA}envelope.py {VECTORS}[envelope]",
                "disclosure": f"{SCHEMA}disclosure.py {VECTORS}[disclosure]",
                "energy": f"{SCHEMA}receipt.py {VECTORS}[energy]",
                "envelope": f"{SCHEMA}envelope_faults.py {SCHEMA}envelope.py {VECTORS}[envelope]",
                "ids": f"{SCHEMA}ids.py {VECTORS}[ids]",
                "keys": f"{SCHEMA}signatures.py {VECTORS}[signature]",
                "limits": f"{SCHEMA}limits.py {VECTORS}",
                "outcome": f"{SCHEMA}receipt.py {VECTORS}[outcome]",
                "receipt": f"{SCHEMA}receipt.py {VECTORS}[receipt]",
                "request": f"{SCHEMA}request.py {VECTORS}[request]",
                "trust": f"{SCHEMA}trust.py {VECTORS}[trust]",
                "value": f"{SCHEMA}value.py",
                "view": f"{VECTORS}[view]",
            },
            # Without the slowest: what CDDL and random values say of the shapes the vectors say too.
            (f"{VECTORS} {REPLAY}unchanging.py", f"tests/schema {REPLAY}long.py {SLOW}"),
        ),
        Room(
            "mesh/replay",
            {
                "claim": f"{REPLAY}replayer.py {VECTORS}[replay]",
                "decoding": f"{REPLAY}replayer.py {REPLAY}replayer_runs.py {REPLAY}long.py",
                "facts": f"{REPLAY}facts.py {VECTORS}[replay]",
                "replayer": f"{REPLAY}replayer.py {REPLAY}replayer_runs.py {VECTORS}[replay]",
                "verdict": f"{REPLAY}verdict.py {VECTORS}[replay]",
            },
            (
                f"{REPLAY}facts.py {REPLAY}verdict.py {REPLAY}replayer.py {REPLAY}replayer_runs.py "
                f"{REPLAY}long.py {REPLAY}unchanging.py {VECTORS}[replay]",
                f"{REPLAY}replay_properties.py",
            ),
        ),
        Room(
            "mesh/blueprint",
            {
                "difference": f"{BLUEPRINT}packing.py",
                "elf": f"{BLUEPRINT}packing.py tests/engine/test_blueprints.py",
                "modules": f"{BLUEPRINT}packing.py",
                "packing": f"{BLUEPRINT}packing.py",
                "postcard": f"{BLUEPRINT}postcard.py {VECTORS}[postcard]",
                "postcard_scalars": f"{BLUEPRINT}postcard.py {VECTORS}[postcard]",
                "roles": f"{BLUEPRINT}wiring.py",
                "settings": f"{BLUEPRINT}settings.py {FILES}",
                "wiring": f"{BLUEPRINT}wiring.py",
                **dict.fromkeys(
                    (
                        "body",
                        "certificate",
                        "circuit",
                        "container",
                        "revocation",
                        "sealing",
                        "signature",
                        "verification",
                    ),
                    f"{FILES} {BLUEPRINT}verification.py {BLUEPRINT}signers.py",
                ),
            },
            (
                f"{FILES} {VECTORS}[postcard] tests/blueprint tests/engine/test_blueprints.py "
                "tests/cli/test_blueprint.py",
            ),
        ),
        Room(
            "mesh/identity",
            {
                **dict.fromkeys(("derived", "sha256"), f"{IDENTITY}derived.py"),
                "document": f"{IDENTITY}document.py {IDENTITY}shard.py",
                **dict.fromkeys(
                    ("fields", "shard", "recipe", "artifact", "fingerprint", "canonical_json"),
                    f"{IDENTITY}identity_values.py {IDENTITY}shard.py",
                ),
                **dict.fromkeys(
                    ("registry", "evidence", "coverage", "handshake", "mismatch", "route"),
                    f"{IDENTITY}identity_values.py {IDENTITY}route.py",
                ),
                "shard_route": f"{IDENTITY}identity_values.py {IDENTITY}shard_route.py",
                "safetensors": f"{IDENTITY}safetensors.py",
                "folder": f"{IDENTITY}folder.py",
                "files": f"{IDENTITY}files.py",
                "ggml": f"{IDENTITY}ggml.py",
                "gguf": f"{IDENTITY}gguf.py {IDENTITY}gguf_fields.py",
                "metadata": f"{IDENTITY}metadata.py {IDENTITY}gguf_fields.py",
                "model": f"{IDENTITY}model.py",
                "reader": f"{IDENTITY}reader.py",
                "tensors": f"{IDENTITY}tensors.py",
                "weights": f"{IDENTITY}weights.py",
            },
            (
                f"{IDENTITY}shard.py {IDENTITY}route.py {IDENTITY}identity_properties.py {VECTORS}[identity] "
                f"{VECTORS}[identity-route]",
                "tests/identity",
            ),
        ),
        Room(
            "mesh/grant",
            {
                "caveats": f"{GRANT}caveats.py",
                "decision": f"{GRANT}decision.py",
                "text": f"{GRANT}text.py",
            },
            (f"{GRANT}chain.py {GRANT}caveats.py {GRANT}decision.py {GRANT}text.py {VECTORS}[grant]",),
        ),
        Room(
            "mesh/runtime",
            {
                **dict.fromkeys(
                    ("archive", "descriptor", "header", "names"), f"{RUNTIME}hostile.py {RUNTIME}packing.py"
                ),
                **dict.fromkeys(("packing", "tree", "unpacking"), f"{RUNTIME}packing.py"),
                "draft": f"{RUNTIME}draft.py",
                "matrix": f"{RUNTIME}matrix.py",
                "prompts": f"{RUNTIME}prompts.py",
                "release": f"{RUNTIME}release.py",
                "models": "tests/cli/test_candidates.py tests/cli/test_candidates_vllm.py",
                "record": "tests/cli/test_runtime_bench.py",
                **dict.fromkeys(("oci", "catalogue"), "tests/cli/test_runtime.py"),
            },
            (
                f"{RUNTIME}candidate.py {RUNTIME}rules.py {RUNTIME}release.py",
                f"{RUNTIME}hostile.py {RUNTIME}packing.py {RUNTIME}draft.py {RUNTIME}matrix.py "
                "tests/cli/test_runtime.py",
            ),
        ),
    )
}
# How many are tried of the rooms that decide about evidence together, and of those that decide what is let in.
SAMPLES = (
    (("mesh/schema", "mesh/replay"), 300),
    (("mesh/grant",), 100),
    (("mesh/identity",), 60),
    (("mesh/runtime",), 60),
    (("mesh/blueprint",), 60),
)
# What is imported before pytest starts is not rewritten, and need not be.
PYTEST = (
    "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning",
    "--hypothesis-profile=all",
)  # fmt: skip
# A mutant that hangs or eats all memory is one that was noticed.
TIMEOUT_S = 600
PROCESSOR_S = 90
MEMORY_BYTES = 4 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="mutants of each sample (300 and 100)")
    parser.add_argument("--seed", type=int, default=1, help="which of them (1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="at once (one for each core)")
    parser.add_argument("--only", default="", metavar="RE", help="of modules in whose path RE is found")
    parser.add_argument("--known", type=Path, metavar="FILE", help="go on where the run ended whose stderr FILE is")
    args = parser.parse_args()
    chosen = [spec for rooms, count in SAMPLES for spec in sample(rooms, args.count or count, args.seed, args.only)]
    told = args.known.read_text() if args.known else ""
    # Two of a kind on one line share a key.
    known = set(re.findall(r" killed (\w{12}) ", told)) - set(re.findall(r" survived (\w{12}) ", told))
    chosen = [spec for spec in chosen if key(spec) not in known]
    reasons = tomllib.loads(SURVIVORS.read_text())["survivor"]
    unexplained, explained = [], 0
    with (
        tempfile.TemporaryDirectory(prefix="mesh-mutation-") as scratch,
        ProcessPoolExecutor(args.workers, initializer=_into_a_copy, initargs=(scratch,)) as pool,
    ):
        runs = [] if known else sorted({run for spec in chosen for run in _runs(spec)})
        for arguments, passed in pool.map(_passes_unplanted, runs):
            if not passed:
                print(f"fails with nothing planted, so would notice everything: {arguments}", file=sys.stderr)
                return 3
        tried = as_completed([pool.submit(_try, spec) for spec in chosen])
        for number, (spec, outcome, diff) in enumerate((each.result() for each in tried), start=1):
            print(f"{number}/{len(chosen)} {outcome} {name(spec)}", file=sys.stderr, flush=True)
            if outcome != "survived":
                continue
            if _explained(spec, diff, reasons):
                explained += 1
            else:
                unexplained.append(f"{name(spec)}\n{diff}")
                print(diff, file=sys.stderr, flush=True)
    print(f"{len(chosen)} mutants, seed {args.seed}: {len(unexplained) + explained} survived, ", end="")
    print(f"{explained} of them for a written reason")
    for one in unexplained:
        print(one)
    return 1 if unexplained else 0


def name(spec: MutationSpec) -> str:
    return f"{key(spec)} {spec.module_path}:{spec.start_pos[0]}:{spec.start_pos[1]} {spec.operator_name}"


@cache
def _lines(path: Path) -> list[str]:
    return (ROOT / path).read_text().splitlines()


def key(spec: MutationSpec) -> str:
    """Of the line and what is done to it, wherever it stands."""
    row, column = spec.start_pos
    told = (str(spec.module_path), _lines(spec.module_path)[row - 1], str(column), spec.operator_name)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:12]


def sample(rooms: Sequence[str], count: int, seed: int, only: str) -> list[MutationSpec]:
    """A change of a few lines changes as little of it."""
    every = [spec for room in rooms for spec in mutants(room) if re.search(only, str(spec.module_path))]
    return sorted(every, key=lambda spec: hashlib.sha256(f"{seed} {key(spec)}".encode()).digest())[:count]


def mutants(room: str) -> Iterator[MutationSpec]:
    names = [name for name in plugins.operator_names() if "Variable" not in name]  # those want to be told which
    operators = [plugins.get_operator(name)() for name in names]
    for path in sorted((ROOT / room).glob("*.py")):
        text = path.read_text()
        tree, unread = get_ast(text), list(_unevaluated(text))
        for name, operator in zip(names, operators, strict=True):
            places = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
            for occurrence, (start, end) in enumerate(places):
                if any(first <= start and end <= last for first, last in unread):
                    continue
                yield MutationSpec(
                    module_path=path.relative_to(ROOT), operator_name=name, occurrence=occurrence,
                    start_pos=start, end_pos=end, operator_args={},
                )  # fmt: skip


Place = tuple[int, int]


def _unevaluated(text: str) -> Iterator[tuple[Place, Place]]:
    """Where annotations stand that are text to Python: msgspec evaluates those of its values alone."""
    for node in ast.walk(ast.parse(text)):
        annotations: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            rest = [argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *rest)
            annotations = [node.returns, *(argument.annotation for argument in arguments)]
            annotations += [inner.annotation for inner in ast.walk(node) if isinstance(inner, ast.AnnAssign)]
        elif isinstance(node, ast.Module) or (isinstance(node, ast.ClassDef) and node.decorator_list):
            annotations = [inner.annotation for inner in node.body if isinstance(inner, ast.AnnAssign)]
        for each in annotations:
            if each is not None:
                yield (each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0)


def _into_a_copy(scratch: str) -> None:
    """Each worker has a tree of its own to plant in, with everything compiled once and what others wrote imported."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    os.chdir(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    for module in ("blake3", "cbor2", "hypothesis.strategies", "msgspec", "nacl.bindings", "nacl.signing", "pytest"):
        importlib.import_module(module)
    assert not any(name.partition(".")[0] in ("mesh", "conformance", "tests") for name in sys.modules)
    # That one example fails is enough: the smallest one is nobody's business here.
    phases = [phase for phase in hypothesis.Phase if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
    hypothesis.settings.register_profile("no-shrinking", phases=phases)
    hypothesis.settings.load_profile("no-shrinking")
    sys.dont_write_bytecode = False
    for room in ROOMS.values():
        assert _passes(["--collect-only", *" ".join(room.all).split()])
    sys.dont_write_bytecode = True  # a mutant's would be taken for the module's


def _passes(arguments: Sequence[str]) -> bool:
    """Whether pytest ends well, in a child of this process. One that hangs does not."""
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        signal.alarm(TIMEOUT_S)
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        code = 1
        try:
            code = int(pytest.main([*PYTEST, *arguments]))
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _runs(spec: MutationSpec) -> list[str]:
    path = Path(str(spec.module_path))
    return ROOMS[str(path.parent)].commands(path.stem)


def _passes_unplanted(arguments: str) -> tuple[str, bool]:
    return arguments, _passes(arguments.split())


def _try(spec: MutationSpec) -> tuple[MutationSpec, str, str]:
    operator = plugins.get_operator(spec.operator_name)(**spec.operator_args)
    with use_mutation(spec.module_path, operator, spec.occurrence) as (original, mutated):
        assert mutated is not None
        survived = all(_passes(run.split()) for run in _runs(spec))
    diff = difflib.unified_diff(original.splitlines(), mutated.splitlines(), n=3, lineterm="")
    return spec, "survived" if survived else "killed", "\n".join(list(diff)[2:])


def _explained(spec: MutationSpec, diff: str, reasons: list[dict[str, str]]) -> bool:
    added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    return any(
        (reason["module"], reason["line"]) == (str(spec.module_path), line) for reason in reasons for line in added
    )


if __name__ == "__main__":
    sys.exit(main())
