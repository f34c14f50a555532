"""A model's files as they were while the library mapped them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from mesh.engine.gguf_described import weights_changed
from mesh.errors import WeightsChanged
from mesh.identity.derived import content_digest
from mesh.identity.files import FileIdentity
from mesh.identity.model import GgufModel
from mesh.identity.weights import Weights, digest_files

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`content` is the digest of the same files as identities name it."""

    weights: Weights
    content: str

    @classmethod
    async def loaded(cls, model: GgufModel, load: Callable[[], Awaitable[T]]) -> tuple[Self, T]:
        """Digest the files while `load` maps them: both must have seen the same ones. Raises WeightsChanged where they
        did not, what `load` raises, and OSError for a file that cannot be read."""
        files = model.logical_files
        before = {name: FileIdentity.of(path) for name, path in files.items()}
        digesting = asyncio.create_task(asyncio.to_thread(lambda: (digest_files(files), content_digest(files))))
        try:
            answer = await load()
        finally:
            await asyncio.wait({digesting})
        weights, content = digesting.result()
        changed = weights.changed()
        if changed is not None or any(before[file.name] != file.identity for file in weights.files):
            raise WeightsChanged(f"model files: {changed or 'replaced'} while they were loaded")
        return cls(weights, content), answer

    async def changed(self) -> WeightsChanged | None:
        """What is otherwise now, None where nothing is."""
        how = await asyncio.to_thread(self.weights.changed)
        return None if how is None else weights_changed(how)
