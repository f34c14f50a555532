from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine import gguf_frames as frames
from mesh.engine.protocol import Scores
from mesh.errors import EngineFailed
from mesh.schema import canonical

STEP = {
    "op": "step",
    "tokens": [[1, 5, frames.pack_margin(0.25), frames.pack_scores(Scores(-0.5, ((5, -0.5),)))], [2, 0, b"", b""]],
}
DONE = {"op": "done", "serve": 1, "finish": "stop"}
LOADED = {
    "op": "loaded", "version": "1", "library": bytes(32), "pieces": [b"a"], "bos": b"", "eos": b"", "add_bos": False,
    "check": {"step": -1}, "slots": 2, "token_cpu_ns": 10, "width": 64,
}  # fmt: skip


def read(data: bytes, *, max_bytes: int = 1 << 16) -> list[dict[str, Any]]:
    return frames.FrameReader(frames.FROM_CHILD, max_bytes=max_bytes).feed(data)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_messages_come_out_as_they_went_in() -> None:
    assert read(frames.pack_frame(STEP) + frames.pack_frame(DONE)) == [STEP, DONE]


def test_messages_come_out_however_the_bytes_arrive() -> None:
    reader = frames.FrameReader(frames.FROM_CHILD)
    data = frames.pack_frame(STEP) + frames.pack_frame(DONE)
    assert [m for i in range(len(data)) for m in reader.feed(data[i : i + 1])] == [STEP, DONE]
    reader.finish()


def test_a_stream_that_ends_inside_a_frame_is_broken() -> None:
    reader = frames.FrameReader(frames.FROM_CHILD)
    assert reader.feed(frames.pack_frame(DONE)[:-1]) == []
    with pytest.raises(EngineFailed, match="bytes into a frame"):
        reader.finish()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(4), "frame of 0 bytes"),
        (b"\xff\xff\xff\xff", "frame of 4294967295 bytes"),
        (b"llama_model_load: error", "frame of 1819042157 bytes"),
        (framed(b"\xa0"), "unknown op"),
        (framed(b"\x80"), "expected a map"),
        (framed(b"\xff"), "malformed cbor"),
        (framed(canonical.encode(DONE) + b"\x00"), "engine pipe"),
        (framed(canonical.encode({"op": ["done"]})), "unknown op"),
        (framed(canonical.encode({"op": "serve"})), "unknown op"),
        (framed(canonical.encode({"op": "done", "serve": 1})), "does not have its fields"),
        (framed(canonical.encode({**DONE, "more": 1})), "does not have its fields"),
        (framed(canonical.encode({**DONE, "serve": True})), "done.serve is bool"),
        (framed(canonical.encode({**DONE, "serve": "1"})), "done.serve is str"),
        # 1.0 as a float: payload values have none
        (framed(b"\xa1\x62op\xfb\x3f\xf0" + bytes(6)), "engine pipe"),
    ],
)
def test_anything_else_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(EngineFailed, match=words):
        read(data)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_parse_or_fail(data: bytes) -> None:
    try:
        messages = read(data)
    except EngineFailed:
        return
    assert all(message["op"] in frames.FROM_CHILD for message in messages)


@given(st.data())
def test_no_damage_to_a_frame_does_anything_but_parse_or_fail(data: st.DataObject) -> None:
    raw = bytearray(frames.pack_frame(data.draw(st.sampled_from([STEP, DONE, LOADED]))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        for message in read(bytes(raw)):
            if message["op"] == "step":
                frames.unpack_step(message["tokens"])
            if message["op"] == "loaded":
                frames.check_loaded(message)
    except EngineFailed:
        pass


SCORES = st.builds(
    Scores,
    st.floats(allow_nan=False),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.floats(allow_nan=False))).map(tuple),
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**31),
            st.integers(0, 2**32 - 1),
            st.none() | st.floats(allow_nan=False),
            st.none() | SCORES,
        )
    )
)
def test_margins_and_scores_cross_exactly(tokens: list[tuple[int, int, float | None, Scores | None]]) -> None:
    packed = [
        [serve, id_, frames.pack_margin(margin), frames.pack_scores(scores)] for serve, id_, margin, scores in tokens
    ]
    [message] = read(frames.pack_frame({"op": "step", "tokens": packed}))
    assert frames.unpack_step(message["tokens"]) == tokens


@pytest.mark.parametrize(
    "tokens",
    [
        [1],
        [[1, 2]],
        [[1, 2, b""]],
        [[1, 2, b"1234", b""]],
        [[1, -2, b"", b""]],
        [["1", 2, b"", b""]],
        [[1, 2, 3, b""]],
        [[1, 2, b"", 3]],
        [[1, 2, b"", b"1234"]],
        [[1, 2, b"", b"12345678" + b"1" * 11]],
    ],
)
def test_a_step_of_another_shape_is_refused(tokens: list[Any]) -> None:
    with pytest.raises(EngineFailed, match=r"step\.tokens"):
        frames.unpack_step(tokens)


@pytest.mark.parametrize(
    "change",
    [
        {"pieces": []}, {"pieces": [b"a", "b"]}, {"library": b"short"}, {"slots": 0}, {"token_cpu_ns": -1},
        {"width": -1},
        {"check": {}}, {"check": {"step": -2}}, {"check": {"step": "no"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_loaded_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    frames.check_loaded(LOADED)
    with pytest.raises(EngineFailed, match=r"loaded"):
        frames.check_loaded({**LOADED, **change})
