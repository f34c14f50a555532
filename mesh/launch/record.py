"""The launch record: what was started, on which nodes, from which bytes, signed before it starts.

A COSE_Sign1 over a canonical map, whose content id of kind `launch` is what a receipt's `launch_digest` names. It holds
digests of the recipe and of each configuration file; the files themselves are kept beside it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh.errors import LaunchError, SchemaError
from mesh.launch.config import Loaded
from mesh.launch.plan import Plan
from mesh.launch.toml_file import read_bounded
from mesh.schema import cose
from mesh.schema.envelope import LAUNCH_TYPE, SigningKey, seal, verify
from mesh.schema.ids import ContentId
from mesh.schema.launch import Launch
from mesh.schema.limits import MAX_PAYLOAD_BYTES

VERSION = "mesh/1"
RECORD_FILE = "launch.record"
HIDDEN = "(not recorded)"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)
# Listings of thousands of files: the record has their digest, and the folder beside it the text.
_DIGESTED = ("weights",)
_RECORDED = ("image", "image content", "program", "inherited environment", "weights")


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
    try:
        sealed = seal(Launch.from_map(fields), key)
    except SchemaError as e:
        raise LaunchError(f"launch record: {e}") from None
    if len(sealed.payload) > MAX_PAYLOAD_BYTES:
        raise LaunchError(f"launch record: {len(sealed.payload)} bytes, expected at most {MAX_PAYLOAD_BYTES}")
    return LaunchRecord(sealed.envelope, sealed.id, key.public, fields)


def shown(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) else value


def _found(facts: Mapping[str, str]) -> dict[str, str]:
    """Texts as they were printed; long listings by their digest. What hooks and copies print is no fact of a node, may
    be long, and may be secret."""
    return {
        what: ContentId.of_bytes(text.encode()).text if what in _DIGESTED else text
        for what, text in facts.items()
        if what in _RECORDED
    }


def read_record(data: bytes, trust: Collection[bytes] | None = None) -> LaunchRecord:
    """Check a record. Without `trust` it is only held to the key that it names itself. Raises the EnvelopeError of the
    first fault, or UntrustedSteward."""
    if trust is None:
        protected = (cose.split(data) or cose.take_apart(data))[0]
        named = cose.parse_header(protected).get(4)
        trust = frozenset([named]) if isinstance(named, bytes) else frozenset()
    sealed = verify(data, LAUNCH_TYPE, trust)
    value: Launch = sealed.value
    return LaunchRecord(sealed.envelope, sealed.id, value.signer, value.to_map())


def keep(
    folder: Path, record: LaunchRecord, plan: Plan, config: Loaded, facts: Mapping[str, Mapping[str, str]]
) -> Path:
    """Write the record, and the bytes that it names, into a folder of the run's own. The record's path. Raises
    LaunchError where they do not go there: then nothing is left of them."""
    files = {"recipe.toml": plan.file.data}
    files |= {f"config-{number}.toml": data for number, data in enumerate(config.files.values())}
    for node, found in facts.items():
        files |= {f"{what}-{node}.txt": found[what].encode() for what in _DIGESTED if what in found}
    files[RECORD_FILE] = record.data  # the last: where it is, all are
    made = False
    try:
        folder.mkdir(parents=True)
        made = True
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as e:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise LaunchError(f"{folder}: what is launched could not be kept: {(e.strerror or str(e)).lower()}") from None
    return folder / RECORD_FILE


def load_record(path: Path, trust: Collection[bytes] | None = None) -> LaunchRecord:
    """Raises OSError, EnvelopeError, UntrustedSteward."""
    return read_record(read_bounded(path), trust)
