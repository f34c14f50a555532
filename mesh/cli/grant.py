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
from mesh.cli.newfile import PRIVATE, write_new
from mesh.cli.trust import add_trust_flag, read_trust
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.grant.chain import Chain
    from mesh.grant.frame import Frame

_NS_PER_S = 10**9


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
    group.add_argument("--recipe", default="-", metavar="NAME", help="the model's name")
    group.add_argument("--backend", default="/".join(["none"] * 6), metavar="ID", help="the backend's id")
    group.add_argument("--weights", type=digest, metavar="b3:HEX", help="its weights digest")
    group.add_argument("--fidelity", type=whole, default=0, metavar="0..3", help="its rating (0)")
    group.add_argument("--prompt", type=whole, default=0, metavar="N", help="tokens of the prompt (0)")
    group.add_argument("--answer", type=whole, default=1, metavar="N", help="tokens of the answer, at most (1)")
    group.add_argument("--uj", type=whole, metavar="N", help="its worst case in microjoules")
    parser.add_argument("--at", type=moment, metavar="TIME", help="the time, 2026-11-30T08:00:00Z (now)")
    parser.add_argument("--leeway", type=whole, default=2, metavar="S", help="seconds between clocks (2)")
    parser.add_argument("--revoked", type=Path, metavar="FILE", help="the list of revoked blocks")


def run_issue(args: argparse.Namespace) -> int:
    from mesh.grant.making import issue
    from mesh.schema.ids import steward_text
    from mesh.steward import keys

    caveats = caveats_of(args)
    key = keys.load_or_create(args.key)
    data = issue(key, caveats, random=os.urandom)
    if not caveats:
        note("this grant states no caveat: it admits everything")
    note(f"issued by {steward_text(key.public)}; gateways that are to take it name that key as --issuer")
    return _hand_over(data, args)


def run_attenuate(args: argparse.Namespace) -> int:
    from mesh.grant.making import attenuate

    return _hand_over(attenuate(_read(args.grant), caveats_of(args), random=os.urandom), args)


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
    from mesh.grant.revocation import parse_revoked

    trust = read_trust(args.trust)
    chain = verify_grant(_bytes(args.grant), trust)
    now_ns = time.time_ns() if args.at is None else args.at
    chain.check_issuer(trust, now_ns)
    revoked = frozenset() if args.revoked is None else parse_revoked(args.revoked.read_bytes())
    if args.steward is None:
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
    from mesh.grant.text import grant_text

    told = Gateway(args.url, grant_text(_bytes(args.grant))).get_json("/mesh/v1/grant/balance")
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
    from mesh.grant.revocation import parse_revoked

    chain = _read(args.grant)
    number = len(chain.blocks) - 1 if args.block is None else args.block
    if number >= len(chain.blocks):
        raise UsageError(f"--block {number}: the grant has blocks 0 to {len(chain.blocks) - 1}")
    block_id = chain.blocks[number].id
    before = args.list.read_bytes() if args.list.exists() else b""
    known = block_id in parse_revoked(before)  # a list that is not one is not written to
    if not known:
        ended = before if before.endswith(b"\n") or not before else before + b"\n"
        # a gateway reads it at any time: it is replaced whole
        part = args.list.with_name(f".{args.list.name}.{os.getpid()}")
        write_new(part, [ended, f"{block_id.text}\n".encode()])
        part.replace(args.list)
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

    if given == "-":
        given = sys.stdin.read(MAX_TEXT_CHARS + 2)
    elif not given.startswith(PREFIX):
        with open(given, encoding="utf-8", errors="replace") as file:
            given = file.read(MAX_TEXT_CHARS + 2)
    return grant_from_text(given.strip())


def _read(given: str) -> Chain:
    from mesh.grant.chain import verify_unvouched

    return verify_unvouched(_bytes(given))


def _frame(args: argparse.Namespace, now_ns: int) -> Frame:
    from mesh.grant.frame import Frame

    return Frame.of(
        steward=args.steward, recipe_id=args.recipe, backend_id=args.backend, fidelity=args.fidelity,
        prompt_tokens=args.prompt, max_tokens=args.answer, now_ns=now_ns, weights_digest=args.weights, est_uj=args.uj,
    )  # fmt: skip


def _say_chain(told: dict[str, Any]) -> None:
    say(f"grant {told['grant_id']}, {'open' if told['open'] else 'closed'}")
    say(f"issuer {told['issuer']}")
    for number, block in enumerate(told["blocks"]):
        say(f"block {number} {block['block_id']}")
        for name, stated in block["caveats"].items():
            say(f"  {name}: {', '.join(map(str, stated)) if isinstance(stated, list) else stated}")
        if not block["caveats"]:
            say("  states nothing")
