"""The bounds in figures: what others who read and write the format keep to."""

from __future__ import annotations

from mesh.runtime import catalogue, limits, record

PUBLISHED = {
    "MAX_DOCUMENT_BYTES": 1_048_576,
    "MAX_DOCUMENT_DEPTH": 64,
    "MAX_DOCUMENT_PARTS": 65_536,
    "MAX_FILES": 10_000,
    "MAX_FOLDERS": 40_000,
    "MAX_PAYLOAD_BYTES": 1_073_741_824,
    "MAX_DESCRIPTOR_BYTES": 16_777_216,
    "MAX_DESCRIPTOR_PARTS": 160_000,
    "MAX_PATH_BYTES": 1_024,
    "MAX_COMPONENT_BYTES": 255,
    "MAX_URL_BYTES": 2_048,
    "MAX_ARCHIVE_BYTES": 1_073_741_824,
    "MAX_NODES": 64,
    "MAX_PORTS": 4,
    "MAX_CONCURRENCY": 128,
    "MAX_ORCHESTRATION_BYTES": 65_536,
    "MAX_TASK_PORTS": 32,
    "MAX_AUTHORS": 32,
    "MAX_ARGUMENTS": 128,
    "MAX_ARGUMENT_BYTES": 4_096,
    "MAX_ARGUMENTS_BYTES": 16_384,
    "MAX_VARIABLES": 64,
    "MAX_VARIABLE_NAME_CHARS": 64,
    "MAX_ENVIRONMENT_BYTES": 16_384,
    "MAX_ACCELERATORS": 64,
    "MAX_CASES": 128,
    "MAX_STARTUP_S": 86_400,
}


def test_bounds_are_those_of_the_format() -> None:
    assert {name: value for name, value in vars(limits).items() if name.startswith("MAX_")} == PUBLISHED
    assert catalogue.MAX_MANIFEST_BYTES == 67_108_864
    assert (record.MAX_RECORD_BYTES, record.MAX_RECORD_PARTS) == (33_554_432, 2_097_152)
