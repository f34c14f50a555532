"""A GGUF model: one file, or the shards of one split, found and checked before anything loads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mesh.errors import ModelFileError
from mesh.identity.gguf import GgufHeader, check_blocks, read_header
from mesh.identity.tensors import GgufTensor

# As every splitting tool writes it. The prefix is the model's; the engine finds the siblings by it.
_SHARD = re.compile(r"(?P<prefix>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf\Z", re.DOTALL)


@dataclass(frozen=True)
class GgufModel:
    """`files` are the paths to open, in shard order and with links unresolved: an engine finds the other shards by the
    name of the first. `header` is the first shard's, which speaks for the model."""

    files: tuple[Path, ...]
    headers: tuple[GgufHeader, ...]

    @property
    def header(self) -> GgufHeader:
        return self.headers[0]

    @property
    def logical_files(self) -> Mapping[str, Path]:
        """The files under the names that the weights digest gives them, whatever they are called on this disk."""
        first, *others = self.files
        if not others:
            return {"model.gguf": first}
        return {f"model-{i:05d}-of-{len(self.files):05d}.gguf": path for i, path in enumerate(self.files, start=1)}

    @cached_property
    def tensors(self) -> tuple[GgufTensor, ...]:
        return tuple(tensor for header in self.headers for tensor in header.tensors)

    @property
    def tensor_types(self) -> Counter[str]:
        """How many tensors there are of each type."""
        return Counter(tensor.type.name for tensor in self.tensors)

    @cached_property
    def precision(self) -> str | None:
        """The type that most of the bytes are in, such as Q4_1; None where there are no tensors."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type.name] += tensor.size
        return max(sizes, key=lambda name: (sizes[name], name), default=None)

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float | None:
        """Over all tensors, those that every quantization leaves wide included; None where there are none."""
        return self.weight_bytes * 8 / self.parameters if self.parameters else None


def read_model(path: Path) -> GgufModel:
    """Find the files of the model at `path` (its one file, any of its shards, or their folder) and read their headers.

    Raises ModelFileError where a shard is missing, too many or not what its name says, or where a file is not a sound
    GGUF; OSError where one cannot be read.
    """
    if path.is_dir():
        path = _only_model_in(path)
    match = _SHARD.match(path.name)
    if match is None or int(match["count"]) == 1:
        header = read_header(path)
        if header.split is not None:
            raise ModelFileError(
                f"{path.name}: split.count is {header.split.count}, expected a name that ends in "
                f"-{header.split.number + 1:05d}-of-{header.split.count:05d}.gguf: give the shard by that name, not "
                "the file that a link of that name points to",
                field="split.count",
            )
        return GgufModel((path,), (header,))
    files = _shards(path.parent, match["prefix"], match["count"])
    headers = tuple(read_header(file) for file in files)
    _check_split(headers)
    return GgufModel(files, headers)


def _only_model_in(folder: Path) -> Path:
    """A file of the one model in `folder`. With more than one the folder names none of them."""
    models: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.glob("*.gguf")):
        match = _SHARD.match(path.name)
        models.setdefault((match["prefix"], match["count"]) if match else (path.name, ""), path)
    if not models:
        raise ModelFileError(f"{folder.name}: no .gguf file in this folder")
    first, *others = models.values()
    if others:
        names = ", ".join(path.name for path in (first, *others[:3]))
        raise ModelFileError(f"{folder.name}: {len(models)} models in this folder, name one of them: {names}")
    return first


def _shards(folder: Path, prefix: str, digits: str) -> tuple[Path, ...]:
    """The files `<prefix>-00001-of-<digits>.gguf` and on in `folder`: these and no other number."""
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        match = _SHARD.match(path.name)
        if match and match.group("prefix", "count") == (prefix, digits):
            found[int(match["number"])] = path
    count = int(digits)
    numbers = range(1, count + 1)
    extra = sorted(found.keys() - set(numbers))
    if extra:
        raise ModelFileError(f"{found[extra[0]].name}: extra shard, expected 00001 to {digits} of this model")
    # A link to nothing is what an interrupted download leaves in a cache.
    there = {number for number, path in found.items() if path.exists()}
    missing = [number for number in numbers if number not in there]
    if missing:
        name = f"{prefix}-{missing[0]:05d}-of-{digits}.gguf"
        raise ModelFileError(f"{name}: missing shard, found {len(there)} of {count}")
    return tuple(found[number] for number in numbers)


def _check_split(headers: tuple[GgufHeader, ...]) -> None:
    """Hold what the shards say of themselves against their names, and the tensors of all against the first's count."""
    count = len(headers)
    seen: dict[str, str] = {}
    totals: list[tuple[str, int | None]] = []
    for number, header in enumerate(headers):
        split = header.split
        if split is None or split.count != count:
            count_said = header.metadata.integer("split.count")
            said = "absent" if count_said is None else count_said
            raise ModelFileError(
                f"{header.label}: split.count is {said}, expected {count} from the file's name", field="split.count"
            )
        if split.number != number:
            raise ModelFileError(
                f"{header.label}: split.no is {split.number}, expected {number} from the file's name", field="split.no"
            )
        if split.tensors is not None or not number:
            totals.append((header.label, split.tensors))
        for tensor in header.tensors:
            if tensor.name in seen:
                raise ModelFileError(
                    f"{header.label}: tensor {tensor.name!r} is in {seen[tensor.name]} too",
                    field=f"tensor {tensor.name!r}",
                )
            seen[tensor.name] = header.label
    for label, declared in totals:
        if declared != len(seen):
            raise ModelFileError(
                f"{label}: split.tensors.count is {'absent' if declared is None else declared}, "
                f"the {count} shards have {len(seen)}",
                field="split.tensors.count",
            )
    check_blocks(headers[0], (tensor for header in headers for tensor in header.tensors))
