"""Limits that no file of a sensible size comes near: the inputs are grown by whoever reads them."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id, plain, steward_text
from conformance.grants import grant_text
from conformance.material import KEY, small_disclosure, small_request
from conformance.writer import head, item, text

DISCLOSURE_BYTES = 67_108_864
TRUST_BYTES = 1_048_576
GRANT_BYTES = 4_096
# Wide enough for every length that is written here.
WIDTH = 4


def around_prompt(length: int) -> tuple[bytes, bytes]:
    """What comes before and after a disclosure's prompt of so many bytes."""
    value = {**small_disclosure(), "prompt": "?"}
    spelled = item(value)
    before, _, after = spelled.partition(text("prompt") + text("?"))
    return before + text("prompt") + head(3, length, WIDTH), after


def cases() -> Group:
    group = Group("limits")
    room = DISCLOSURE_BYTES - sum(map(len, around_prompt(0)))
    line = b3(content_id("request", small_request()))
    for name, over, comment in (
        ("disclosure-longest", 0, "67108864 bytes."),
        ("disclosure-long", 1, "67108865 bytes."),
    ):
        before, after = around_prompt(room + over)
        files, call = {"head.bin": before, "tail.bin": after}, f"disclosure head.bin+{room + over}+tail.bin"
        if over:
            group.reject(name, call, "encoding", "disclosure.1", comment, files)
        else:
            group.accept(name, call, line, "disclosure.1", comment, files)
    key = f"{steward_text(KEY.public)}\n#".encode()
    room = TRUST_BYTES - len(key) - 1
    files = {"head.txt": key, "tail.txt": b"\n"}
    group.accept("trust-longest", f"trust head.txt+{room}+tail.txt", "1", "trust.1", "1048576 bytes.", files)
    group.reject("trust-long", f"trust head.txt+{room + 1}+tail.txt", "trust-file", "trust.1", "1048577 bytes.", files)
    longest = bytes(GRANT_BYTES)
    call = f"grant-text {grant_text(longest)}"
    group.accept("grant-text-longest", call, b3(plain(longest)), "grants", "4096 bytes.", feature="grant")
    call = f"grant-text {grant_text(longest + bytes(1))}"
    group.reject("grant-text-long", call, "schema", "grants", "4097 bytes.", feature="grant")
    return group
