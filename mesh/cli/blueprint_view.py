"""Looking: `mesh blueprint verify`, `inspect` and `diff`."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.blueprint_files import opened, read_policy
from mesh.cli.console import counted, emit, note, printable, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.state import state_of

if TYPE_CHECKING:
    from mesh.blueprint.body import Body
    from mesh.blueprint.container import Container, Locator
    from mesh.blueprint.verification import Blueprint
    from mesh.ledger import ServedUnder

_NS_PER_S = 10**9


def run_verify(args: argparse.Namespace) -> int:
    from mesh.blueprint.verification import verify

    at_ns = time.time_ns() if args.at is None else args.at
    policy = read_policy(args.blueprint_root or [], args.blueprint_revoked, at_ns // _NS_PER_S)
    with opened(args.file) as container:
        blueprint = verify(container, policy)
        form = form_of(container, blueprint)
    told = {
        "blueprint_id": f"sha256:{blueprint.id.hex()}", "form": form, "lineage": blueprint.body.lineage.hex(),
        "revision": blueprint.body.revision, "signer": blueprint.chain[0].label,
        "root": blueprint.chain[-1].issuer.hex(),
        "revocations": policy.revocations.number,
    }  # fmt: skip
    if args.json:
        emit({**told, "chain": [_certificate(one) for one in blueprint.chain]})
    else:
        for name, value in told.items():
            _line(f"{name.replace('_', ' '):<12}  {value}")
        note("verified: bounds, body hash, chain, expiry, revocations, both signatures, kernels, body")
    return ACCEPTED


def _line(text: str) -> None:
    """Print what a blueprint says as one line, whatever is in its texts: one that is not verified may look like lines
    of ours."""
    say(printable(text))


def form_of(container: Container, blueprint: Blueprint) -> str:
    from mesh.blueprint.container import Inline

    inline = sum(isinstance(locator.source, Inline) for locator in blueprint.locators)
    whole = "full" if inline == len(blueprint.locators) else "lite" if not inline else "partly full"
    return whole if container.signature_block else f"{whole}, an unsigned preview"


def run_inspect(args: argparse.Namespace) -> int:
    from mesh.blueprint.verification import read_unverified

    with opened(args.file) as container:
        blueprint = read_unverified(container)
        chain = _chain(container)
        form = form_of(container, blueprint)
    body = blueprint.body
    if args.json:
        emit({
            "blueprint_id": f"sha256:{blueprint.id.hex()}", "form": form, "signed": bool(chain), "verified": False,
            "chain": chain, **described(body), "locators": [_locator(one) for one in blueprint.locators],
        })  # fmt: skip
        return ACCEPTED
    say(f"blueprint   sha256:{blueprint.id.hex()}")
    say(f"form        {form}")
    for one in chain:
        _line(f"signed by   {one['label']}, key {one['subject']}, certificate {one['certificate']}")
    for name, value in _rows(body):
        _line(f"{name:<10}  {value}")
    note(
        "no signature was checked" if chain else "a preview: it is not signed, and nothing serves under it until it is"
    )
    return ACCEPTED


def _chain(container: Container) -> list[dict[str, Any]]:
    from mesh.blueprint.sealing import SignatureBlock

    if not container.signature_block:
        return []
    return [_certificate(one) for one in SignatureBlock.from_bytes(container.signature_block).chain]


def _certificate(one: Any) -> dict[str, Any]:
    return {
        "label": one.label, "certificate": one.id.hex(), "subject": one.subject.id.hex(), "issuer": one.issuer.hex(),
        "from_s": one.from_s, "until_s": one.until_s, "may_certify": one.may_certify,
    }  # fmt: skip


def _locator(locator: Locator) -> dict[str, Any]:
    source = locator.source
    return {"digest": locator.digest.hex(), "source": type(source).__name__.lower(), **dataclasses.asdict(source)}


def described(body: Body) -> dict[str, Any]:
    """The body as JSON holds it, circuit and plan in numbers."""
    told: dict[str, Any] = _plain(dataclasses.asdict(dataclasses.replace(body)))
    circuit = body.circuit
    told["circuit"] = {
        "formats": [one.name for one in circuit.formats], "weights": len(circuit.weights),
        "blocks": len(circuit.blocks), "states": len(circuit.states), "nodes": len(circuit.nodes),
        "edges": len(circuit.edges), "kinds": dict(sorted(circuit.kinds.items())),
    }  # fmt: skip
    told["plan"] = [
        {"mode": arm.mode, "rows_from": arm.rows_from, "rows_to": arm.rows_to, "groups": len(arm.groups),
         "digest": arm.digest.hex()}
        for arm in body.plan
    ]  # fmt: skip
    told["settings"] = {"engine": body.settings.engine, **told["settings"]}
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _rows(body: Body) -> list[tuple[str, str]]:
    circuit, checkpoint = body.circuit, body.checkpoint
    settings = [
        f"{field.name} {getattr(body.settings, field.name)}" for field in dataclasses.fields(body.settings)
        if field.name not in ("environment", "chat_template") and getattr(body.settings, field.name) is not None
    ]  # fmt: skip
    environment = ", ".join(f"{name}={value}" for name, value in body.settings.environment) or "no variable"
    return [
        ("title", body.name),
        ("lineage", f"{body.lineage.hex()}, revision {body.revision}"),
        ("checkpoint", f"{checkpoint.format}, {checkpoint.architecture}, {counted(checkpoint.layers, 'layer')}, "
                       f"{checkpoint.precision}, weights b3:{checkpoint.weights_digest.hex()}"),
        ("hardware", f"{body.hardware.isa}, {body.hardware.device}, with {' '.join(body.hardware.features) or 'any'}"),
        ("circuit", f"{len(circuit.nodes)} nodes, {len(circuit.edges)} edges, {len(circuit.weights)} weights, "
                    + ", ".join(f"{count} {kind}" for kind, count in sorted(circuit.kinds.items()))),
        ("formats", ", ".join(one.name for one in circuit.formats)),
        *(("plan", f"{arm.mode}, rows {arm.rows_from} to {arm.rows_to}: {len(arm.groups)} groups, {arm.digest.hex()}")
          for arm in body.plan),
        *(("module", f"{one.name}, {one.length} bytes, sha256:{one.digest.hex()}, {one.architecture}, {one.origin}")
          for one in body.modules),
        *(("kernel", f"{body.modules[one.module].name}::{one.function} ({one.family}; {one.numerics})")
          for one in body.kernels),
        ("settings", f"{body.settings.engine}: {', '.join(settings)}"),
        ("levers", environment),
        *(("evidence", f"{one.kind}: record {one.record.hex()} of {one.engine_commit}") for one in body.evidence),
    ]  # fmt: skip


def run_diff(args: argparse.Namespace) -> int:
    from mesh.blueprint.difference import differences

    found = list(differences(_body(args.a), _body(args.b)))
    if args.json:
        emit({"same": not found, "differences": [{"of": what, "a": a, "b": b} for what, a, b in found]})
    elif found:
        for what, a, b in found:
            _line(f"{what}: {a} -> {b}")
    else:
        say("the same: nothing that they state differs")
    return REFUSED if found else ACCEPTED


def _body(path: Path) -> Body:
    from mesh.blueprint.verification import read_unverified

    with opened(path) as container:
        return read_unverified(container).body


def run_history(args: argparse.Namespace) -> int:
    from mesh.schema.trust import time_text

    with state_of(args).open_reader() as reader:
        starts = reader.blueprints()
    if args.json:
        emit({"starts": [_start(one) for one in starts]})
    else:
        for one in starts:
            allowed = "" if one.allowed is None else f", ALLOWED: {one.allowed}"
            name, lineage = f"sha256:{one.blueprint_id.hex()}", one.lineage.hex()
            say(f"{time_text(one.at_ns)}  {name}, revision {one.revision} of {lineage}{allowed}")
    return ACCEPTED


def _start(one: ServedUnder) -> dict[str, Any]:
    told = {"at_ns": str(one.at_ns), "blueprint_id": f"sha256:{one.blueprint_id.hex()}", "lineage": one.lineage.hex()}
    allowed = {} if one.allowed is None else {"allowed": one.allowed}
    return {**told, "revision": one.revision, **allowed}
