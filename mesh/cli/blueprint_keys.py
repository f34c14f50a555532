"""Keys, certificates and lists of revocations: `mesh blueprint keygen`, `certify` and `revoke`."""

from __future__ import annotations

import argparse
import os
import re
import time

from mesh.cli.blueprint_files import public_line, read_public_key, read_revocations, read_secret_key, secret_line
from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED
from mesh.cli.newfile import check_new, write_new
from mesh.errors import UsageError

_NS_PER_S = 10**9
_ID = re.compile(r"(?:sha256:|b3:)?([0-9a-f]{64})")


def run_keygen(args: argparse.Namespace) -> int:
    from mesh.blueprint.signature import SEED_BYTES, SecretKey
    from mesh.steward.secret_file import write_secret

    public = args.out.with_name(f"{args.out.name}.pub")
    check_new(public)
    key = SecretKey(os.urandom(SEED_BYTES))
    write_secret(args.out, secret_line(key), f"blueprint key {args.out}")
    write_new(public, [public_line(key.public).encode() + b"\n"])
    if args.json:
        emit({"key_id": key.public.id.hex(), "secret": str(args.out), "public": str(public)})
    else:
        note(f"secret key in {args.out}: whoever reads it can sign as this key; keep a root's offline")
        say(f"key id   {key.public.id.hex()}")
        say(f"public   {public}")
    return ACCEPTED


def run_certify(args: argparse.Namespace) -> int:
    from mesh.blueprint.certificate import SERIAL_BYTES, certify

    issuer, subject = read_secret_key(args.key), read_public_key(args.subject)
    check_new(args.out)
    from_ns = time.time_ns() if args.not_before is None else args.not_before
    certificate = certify(
        issuer, subject, label=args.label, from_s=from_ns // _NS_PER_S, until_s=args.not_after // _NS_PER_S,
        may_certify=args.may_certify, serial=os.urandom(SERIAL_BYTES),
    )  # fmt: skip
    write_new(args.out, [certificate.data])
    if args.json:
        emit({"certificate": certificate.id.hex(), "subject": subject.id.hex(), "out": str(args.out)})
    else:
        say(f"certificate  {certificate.id.hex()}")
    return ACCEPTED


def run_revoke(args: argparse.Namespace) -> int:
    from mesh.blueprint.revocation import revoke

    root = read_secret_key(args.key)
    check_new(args.out)
    ids, number = {_id(text) for text in args.ids}, 1
    if args.previous is not None:
        before = read_revocations(args.previous, {root.public.id: root.public})
        ids, number = ids | before.ids, before.number + 1
    made_s, until_s = time.time_ns() // _NS_PER_S, args.not_after // _NS_PER_S
    write_new(args.out, [revoke(root, ids, number=number, made_s=made_s, until_s=until_s)])
    if args.json:
        emit({"number": number, "revoked": sorted(one.hex() for one in ids), "out": str(args.out)})
    else:
        say(f"list {number}: {len(ids)} revoked")
    return ACCEPTED


def _id(text: str) -> bytes:
    match = _ID.fullmatch(text)
    if match is None:
        raise UsageError(f"{text[:80]!r}: expected 64 hex digits, as `mesh blueprint inspect` shows them")
    return bytes.fromhex(match[1])
