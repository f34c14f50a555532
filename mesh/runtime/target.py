"""What a candidate asks of a machine, told by what it can do and never by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mesh.runtime.faults import Fault, Table
from mesh.runtime.kinds import Natural, Platform, Positive, Safe
from mesh.runtime.limits import MAX_NODES


class Accelerator(Table):
    vendor: Safe
    architecture: Safe
    count: Positive
    partitioning: Literal["full-device", "mig"]
    minimum_memory_gib: Positive | None = None
    nullable = frozenset(("minimum_memory_gib",))


class Memory(Table):
    topology: Literal["unified", "discrete"]
    minimum_total_gib: Positive


class Interconnect(Table):
    kind: Literal["any", "connectx", "ethernet", "wifi", "other"]
    rdma_required: bool
    minimum_speed_mbps: Natural
    minimum_mtu: Natural


class Placement(Table):
    strategy: Literal["single", "parallel"]
    node_count: Annotated[int, Field(ge=1, le=MAX_NODES)]
    interconnect: Interconnect

    def contradictions(self) -> Iterator[Fault]:
        if self.strategy == "parallel":
            return
        if self.node_count != 1:
            yield Fault("node_count", f"expected 1 where strategy is single, got {self.node_count}")
        nothing = {"kind": "any", "rdma_required": False, "minimum_speed_mbps": 0, "minimum_mtu": 0}
        for name, expected in nothing.items():
            if getattr(self.interconnect, name) != expected:
                wanted = str(expected).lower() if isinstance(expected, bool) else repr(expected)
                yield Fault(f"interconnect.{name}", f"expected {wanted} where strategy is single")


class Target(Table):
    id: Safe
    platform: Platform
    accelerator: Accelerator
    memory: Memory
    placement: Placement

    @property
    def parallel(self) -> bool:
        return self.placement.strategy == "parallel"
