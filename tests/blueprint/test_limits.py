"""The bounds in figures: what others who read and write blueprints keep to."""

from __future__ import annotations

from mesh.blueprint import body, certificate, circuit, container, revocation

PUBLISHED = {
    body: {"MAX_ARMS": 64, "MAX_KERNELS": 4_096, "MAX_REVISION": 9_223_372_036_854_775_807},
    certificate: {"MAX_CHAIN": 4},
    circuit: {
        "MAX_NODES": 1_048_576, "MAX_EDGES": 2_097_152, "MAX_WEIGHTS": 131_072, "MAX_BLOCKS": 65_536,
        "MAX_FORMATS": 256,
    },
    container: {
        "MAX_BODY_BYTES": 67_108_864, "MAX_LOCATOR_BYTES": 1_048_576, "MAX_PAYLOAD_BYTES": 68_719_476_736,
        "MAX_SIGNATURE_BYTES": 1_048_576, "MAX_MODULES": 256,
    },
    revocation: {"MAX_REVOKED": 65_536, "MAX_LIST_BYTES": 2_100_593},
}  # fmt: skip


def test_bounds_are_those_of_the_format() -> None:
    for module, bounds in PUBLISHED.items():
        assert {name: getattr(module, name) for name in bounds} == bounds
