"""What a client answers about blueprints."""

from __future__ import annotations

from typing import Any, Final

from mesh.blueprint import postcard as p
from mesh.blueprint import postcard_scalars as s
from mesh.blueprint.container import Container
from mesh.blueprint.revocation import Revocations
from mesh.blueprint.signature import KEY_BYTES, PublicKey
from mesh.blueprint.verification import Policy, Served, check_lineage, read_unverified, verify
from mesh.errors import SchemaError
from mesh.schema.ids import ContentId

KINDS: Final[dict[str, s.Kind]] = {
    "u8": s.U8, "u16": s.U16, "u32": s.U32, "u64": s.U64, "u128": s.U128, "i8": s.I8, "i16": s.I16, "i32": s.I32,
    "i64": s.I64, "i128": s.I128, "bool": s.BOOL, "char": s.CHAR, "string": s.Text(1024, empty=True),
    "bytes": s.Bytes(1024), "option-u8": p.Option(s.U8), "seq-u16": p.Seq(s.U16, 1024),
    "map-u8-u8": p.Map(s.U8, s.U8, 1024),
}  # fmt: skip


def postcard_line(kind: str, data: bytes) -> str:
    return _told(p.decode(KINDS[kind], data))


def _told(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return value.encode().hex() or "empty"
    if isinstance(value, bytes):
        return value.hex() or "empty"
    if isinstance(value, dict):
        return " ".join(f"{key}:{item}" for key, item in value.items()) or "empty"
    return " ".join(map(str, value)) or "empty"


def read_blueprint(data: bytes) -> str:
    return ContentId(read_unverified(Container.of_bytes(data)).id).text


def verify_blueprint(data: bytes, keys: bytes, listed: bytes, now_s: str) -> str:
    roots = {
        key.id: key
        for key in (PublicKey.from_bytes(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES))
    }
    policy = Policy(roots, Revocations.from_bytes(listed, roots), int(now_s))
    return ContentId(verify(Container.of_bytes(data), policy).id).text


def next_of_lineage(data: bytes, revision: str, blueprint_id: str) -> str:
    blueprint = read_unverified(Container.of_bytes(data))
    served = bytes.fromhex(blueprint_id)
    if len(served) != 32:
        raise SchemaError("expected an id of 32 bytes")
    check_lineage(blueprint, Served(int(revision), served), allow=False)
    return ContentId(blueprint.id).text
