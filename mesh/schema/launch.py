"""What was started, on which nodes, from which bytes: the payload of a launch record, which a receipt names by its
`launch_digest`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from mesh.schema import canonical
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_RANKS, MAX_UINT
from mesh.schema.value import Digest, Name, Token, UInt, Value

Said = Annotated[str, Meta(min_length=1)]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
FileMark = Annotated[str, Meta(pattern=r"^(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40})\Z")]


class LaunchRank(Value):
    """`argv` and `environment` are all that the engine was started with; `found` is what was seen on its node, text by
    what it is of."""

    rank: Annotated[int, Meta(ge=0, le=MAX_UINT)]
    node: Name
    argv: Annotated[list[str], Meta(min_length=1)]
    environment: dict[Variable, str]
    found: dict[Name, str]


class Launch(Value):
    """`launched_ns` is before the first engine started. `config_digests` are in the order in which the files were
    read."""

    v: Literal["mesh/1"]
    signer: Digest
    launched_ns: UInt
    run: Name
    recipe: Name
    engine: Token
    model: Said
    recipe_digest: Digest
    config_digests: list[Digest]
    allowed_levers: list[Said]
    pinned_files: dict[Said, FileMark]
    ranks: Annotated[list[LaunchRank], Meta(min_length=1, max_length=MAX_RANKS)]
    engine_version: Said | None = None
    model_revision: Said | None = None
    image: Said | None = None

    def __post_init__(self) -> None:
        if [one.rank for one in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks must be counted from 0, in order")

    @property
    def id(self) -> ContentId:
        return ContentId.of_canonical("launch", self.to_cbor())

    # The keys of its inner maps are anybody's, and msgspec keeps them in whatever order they came.

    @classmethod
    def from_cbor(cls, data: bytes, *, max_bytes: int) -> Self:
        return cls.from_map(canonical.decode_map(data, max_bytes=max_bytes))

    def to_cbor(self) -> bytes:
        fields: dict[str, Any] = self.to_map()
        return canonical.encode(fields)
