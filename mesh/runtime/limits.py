"""Every bound of the format, with its unit, in one place."""

from typing import Final

MAX_DOCUMENT_BYTES: Final = 1 << 20  # runtime.json, release.json
MAX_DOCUMENT_DEPTH: Final = 64
MAX_DOCUMENT_PARTS: Final = 1 << 16  # strings and separators; real ones have a few hundred
MAX_FILES: Final = 10_000
MAX_FOLDERS: Final = 4 * MAX_FILES  # each of which takes a block of a disk
MAX_PAYLOAD_BYTES: Final = 1 << 30  # of all files of a pack together
MAX_DESCRIPTOR_BYTES: Final = 16 << 20
MAX_DESCRIPTOR_PARTS: Final = 16 * MAX_FILES  # strings and separators; each file has 11
MAX_PATH_BYTES: Final = 1024  # what macOS takes, and a reader has to put them below a folder of its own
MAX_COMPONENT_BYTES: Final = 255  # what file systems take
MAX_URL_BYTES: Final = 2048
MAX_ARCHIVE_BYTES: Final = 1 << 30
MAX_NODES: Final = 64
MAX_PORTS: Final = 4
MAX_CONCURRENCY: Final = 128
MAX_ORCHESTRATION_BYTES: Final = 64 << 10
MAX_TASK_PORTS: Final = 32
MAX_AUTHORS: Final = 32

# Of the reader that is asked before a candidate runs, and of orchestration, where both readers have them.
MAX_ARGUMENTS: Final = 128
MAX_ARGUMENT_BYTES: Final = 4096
MAX_ARGUMENTS_BYTES: Final = 16 << 10
MAX_VARIABLES: Final = 64
MAX_VARIABLE_NAME_CHARS: Final = 64
MAX_ENVIRONMENT_BYTES: Final = 16 << 10
MAX_ACCELERATORS: Final = 64
MAX_CASES: Final = 128
MAX_STARTUP_S: Final = 86_400
