"""`mesh blueprint`: state what runs, sign it, look into it; the actions are in `blueprint_make`, `blueprint_keys` and
`blueprint_view`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mesh.cli import blueprint_keys, blueprint_make, blueprint_view, circuit_page
from mesh.cli.caveats import moment
from mesh.cli.engines import add_engine_flags, add_trusted_flags
from mesh.cli.state import add_state_flag


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "blueprint",
        help="state what runs, sign it, verify it, look into it",
        description="A blueprint states every kernel, precision boundary and setting of a serve in one file. `mesh "
        "serve --blueprint FILE` serves under it and under nothing else.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for each in (_add_making, _add_keys, _add_viewing):
        each(actions)
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print one JSON object")


def _out(action: argparse.ArgumentParser) -> None:
    action.add_argument("--out", required=True, type=Path, metavar="FILE", help="must not exist")


def _file(action: argparse.ArgumentParser, name: str = "file") -> None:
    action.add_argument(name, metavar=name.upper(), type=Path, help="a .kbp file")


def _add_making(actions: Any) -> None:
    building = actions.add_parser(
        "build", usage="mesh blueprint build --gguf FILE --out FILE [flags of the engine]",
        help="a preview of a model and the settings that the engine's flags give it",
        description="What would run here, from the model's tensors, the installed build and the settings. Nothing is "
        "signed: nothing serves under it until it is.",
    )  # fmt: skip
    building.add_argument("--title", metavar="TEXT", help="what people call it (default: the model's name)")
    building.add_argument("--after", type=Path, metavar="FILE", help="of this one's lineage, a revision later")
    building.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a lever of the engine")
    building.add_argument(
        "--evidence", action="append", default=[], type=Path, metavar="FILE",
        help="JSON with kind, record, engine_commit, engine_binary, argv and env: a record somewhere else, by hashes",
    )  # fmt: skip
    _out(building)
    add_engine_flags(building, required=False, governed=False)
    building.set_defaults(run=blueprint_make.run_build)

    signing = actions.add_parser("sign", help="sign a preview, or sign anew what was signed")
    _file(signing)
    signing.add_argument("--key", required=True, type=Path, metavar="FILE", help="the signer's secret key")
    signing.add_argument(
        "--cert", action="append", required=True, type=Path, metavar="FILE",
        help="the signer's certificate, then the one of who issued it, up to the root; at most 4",
    )  # fmt: skip
    _out(signing)
    signing.set_defaults(run=blueprint_make.run_sign)

    for name, about in (("lite", "without the kernels' bytes"), ("full", "with every kernel's bytes inside")):
        action = actions.add_parser(name, help=f"the same blueprint {about}")
        _file(action)
        _out(action)
        if name == "lite":
            action.add_argument(
                "--at", metavar="WHERE", help="a folder (from / on) or https address where others find the modules"
            )
        if name == "full":
            action.add_argument(
                "--kernels", type=Path, metavar="DIR", help="where modules are that are not in the installed engine"
            )
        action.set_defaults(run=blueprint_make.run_lite if name == "lite" else blueprint_make.run_full)


def _add_keys(actions: Any) -> None:
    making = actions.add_parser("keygen", help="a new pair of keys: FILE, that only you can read, and FILE.pub")
    _out(making)
    making.set_defaults(run=blueprint_keys.run_keygen)

    certifying = actions.add_parser("certify", help="vouch for another's key until a date")
    certifying.add_argument("--key", required=True, type=Path, metavar="FILE", help="the issuer's secret key")
    certifying.add_argument("--subject", required=True, type=Path, metavar="FILE", help="the other's public key")
    certifying.add_argument("--label", required=True, metavar="TEXT", help="who that is, at most 64 bytes")
    certifying.add_argument("--not-before", type=moment, metavar="TIME", help="from then on (default: now)")
    certifying.add_argument("--not-after", type=moment, required=True, metavar="TIME", help="2027-11-30T08:00:00Z")
    certifying.add_argument("--may-certify", action="store_true", help="the other may vouch for others")
    _out(certifying)
    certifying.set_defaults(run=blueprint_keys.run_certify)

    revoking = actions.add_parser(
        "revoke", help="a list of what a root takes back; an empty one says that nothing is",
        description="ID is 64 hex digits: of a certificate, a key, a kernel's module or a blueprint, as `inspect` "
        "shows them. A new list holds what the one before it held.",
    )  # fmt: skip
    revoking.add_argument("ids", nargs="*", metavar="ID", help="what is taken back; it may be nothing")
    revoking.add_argument("--key", required=True, type=Path, metavar="FILE", help="the root's secret key")
    revoking.add_argument("--previous", type=Path, metavar="FILE", help="the list before this one")
    revoking.add_argument("--not-after", type=moment, required=True, metavar="TIME", help="nobody trusts it after that")
    _out(revoking)
    revoking.set_defaults(run=blueprint_keys.run_revoke)


def _add_viewing(actions: Any) -> None:
    verifying = actions.add_parser("verify", help="whether it may be used, in the order of the checks")
    _file(verifying)
    add_trusted_flags(verifying)
    verifying.add_argument("--at", type=moment, metavar="TIME", help="as of then (default: now)")
    verifying.set_defaults(run=blueprint_view.run_verify)

    inspecting = actions.add_parser("inspect", help="what it states, whoever made it; no signature is checked")
    _file(inspecting)
    inspecting.set_defaults(run=blueprint_view.run_inspect)

    drawing = actions.add_parser("page", help="its circuit in one HTML file, to be turned, filtered and coloured")
    _file(drawing)
    _out(drawing)
    drawing.set_defaults(run=circuit_page.run_page)

    comparing = actions.add_parser("diff", help="everything that B states otherwise than A; exit 10 where there is")
    _file(comparing, "a")
    _file(comparing, "b")
    comparing.set_defaults(run=blueprint_view.run_diff)

    telling = actions.add_parser("history", help="what was served under here, and what was allowed to be")
    add_state_flag(telling)
    telling.set_defaults(run=blueprint_view.run_history)
