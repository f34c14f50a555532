"""Which engine runs a candidate, and what it is handed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from mesh.runtime.distribution import Distribution
from mesh.runtime.faults import Fault, Table
from mesh.runtime.kinds import SAFE, Safe, Text, VariableName, equal, reserved

RESERVED_PREFIX: Final = "LETSINFER_"
ARTIFACT: Final = re.compile(r"\$\{artifact:(" + SAFE + r")\}")
_MENTION: Final = "${artifact:"


class Protocol(Table):
    version: Annotated[int, equal(2)]


class Engine(Table):
    id: Safe
    protocol: Protocol
    distribution: Distribution
    model_format: Literal["huggingface-snapshot", "gguf-file"]
    cache_provider: Safe
    arguments: list[Text]
    environment: Annotated[dict[VariableName, str], AfterValidator(reserved(RESERVED_PREFIX))]

    def contradictions(self) -> Iterator[Fault]:
        for at, argument in enumerate(self.arguments):
            if _MENTION in argument and not ARTIFACT.fullmatch(argument):
                yield Fault(f"arguments[{at}]", "expected an artifact as the whole argument, ${artifact:NAME}")

    @property
    def mentions(self) -> Iterator[tuple[int, str]]:
        """Where an argument names an artifact, and which."""
        for at, argument in enumerate(self.arguments):
            if found := ARTIFACT.fullmatch(argument):
                yield at, found[1]
