"""`mesh weights`: the digest that receipts name a model's weights by."""

from __future__ import annotations

import argparse
from pathlib import Path

from mesh.cli.console import emit, note, say
from mesh.cli.engines import PACKAGED, packaged_model
from mesh.cli.exits import ACCEPTED


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("weights", help="digest a model's weights")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    digesting = actions.add_parser("digest", help="read every byte of a model and print its digest")
    digesting.add_argument(
        "path",
        metavar="PATH",
        help=f"a GGUF file, any of its shards or their folder, a Hugging Face folder, or `{PACKAGED}`",
    )
    digesting.add_argument("--json", action="store_true", help="print one JSON object, with each file's digest")
    digesting.set_defaults(run=run_digest)


def run_digest(args: argparse.Namespace) -> int:
    from mesh.identity.weights import weights_at

    path = packaged_model() if args.path == PACKAGED else Path(args.path)
    weights = weights_at(path, progress=lambda name, size: note(f"{name}: {size} bytes read"))
    if args.json:
        files = [{"name": file.name, "digest": file.id.text, "bytes": file.identity.size} for file in weights.files]
        emit({"weights_digest": weights.digest.text, "bytes": weights.size, "files": files})
    else:
        say(weights.digest.text)
    return ACCEPTED
