"""Trust files, and keys that were good for a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import PayloadError, TrustFileError, UntrustedSteward
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, seal, verify
from mesh.schema.limits import MAX_TRUST_FILE_BYTES, MAX_UINT
from mesh.schema.trust import ALWAYS, Trust, Window, time_from_text, time_text
from tests.schema import samples
from tests.schema.envelopes import PAYLOAD, envelope
from tests.schema.samples import KEY, OTHER_KEY

A, B = f"ed25519:{KEY.public.hex()}", f"ed25519:{OTHER_KEY.public.hex()}"
NOON = 1_790_000_000_000_000_000
NOON_TEXT = "2026-09-21T14:13:20Z"


def parse(text: str) -> Trust:
    return Trust.parse(text.encode())


def test_trust_file_has_one_key_a_line_with_windows_and_comments():
    trust = parse(
        f"# ours\r\n\r\n\t{A}\tfrom={NOON_TEXT} # since\n{B}  from=1970-01-01T00:00:00Z until={NOON_TEXT}\r\n{A}#\n"
    )
    assert set(trust) == {KEY.public, OTHER_KEY.public}
    assert trust.windows(KEY.public) == (Window(from_ns=NOON), ALWAYS)
    assert trust.windows(OTHER_KEY.public) == (Window(0, NOON),)
    assert len(trust) == 2
    assert bytes(32) not in trust


@pytest.mark.parametrize(
    "line",
    [
        f"{A} {B}",
        f"{A},",
        f"{A} from",
        f"{A} from=",
        f"{A} since={NOON_TEXT}",
        f"{A} from={NOON_TEXT} from={NOON_TEXT}",
        f"{A} from={NOON_TEXT} until={NOON_TEXT}",
        f"{A} until={NOON_TEXT} until={NOON_TEXT}",
        f"{A}\u00a0from={NOON_TEXT}",
        f"from={NOON_TEXT} {A}",
        A.upper(),
        A[:-1],
        A[8:],
        "\ufeff" + A,
        f"{A}\x0b{B}",
    ],
)
def test_trust_file_refuses_a_line_and_names_it(line):
    with pytest.raises(TrustFileError, match="line 2: "):
        parse(f"{B}\n{line}\n")


@pytest.mark.parametrize("key", ["00" * 32, "02" + "00" * 31, "ff" * 32])
def test_trust_file_refuses_a_key_that_binds_nobody(key):
    with pytest.raises(TrustFileError, match=r"line 1: .*public key"):
        parse("ed25519:" + key)


@pytest.mark.parametrize("data", [b"", b"\n#\n", b"\xff", b"#" * (MAX_TRUST_FILE_BYTES + 1)])
def test_trust_file_needs_a_key_in_bounded_text(data):
    with pytest.raises(TrustFileError):
        Trust.parse(data)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        (NOON_TEXT, NOON),
        ("2024-02-29T23:59:59Z", 1_709_251_199_000_000_000),
        ("2262-04-11T23:47:16Z", MAX_UINT // 10**9 * 10**9),
    ],
)
def test_time_is_read_and_written(text, ns):
    assert time_from_text(text) == ns
    assert time_text(ns) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-09-21",
        "2026-09-21T14:13:20",
        "2026-09-21T14:13:20+00:00",
        "2026-09-21t14:13:20z",
        "2026-09-21 14:13:20Z",
        "2026-02-29T00:00:00Z",
        "2026-09-21T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "2026-09-21T14:13:20.Z",
        "2026-09-21T14:13:20.5Z",
        "1969-12-31T23:59:59Z",
        "2262-04-11T23:47:17Z",
        "0000-01-01T00:00:00Z",
        "２026-09-21T14:13:20Z",
        f"{NOON_TEXT}\n",
    ],
)
def test_time_refuses(text):
    with pytest.raises(TrustFileError):
        time_from_text(text)


@given(st.integers(0, MAX_UINT // 10**9))
def test_time_round_trips(seconds):
    assert time_from_text(time_text(seconds * 10**9)) == seconds * 10**9
    assert time_text(seconds * 10**9 + 500).endswith(".0000005Z")


def test_window_starts_at_from_and_ends_before_until():
    window = Window(5, 7)
    assert [window.holds(at) for at in (4, 5, 6, 7)] == [False, True, True, False]
    assert ALWAYS.holds(0)
    with pytest.raises(TrustFileError):
        Window(5, 5)


def test_together_a_key_has_all_its_windows():
    both = Trust({b"a": [Window(until_ns=5)]}) | Trust({b"a": [Window(from_ns=9)], b"b": [ALWAYS]})
    assert set(both) == {b"a", b"b"}
    both.check_time(b"a", 4)
    both.check_time(b"a", 9)
    for key, at in ((b"a", 5), (b"a", 8), (b"c", 4)):
        with pytest.raises(UntrustedSteward):
            both.check_time(key.ljust(32), at)


def test_verify_holds_a_receipt_to_the_time_it_ended():
    ended = samples.receipt()["ended_ns"]
    for windows in ([Window(ended, ended + 1)], [Window(until_ns=1), Window(from_ns=ended)]):
        assert verify(envelope(), RECEIPT_TYPE, Trust({KEY.public: windows})).value.ended_ns == ended
    for windows in ([Window(until_ns=ended)], [Window(from_ns=ended + 1)], []):
        with pytest.raises(UntrustedSteward, match=r"signed for 2026-09-21T14:13:21\.25Z, trusted"):
            verify(envelope(), RECEIPT_TYPE, Trust({KEY.public: windows}))


def test_verify_holds_a_checkpoint_to_its_own_time():
    at = samples.checkpoint()["at_ns"]
    sealed = seal(Checkpoint.from_map(samples.checkpoint()), KEY)
    assert verify(sealed.envelope, CHECKPOINT_TYPE, Trust({KEY.public: [Window(at, at + 1)]})).value.at_ns == at
    with pytest.raises(UntrustedSteward):
        verify(sealed.envelope, CHECKPOINT_TYPE, Trust({KEY.public: [Window(until_ns=at)]}))


def test_verify_looks_at_the_time_last():
    with pytest.raises(PayloadError):
        verify(envelope(payload=PAYLOAD + b"\x00"), RECEIPT_TYPE, Trust({KEY.public: [Window(until_ns=1)]}))
    with pytest.raises(UntrustedSteward, match="not in the trust set"):
        verify(envelope(), RECEIPT_TYPE, Trust.always([OTHER_KEY.public]))
