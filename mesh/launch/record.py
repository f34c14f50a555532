"""The launch record: what was started, on which nodes, from which bytes, signed before it starts.

A COSE_Sign1 over a canonical map, whose content id of kind `launch` is what a receipt's `launch_digest` names. It holds
digests of the recipe and of each configuration file; the files themselves are kept beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh.errors import EncodingError, HeaderError, LaunchError, PayloadError, SchemaError, UntrustedSteward
from mesh.launch.config import Loaded
from mesh.launch.plan import Plan
from mesh.launch.toml_file import read_bounded
from mesh.schema import canonical, cose
from mesh.schema.cose import ALG_ED25519
from mesh.schema.envelope import SigningKey, verify_signature
from mesh.schema.ids import ContentId, steward_text
from mesh.schema.keys import check_public_key
from mesh.schema.limits import MAX_PAYLOAD_BYTES

LAUNCH_TYPE = "application/mesh-launch+cbor"
VERSION = "mesh/1"
RECORD_FILE = "launch.record"
HIDDEN = "(not recorded)"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)
# Listings of thousands of files: the record has their digest, and the folder beside it the text.
_DIGESTED = ("weights",)
_KEYS = ("v", "signer", "launched_ns", "run", "recipe", "engine", "model", "recipe_digest", "config_digests",
         "allowed_levers", "pinned_files", "ranks")  # fmt: skip
_OPTIONAL = ("engine_version", "model_revision", "image")


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A signed record that was checked. `digest` is what receipts name it by, `fields` its payload."""

    data: bytes
    digest: ContentId
    signer: bytes
    fields: Mapping[str, Any]


def make_record(
    plan: Plan, config: Loaded, facts: Mapping[str, Mapping[str, str]], *, model: str, launched_ns: int, key: SigningKey
) -> LaunchRecord:
    """`facts` are what was found on each node, `model` the name that is served. Of variables whose names say that they
    are secret the values are left out, the names are not. Raises LaunchError where the record is too large."""
    recipe = plan.file.recipe
    fields: dict[str, Any] = {
        "v": VERSION,
        "signer": key.public,
        "launched_ns": launched_ns,
        "run": plan.run,
        "recipe": plan.file.name,
        "engine": recipe.engine,
        "model": model,
        "recipe_digest": bytes(ContentId.of_bytes(plan.file.data)),
        "config_digests": [bytes(ContentId.of_bytes(data)) for data in config.files.values()],
        "allowed_levers": list(recipe.allowed_levers),
        "pinned_files": dict(recipe.pins.model_files),
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node.name,
                "argv": list(rank.argv),
                "environment": {name: shown(name, value) for name, value in rank.environment.items()},
                "found": _found(facts.get(rank.node.name, {})),
            }
            for rank in plan.ranks
        ],
    }
    optional = {"engine_version": recipe.engine_version, "model_revision": recipe.revision, "image": plan.image}
    fields |= {name: value for name, value in optional.items() if value is not None}
    payload = canonical.encode(fields)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise LaunchError(f"launch record: {len(payload)} bytes, expected at most {MAX_PAYLOAD_BYTES}")
    protected = _protected(key.public, plan.file.name)
    data = cose.assemble(protected, cose.NO_HEADER, payload, key.sign(cose.to_be_signed(protected, payload)))
    return LaunchRecord(data, ContentId.of_canonical("launch", payload), key.public, fields)


def shown(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) else value


def _found(facts: Mapping[str, str]) -> dict[str, str]:
    """Texts as they were printed; long listings by their digest."""
    return {what: ContentId.of_bytes(text.encode()).text if what in _DIGESTED else text for what, text in facts.items()}


def _protected(signer: bytes, subject: str) -> bytes:
    return cose.canonical_header({1: ALG_ED25519, 3: LAUNCH_TYPE, 4: signer, 15: {1: steward_text(signer), 2: subject}})


def read_record(data: bytes, trust: frozenset[bytes] | None = None) -> LaunchRecord:
    """Check a record. Without `trust` it is only held to the key that it names itself. Raises the EnvelopeError of the
    first fault, or UntrustedSteward."""
    protected, unprotected, payload, signature = cose.split(data) or cose.take_apart(data)
    header = cose.parse_header(protected)
    if header.get(3) != LAUNCH_TYPE or unprotected:
        raise HeaderError(f"launch record: content type is {str(header.get(3))[:80]!r}, expected {LAUNCH_TYPE!r}")
    signer = header.get(4)
    if not isinstance(signer, bytes) or len(signer) != 32:
        raise HeaderError("launch record: the key id is not of 32 bytes")
    if trust is not None and signer not in trust:
        raise UntrustedSteward(f"launcher {steward_text(signer)} is not in the trust set")
    try:
        check_public_key(signer)
    except SchemaError as e:
        raise HeaderError(f"launch record: {e}") from None
    verify_signature(signer, cose.to_be_signed(protected, payload), signature)
    try:
        fields = canonical.decode_map(payload, max_bytes=MAX_PAYLOAD_BYTES)
    except (EncodingError, SchemaError) as e:
        raise PayloadError(f"launch record: {e}") from None
    missing = [name for name in _KEYS if name not in fields]
    unknown = [name for name in fields if name not in (*_KEYS, *_OPTIONAL)]
    if missing or unknown or fields["signer"] != signer or fields["v"] != VERSION:
        fault = (
            f"{missing[0]} missing" if missing else f"{unknown[0]} unknown" if unknown else "signer or version differ"
        )
        raise PayloadError(f"launch record: {fault}")
    if protected != _protected(signer, str(fields["recipe"])):
        raise HeaderError("launch record: its header is not the one of its payload")
    return LaunchRecord(data, ContentId.of_canonical("launch", payload), signer, fields)


def keep(
    folder: Path, record: LaunchRecord, plan: Plan, config: Loaded, facts: Mapping[str, Mapping[str, str]]
) -> Path:
    """Write the record, and the bytes that it names, into a folder of the run's own. The record's path."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_bytes(plan.file.data)
    for number, data in enumerate(config.files.values()):
        (folder / f"config-{number}.toml").write_bytes(data)
    for node, found in facts.items():
        for what in _DIGESTED:
            if what in found:
                (folder / f"{what}-{node}.txt").write_bytes(found[what].encode())
    path = folder / RECORD_FILE
    path.write_bytes(record.data)
    return path


def load_record(path: Path, trust: frozenset[bytes] | None = None) -> LaunchRecord:
    """Raises OSError, EnvelopeError, UntrustedSteward."""
    return read_record(read_bounded(path), trust)
