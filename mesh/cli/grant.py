"""`mesh grant`: issue a grant, narrow it, close it, look into it, decide with it, ask what is left, revoke it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.caveats import add_caveat_flags, caveats_of, digest, moment, steward, whole
from mesh.cli.chat import DEFAULT_URL
from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.newfile import PRIVATE, check_new, write_new
from mesh.cli.revoked import add_revoked, read_revoked
from mesh.cli.trust import add_trust_flag, read_trust
from mesh.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from mesh.grant.chain import Chain
    from mesh.grant.frame import Frame

_NS_PER_S = 10**9
_MAX_NAME_CHARS = 255
_TIMES = ("not-before", "not-after")
# What describes a serve, by its name in the frame, and what is taken of one that nothing is said of.
_FRAME_FLAGS = {
    "recipe": "recipe_id", "backend": "backend_id", "weights": "weights_digest", "fidelity": "fidelity",
    "prompt": "prompt_tokens", "answer": "max_tokens", "uj": "est_uj",
}  # fmt: skip
_LEAST = {
    "recipe_id": "-", "backend_id": "/".join(["none"] * 6), "fidelity": 0, "prompt_tokens": 0, "max_tokens": 1,
}  # fmt: skip


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "grant",
        help="issue, narrow, close, check and revoke grants",
        description="A grant says what may be served, and is given to clients as their API key. GRANT is its text, a "
        "file that holds it, or - for stdin; others can read what stands on a command line.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    issuing = actions.add_parser("issue", help="sign a new grant")
    issuing.add_argument("--key", required=True, type=Path, metavar="FILE", help="the issuer's key; made on first use")
    issuing.set_defaults(run=run_issue)
    narrowing = actions.add_parser("attenuate", help="narrow a grant, which needs nobody's key")
    narrowing.set_defaults(run=run_attenuate)
    closing = actions.add_parser("close", help="end a grant, so that nobody can narrow it and hand it on")
    closing.set_defaults(run=run_close)
    inspecting = actions.add_parser("inspect", help="say what a grant states; the secret is not shown")
    inspecting.set_defaults(run=run_inspect)
    checking = actions.add_parser(
        "check", help="verify a grant, and decide whether it admits a serve",
        description="Without --steward the grant itself is checked: its signatures, its issuer, and whether a block of "
        "it was revoked. With it, the serve that the other flags describe is held against every caveat; a total as if "
        "nothing were used of it.",
    )  # fmt: skip
    _add_frame_flags(checking)
    checking.set_defaults(run=run_check)
    asking = actions.add_parser("balance", help="ask a gateway what is left of a grant")
    asking.add_argument("--url", default=DEFAULT_URL, help=f"the gateway ({DEFAULT_URL})")
    asking.set_defaults(run=run_balance)
    revoking = actions.add_parser("revoke", help="put a block on a gateway's list, and so all grants that hold it")
    revoking.add_argument("--list", required=True, type=Path, metavar="FILE", help="the list; made if it is not there")
    revoking.add_argument(
        "--block",
        type=whole,
        metavar="N",
        help="which block, from 0 (default: the last, so this grant and its children)",
    )
    revoking.set_defaults(run=run_revoke)

    for action in (narrowing, closing, inspecting, checking, asking, revoking):
        action.add_argument("grant", metavar="GRANT", help="the grant's text, a file that holds it, or -")
    for action in (issuing, narrowing):
        add_caveat_flags(action)
    for action in (issuing, narrowing, closing):
        action.add_argument("--out", type=Path, metavar="FILE", help="write it here, for you alone; must not exist")
    add_trust_flag(checking)
    for action in (issuing, narrowing, closing, inspecting, checking, asking, revoking):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def _add_frame_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the serve that would run")
    group.add_argument("--steward", type=steward, metavar="KEY", help="the gateway's key")
    group.add_argument("--recipe", metavar="NAME", help="the model's name")
    group.add_argument("--backend", metavar="ID", help="the backend's id")
    group.add_argument("--weights", type=digest, metavar="b3:HEX", help="its weights digest")
    group.add_argument("--fidelity", type=whole, metavar="0..3", help="its rating (0)")
    group.add_argument("--prompt", type=whole, metavar="N", help="tokens of the prompt (0)")
    group.add_argument("--answer", type=whole, metavar="N", help="tokens of the answer, at most (1)")
    group.add_argument("--uj", type=whole, metavar="N", help="its worst case in microjoules")
    parser.add_argument("--at", type=moment, metavar="TIME", help="the time, 2026-11-30T08:00:00Z (now)")
    parser.add_argument("--leeway", type=whole, default=2, metavar="S", help="seconds between clocks (2)")
    parser.add_argument("--revoked", type=Path, metavar="FILE", help="the list of revoked blocks")


def run_issue(args: argparse.Namespace) -> int:
    from mesh.grant.making import check, issue
    from mesh.schema.ids import steward_text
    from mesh.steward import keys

    caveats = caveats_of(args)
    _check_span(caveats)
    # what cannot be given out leaves no key behind
    check(caveats)
    if args.out is not None:
        check_new(args.out)
    if not os.path.lexists(args.key):
        check_new(args.key)  # a new key goes into a folder that its issuer has made
    key = keys.load_or_create(args.key)
    data = issue(key, caveats, random=os.urandom)
    if not caveats:
        note("this grant states no caveat: it admits everything")
    note(f"issued by {steward_text(key.public)}; gateways that are to take it name that key as --issuer")
    return _hand_over(data, args)


def run_attenuate(args: argparse.Namespace) -> int:
    from mesh.grant.making import attenuate

    caveats = caveats_of(args)
    _check_span(caveats)
    data = attenuate(_read(args.grant), caveats, random=os.urandom)
    if not caveats:
        note("this block states no caveat: it admits all that the grant admitted")
    return _hand_over(data, args)


def run_close(args: argparse.Namespace) -> int:
    from mesh.grant.making import close

    return _hand_over(close(_read(args.grant)), args)


def run_inspect(args: argparse.Namespace) -> int:
    from mesh.grant.inspection import chain_view

    told = chain_view(_read(args.grant))
    if args.json:
        emit({**told, "issuer_checked": False})
    else:
        _say_chain(told)
        note("the signatures hold; whether the issuer is to be trusted was not asked (mesh grant check --trust)")
    return ACCEPTED


def run_check(args: argparse.Namespace) -> int:
    from mesh.grant.chain import verify_grant
    from mesh.grant.decision import REVOKED, Refusal, decide

    trust = read_trust(args.trust)
    chain = verify_grant(_bytes(args.grant), trust)
    now_ns = time.time_ns() if args.at is None else args.at
    chain.check_issuer(trust, now_ns)
    revoked = frozenset() if args.revoked is None else read_revoked(args.revoked)
    if args.steward is None:
        given = [name for name in _FRAME_FLAGS if getattr(args, name) is not None]
        if given:
            raise UsageError(f"--{given[0]} describes a serve, which needs a --steward to be decided")
        refusals = tuple(
            Refusal(n, block.id, REVOKED, None, None) for n, block in enumerate(chain.blocks) if block.id in revoked
        )
    else:
        refusals = decide(chain, _frame(args, now_ns), revoked=revoked, leeway_ns=args.leeway * _NS_PER_S).refusals
    if args.json:
        emit({"grant_id": chain.id.text, "admitted": not refusals, "refusals": [one.to_view() for one in refusals]})
    else:
        say(f"grant {chain.id}: {'refused' if refusals else 'admitted' if args.steward else 'good'}")
        for refusal in refusals:
            say(f"  {refusal}")
    return REFUSED if refusals else ACCEPTED


def run_balance(args: argparse.Namespace) -> int:
    from mesh.cli.client import Gateway
    from mesh.grant.chain import verify_unvouched
    from mesh.grant.text import grant_text

    data = _bytes(args.grant)
    verify_unvouched(data)  # what is none is sent nowhere
    told = Gateway(args.url, grant_text(data)).get_json("/mesh/v1/grant/balance")
    if not isinstance(told, dict) or not isinstance(told.get("totals"), list):
        raise ConnectionError(f"{args.url}: the answer is no balance")
    if args.json:
        emit(told)
        return ACCEPTED
    say(f"grant {told.get('grant_id')}")
    if not told["totals"]:
        say("  states no total: every serve is decided on its own")
    for total in told["totals"]:
        say(
            f"  block {total['block']} {total['caveat']}: {total['left']} of {total['limit']} left, "
            f"{total['settled']} by receipts, {total['estimated']} by estimate, {total['reserved']} reserved"
        )
    return ACCEPTED


def run_revoke(args: argparse.Namespace) -> int:
    chain = _read(args.grant)
    number = len(chain.blocks) - 1 if args.block is None else args.block
    if number >= len(chain.blocks):
        raise UsageError(f"--block {number}: the grant has blocks 0 to {len(chain.blocks) - 1}")
    block_id = chain.blocks[number].id
    known = not add_revoked(args.list, block_id)
    if args.json:
        emit({"block_id": block_id.text, "block": number, "list": str(args.list), "already": known})
    else:
        note(f"block {number}, {block_id}, is on {args.list}" + (" already" if known else ""))
    return ACCEPTED


def _hand_over(data: bytes, args: argparse.Namespace) -> int:
    from mesh.grant.chain import verify_unvouched
    from mesh.grant.inspection import chain_view
    from mesh.grant.text import grant_text

    text = grant_text(data)
    if args.out is not None:
        write_new(args.out, [f"{text}\n".encode()], mode=PRIVATE)
    if args.json:
        told: dict[str, Any] = chain_view(verify_unvouched(data))
        emit({**told, "out": str(args.out)} if args.out is not None else {"grant": text, **told})
    elif args.out is None:
        say(text)
    else:
        note(f"grant written to {args.out}: whoever reads it can use it")
    return ACCEPTED


def _bytes(given: str) -> bytes:
    """The bytes of a grant named on the command line. Raises SchemaError, OSError."""
    from mesh.grant.text import MAX_TEXT_CHARS, PREFIX, grant_from_text

    file_name: str | None = None
    if given == "-":
        given = sys.stdin.read(MAX_TEXT_CHARS + 2)
    elif not given.startswith(PREFIX):
        try:
            with open(given, encoding="utf-8", errors="replace") as file:
                file_name, given = given, file.read(MAX_TEXT_CHARS + 2)
        except OSError:
            # a grant with something before it, or whatever is too long for a file's name, may be a secret still
            if not given or PREFIX in given.lower() or len(given) > _MAX_NAME_CHARS:
                raise UsageError("GRANT: neither the text of a grant nor a file that can be read") from None
            raise
    try:
        return grant_from_text(given.strip())
    except SchemaError as e:
        raise e if file_name is None else SchemaError(f"{file_name}: {e}") from None


def _read(given: str) -> Chain:
    from mesh.grant.chain import verify_unvouched

    return verify_unvouched(_bytes(given))


def _check_span(caveats: dict[str, Any]) -> None:
    """Raises UsageError for times between which nothing lies: such a grant is good for no serve."""
    if caveats.get("not-before", 0) > caveats.get("not-after", 2**63):
        raise UsageError("--not-before is after --not-after: no serve could be admitted")


def _frame(args: argparse.Namespace, now_ns: int) -> Frame:
    """Raises UsageError for what no serve can be: that is not for the grant to refuse."""
    from mesh.grant.frame import Frame

    given = {name: getattr(args, flag) for flag, name in _FRAME_FLAGS.items() if getattr(args, flag) is not None}
    try:
        return Frame.of(**{**_LEAST, **given, "steward": args.steward, "now_ns": now_ns})
    except SchemaError as e:
        raise UsageError(f"the serve that would run: {str(e).removeprefix('frame: ')}") from None


def _say_chain(told: dict[str, Any]) -> None:
    from mesh.cli.words import utc

    say(f"grant {told['grant_id']}, {'open' if told['open'] else 'closed'}")
    say(f"issuer {told['issuer']}")
    for number, block in enumerate(told["blocks"]):
        say(f"block {number} {block['block_id']}")
        for name, stated in block["caveats"].items():
            said = ", ".join(map(str, stated)) if isinstance(stated, list) else str(stated)
            say(f"  {name}: {said}{f', {utc(int(stated))}' if name in _TIMES else ''}")
        if not block["caveats"]:
            say("  states nothing")
