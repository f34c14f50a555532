"""Small inputs that would explode: each is refused within the memory that its own size asks for."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc

import pytest

from mesh.errors import EncodingError, MeshError
from mesh.schema import canonical
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.limits import MAX_DEPTH
from mesh.schema.receipt import Receipt

LIMIT = 64 * 1024 * 1024


def greedy(size: int) -> bytes:
    """Array headers, each of which claims every byte that is left."""
    out = bytearray()
    while len(out) < size:
        out += b"\x9a" + (size - len(out) - 5).to_bytes(4, "big")
    return bytes(out)


HOSTILE = {
    "deep arrays": b"\x81" * 200_000 + b"\x00",
    "deep maps": b"\xa1\x61a" * 200_000 + b"\x00",
    "deep keys": b"\xa1" * 200_000 + b"\x00" * 200_001,
    "deep tags": b"\xcb" * 200_000 + b"\x00",
    "deep shared": b"\xd8\x1c\x81" * 200_000 + b"\x00",
    "deep indefinite": b"\x9f" * 200_000,
    "deep indefinite text": b"\x7f" * 200_000,
    "a cycle": b"\xd8\x1c\x81\xd8\x1d\x00",
    "a cycle in a map": b"\xd8\x1c\xa1\x61a\xd8\x1d\x00",
    "a reference to nothing": b"\xd8\x1d\x1a\xff\xff\xff\xff",
    "a slow regular expression": b"\xd8\x23\x78\x1c" + b"(((((((((a*)*)*)*)*)*)*)*)*)",
    "a bignum of 100 kB": b"\xc2\x5a\x00\x01\x86\xa0" + b"\xff" * 100_000,
    "a decimal of 10^10^18": b"\xc4\x82\x1b\x0d\xe0\xb6\xb3\xa7\x64\x00\x00\x01",
    "a bigfloat": b"\xc5\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x03",
    "a set of itself": b"\xd8\x1c\xd9\x01\x02\x81\xd8\x1d\x00",
    "greedy headers": greedy(40_000),
    "an array of 2^63": b"\x9b\x7f" + b"\xff" * 7,
    "an array of 2^64": b"\x9b" + b"\xff" * 8,
    "an array of 2^31": b"\x9a\x7f\xff\xff\xff",
    "a map of 2^63": b"\xbb\x7f" + b"\xff" * 7,
    "bytes of 2^63": b"\x5b\x7f" + b"\xff" * 7,
    "bytes of 2^64": b"\x5b" + b"\xff" * 8,
    "bytes of 2 GiB": b"\x5a\x7f\xff\xff\xff",
    "text of 2^63": b"\x7b\x7f" + b"\xff" * 7,
    "text of 2 GiB": b"\x7a\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_bytes_are_refused_with_one_line(data):
    for decoder in (
        lambda: canonical.decode(data, max_bytes=LIMIT),
        lambda: Receipt.from_cbor(data, max_bytes=LIMIT),
        lambda: Disclosure.from_bytes(data),
        lambda: verify(data, RECEIPT_TYPE, {bytes(32)}),
        lambda: verify(b"\xd2\x84\x43\xa1\x01\x32\xa0\x5a" + len(data).to_bytes(4, "big") + data, RECEIPT_TYPE, ()),
    ):
        with pytest.raises(MeshError) as caught:
            decoder()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_depth_is_counted_exactly():
    deepest: object = 1
    for _ in range(MAX_DEPTH):
        deepest = [deepest]
    data = canonical.encode(deepest)
    assert canonical.decode(data, max_bytes=LIMIT) == deepest
    for innermost in (b"\x00", b"\x80", b"\xa0"):
        with pytest.raises(EncodingError):
            canonical.decode(b"\x81" * (MAX_DEPTH + (innermost == b"\x00")) + innermost, max_bytes=LIMIT)
    with pytest.raises(EncodingError):
        canonical.encode([deepest])


def test_encode_and_decode_agree_on_the_depth():
    value: object = 1
    while True:
        value = {"a": value}
        try:
            data = canonical.encode(value)
        except EncodingError:
            break
        assert canonical.decode(data, max_bytes=LIMIT) == value


def test_encode_refuses_depth_without_recursing():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(EncodingError, match="deeper"):
        canonical.encode(value)
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(EncodingError, match="deeper"):
        canonical.encode(loop)


def test_a_small_stack_is_enough():
    faults: list[BaseException] = []

    def run() -> None:
        for data in HOSTILE.values():
            for decode in (canonical.decode, Receipt.from_cbor):
                try:
                    decode(data, max_bytes=LIMIT)
                except EncodingError:
                    continue
                except BaseException as e:  # noqa: BLE001 - a thread's exceptions are seen by nobody else
                    faults.append(e)

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert not faults


_UNDER_A_LIMIT = """
import resource, sys
from mesh.errors import MeshError
from mesh.schema import canonical
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.schema.test_canonical_hostile import HOSTILE, LIMIT
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
for data in HOSTILE.values():
    for decode in (lambda: canonical.decode(data, max_bytes=LIMIT), lambda: Disclosure.from_bytes(data),
                   lambda: verify(data, RECEIPT_TYPE, ())):
        try:
            decode()
        except MeshError:
            continue
        sys.exit("accepted")
# not ru_maxrss: that remembers the size of the process this one was forked from
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak_mib = int(status["VmHWM"].split()[0]) // 1024
sys.exit(0 if peak_mib < 256 else f"{peak_mib} MiB")
"""


def test_half_a_gibibyte_is_enough():
    done = subprocess.run([sys.executable, "-c", _UNDER_A_LIMIT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_refused_bytes_leave_nothing_behind():
    def once(n: int) -> None:
        # every key is new, so that nothing could be kept under it for the next
        keys = b"".join(b"\x68%08x\x00" % (n * 4 + i) for i in range(4))
        for data in (b"\xa4" + keys, b"\xa4" + keys + b"\x00", b"\xd2\x84" + b"\x58\x40" + b"%064d" % n):
            for decoder in (
                lambda data=data: canonical.decode(data, max_bytes=99),
                lambda data=data: Receipt.from_cbor(data, max_bytes=99),
                lambda data=data: verify(data, RECEIPT_TYPE, ()),
            ):
                try:
                    decoder()
                except MeshError:
                    continue

    for n in range(1500):
        once(n)
    tracemalloc.start()
    try:
        for n in range(1500, 1600):
            once(n)
        before, _ = tracemalloc.get_traced_memory()
        for n in range(1600, 2600):
            once(n)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
