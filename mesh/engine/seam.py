"""The versions of what parts of one model would hand each other, and how: axes of every identity. An engine that
computes a whole model hands nothing on, and has the versions of the engine that it would be a part of."""

from __future__ import annotations

from typing import Final

BOUNDARY_SCHEMA: Final = 1  # the layout of what crosses from one part to the next
PROTOCOL_SCHEMA: Final = 1  # how it is carried
