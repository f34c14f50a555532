"""`mesh disclose`: what a replayer needs beside the receipt, from the ledger or from a client's saved answer."""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note
from mesh.cli.exits import ACCEPTED
from mesh.cli.newfile import PRIVATE, write_new
from mesh.cli.state import add_state_flag, state_of
from mesh.errors import Invalid, KeyFileError, SchemaError

if TYPE_CHECKING:
    from mesh.schema.disclosure import Disclosure


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "disclose",
        help="write the disclosure of a serve, for replay",
        description="Writes the disclosure of a serve: its request, its prompt, and the opening of its commitment. It "
        "holds the prompt and the answer, so the file is for its owner only. Exit code 10 where they were not kept.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", metavar="ID", help="a receipt id (b3:...), a serve's UUID, or a seq")
    which.add_argument(
        "--from-answer",
        type=Path,
        metavar="FILE",
        help="a saved JSON answer to a request with mesh.disclose, in place of the ledger",
    )
    add_state_flag(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="must not exist")
    parser.add_argument("--no-output", action="store_true", help="leave the answer's ids out")
    parser.add_argument("--no-prompt", action="store_true", help="leave the prompt's text out (its ids stay)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.schema.ids import serve_id_text

    disclosure = _from_ledger(args) if args.from_answer is None else from_answer(args.from_answer)
    dropped = {name for name, drop in (("output", args.no_output), ("prompt", args.no_prompt)) if drop}
    if dropped:
        kept = {name: value for name, value in disclosure.to_map().items() if name not in dropped}
        disclosure = type(disclosure).from_map(kept)
    write_new(args.out, (disclosure.to_cbor(),), mode=PRIVATE)
    told = {
        "serve_id": serve_id_text(disclosure.serve_id),
        "out": str(args.out),
        "output": disclosure.output is not None,
        "prompt": disclosure.prompt is not None,
    }
    if args.json:
        emit(told)
    else:  # without the prompt's text, its ids are still the prompt
        what = "the prompt and the answer" if told["output"] else "the prompt"
        note(f"disclosure of serve {told['serve_id']} written to {args.out}: it holds {what}")
    return ACCEPTED


def from_answer(path: Path) -> Disclosure:
    """The disclosure in a saved answer. Raises SchemaError where there is none or a broken one, OSError."""
    from mesh.schema.limits import MAX_DISCLOSURE_BYTES

    limit = 4 * MAX_DISCLOSURE_BYTES
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise SchemaError(f"{path}: over {limit} bytes")
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise SchemaError(f"{path}: not JSON: {e}") from None
    return disclosure_in(answer, str(path))


def disclosure_in(answer: Any, where: str) -> Disclosure:
    """The disclosure in the `mesh` object of an answer or of a stream's last chunk. Raises SchemaError."""
    from mesh.schema.disclosure import Disclosure

    own = answer.get("mesh") if isinstance(answer, dict) else None
    text = own.get("disclosure") if isinstance(own, dict) else None
    if not isinstance(text, str):
        raise SchemaError(f"{where}: no mesh.disclosure in it: the request has to ask with mesh.disclose")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise SchemaError(f"{where}: mesh.disclosure is not base64url: {e}") from None
    try:
        return Disclosure.from_bytes(data)
    except Invalid as e:
        raise SchemaError(f"{where}: mesh.disclosure: {e}") from None


def _from_ledger(args: argparse.Namespace) -> Disclosure:
    from mesh.cli.receipts import find
    from mesh.steward.disclosing import kept_disclosure

    state = state_of(args)
    with state.open_reader() as reader:
        entry = find(reader, args.id)
        key = state.load_key()
        if key.public != reader.steward():
            raise KeyFileError(f"key file {state.key}: is not the key of the ledger beside it")
        return kept_disclosure(reader, entry, key, now_ns=time.time_ns())
