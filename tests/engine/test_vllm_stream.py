"""What a server streams, by hand: bytes in, ids or a named fault out. No server runs here."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.engine import vllm_stream
from mesh.engine.vllm_stream import (
    Chunk,
    EventReader,
    error_text,
    joined,
    read_event,
    read_plain,
    read_tokens,
    read_whole,
)
from mesh.errors import EngineFailed
from tests.support.examples import examples
from tests.support.fake_vllm import frame
from tests.support.vllm_events import NAME, WHOLE, chunk, failure, fault, read, transcribe, usage

# --- bytes into events


WIRE = b"".join(e if isinstance(e, bytes) else frame(e) for e in WHOLE)


@given(cuts=st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_bytes_cut_anywhere_give_the_same_events(cuts: list[int]) -> None:
    reader, events = EventReader(), []
    places = [0, *sorted(cuts), len(WIRE)]
    for start, end in itertools.pairwise(places):
        events += list(reader.feed(WIRE[start:end]))
    assert events == read(WHOLE)


PARTS = st.sampled_from(
    [
        chunk(48), chunk(49, 50), chunk(51, first=True), chunk(52, finish="length"), chunk(), chunk(5, token_ids=None),
        chunk(53) | {"system_fingerprint": "other"}, chunk(54) | usage(2)["usage"], chunk(55) | {"usage": None},
        chunk(56) | {"usage": usage(2)["usage"]}, chunk(57) | {"usage": 3}, chunk(58, stop_reason=58), usage(4),
        usage(4, prompt_tokens_details={"cached_tokens": 2}), usage(4, prompt_tokens_details=7), {"choices": []},
        chunk(59, logprobs={"token_logprobs": [-1.5], "top_logprobs": [{"token_id:59": -1.5}]}), {"error": "e"},
        b"data: [DONE]\n\n", b"data:{}\n", b": ping\n\n", b"data: \n\n", b"data: [DONE]\r\n", b"data:\t[DONE] \n",
        b'data: {"choices": [],\rdata: 1}\n', b"data: {", b"\n", b"x",
    ]
)  # fmt: skip


@settings(max_examples=examples(300))
@given(begun=st.sampled_from([b"", b"da"]), parts=st.lists(PARTS, max_size=8))
def test_plain_events_are_read_at_once_as_one_by_one(begun: bytes, parts: list[Any]) -> None:
    data = b"".join(e if isinstance(e, bytes) else frame(e) for e in parts)
    readers = EventReader(), EventReader()
    for reader in readers:
        assert list(reader.feed(begun)) == []
    plain = readers[0].plain(data)
    if plain is not None:
        assert plain == list(joined(list(readers[1].feed(data))))
        assert readers[1]._rest == b""


def test_what_a_server_mostly_streams_is_plain() -> None:
    assert EventReader().plain(WIRE) == list(joined(read(WHOLE)))
    assert len(list(joined(read(WHOLE)))) == 3


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_comments_other_fields_and_blank_lines_are_passed_over(line_end: bytes) -> None:
    lines = [b": a comment", b"event: message", b"", b"id: 4", b"data:" + json.dumps(chunk(48)).encode(), b"", b""]
    (event,) = EventReader().feed(line_end.join(lines))
    assert isinstance(event, Chunk)
    assert event.tokens == (48,)


def test_an_event_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_stream, "MAX_EVENT_BYTES", 1000)
    reader = EventReader()
    assert list(reader.feed(b"data: " + b"9" * 900)) == []
    with pytest.raises(EngineFailed, match="an event of over 1000 bytes"):
        list(reader.feed(b"9" * 200))


@settings(max_examples=examples(300))
@given(data=st.binary(max_size=200))
def test_any_bytes_are_events_or_a_fault(data: bytes) -> None:
    failed = failure(lambda: list(EventReader().feed(b"data: " + data + b"\n\n")))
    assert failed is None or str(failed).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**33) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(300))
@given(data=st.data())
def test_any_value_in_any_place_is_an_event_or_a_fault(data: st.DataObject) -> None:
    logprobs = {"token_logprobs": [-1.0], "top_logprobs": [{"token_id:48": -1.0, "token_id:49": -1.5}]}
    event = data.draw(st.sampled_from((chunk(48, first=True, logprobs=logprobs), usage(1), {"error": {"code": 1}})))
    where: Any = event
    while True:
        key = data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else range(len(where))))
        if not isinstance(where[key], (dict, list)) or not where[key] or data.draw(st.booleans()):
            break
        where = where[key]
    where[key] = data.draw(JSON)
    failed = failure(lambda: transcribe(event))
    assert failed is None or str(failed).isprintable()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"choices": [], "x": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b"[]", "not an object"),
        (b'"[DONE]"', "not an object"),
        (b"null", "not an object"),
        (b"{}", "choices"),
        (b'{"choices": {}}', "choices"),
        (b'{"choices": [{}, {}]}', "choices"),
        (b'{"choices": []}', "neither a choice nor usage"),
        (b'{"choices": [], "usage": 3}', "neither a choice nor usage"),
        (b'{"choices": [], "usage": {"prompt_tokens": 1}}', "usage that does not count"),
        (b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": -1}}', "usage that does not count"),
        (b'{"choices": [], "usage": {"prompt_tokens": true, "completion_tokens": 1}}', "usage that does not count"),
        (b'{"choices": [7]}', "a choice that is not the one"),
        (b'{"choices": [{"index": 1}]}', "a choice that is not the one"),
        (b'{"choices": [], "system_fingerprint": 1}', "system_fingerprint"),
        (
            b'{"error": {"message": "a secret prompt", "type": "E", "code": 500}}',
            "an error in mid-stream: type E",
        ),
        (b'{"error": "boom", "choices": []}', "an error in mid-stream: boom"),
        (b'{"error": ["x"]}', "an error in mid-stream: list"),
        (b'{"error": {}}', "an error in mid-stream: an error without a type"),
    ],
)
def test_a_malformed_event_is_named(data: bytes, words: str) -> None:
    with pytest.raises(EngineFailed, match=r"^vllm server") as caught:
        read_event(data)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"token_ids": "48"}, "token_ids that are not token ids"),
        ({"token_ids": [48.0]}, "token_ids that are not token ids"),
        ({"token_ids": [True]}, "token_ids that are not token ids"),
        ({"token_ids": [-1]}, "token_ids that are not token ids"),
        ({"token_ids": [2**32]}, "token_ids that are not token ids"),
        ({"prompt_token_ids": {"0": 1}}, "prompt_token_ids that are not"),
        ({"finish_reason": 3}, "finish_reason or stop_reason"),
        ({"stop_reason": True}, "finish_reason or stop_reason"),
        ({"stop_reason": 1.5}, "finish_reason or stop_reason"),
        ({"logprobs": 3}, "logprobs that do not fit"),
        ({"logprobs": {"token_logprobs": [], "top_logprobs": []}}, "logprobs that do not fit"),
        ({"logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{" the": -1.0}]}}, "not by token id"),
        ({"logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{"token_id:4": "x"}]}}, "not by token id"),
        ({"logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{"token_id:4": float("nan")}]}}, "not by token id"),
        ({"logprobs": {"token_logprobs": [float("-inf")], "top_logprobs": [{}]}}, "not numbers"),
        ({"logprobs": {"token_logprobs": [None], "top_logprobs": [{}]}}, "not numbers"),
    ],
)
def test_a_malformed_field_is_named(fields: dict[str, Any], words: str) -> None:
    assert words in fault(chunk(48, first=True, **fields))


def test_an_error_is_told_without_its_message_and_without_what_a_terminal_obeys() -> None:
    told = error_text({"message": "the prompt", "type": "\x1b[2J" * 40, "code": {"deep": [1]}, "param": "x"})
    assert told.isprintable()
    assert "prompt" not in told
    assert len(told) < 700


# --- one answer


@pytest.mark.parametrize("fields", [{}, {"stop_reason": "e"}, {"stop_reason": 7}, {"token_ids": []}])
@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}},
                                     {"prompt_tokens_details": {"cached_tokens": 2}}])  # fmt: skip
def test_an_answer_in_one_piece_is_read_alike_by_both_readers(fields: dict[str, Any], details: dict[str, Any]) -> None:
    answer = chunk(48, 49, first=True, finish="length", **fields) | {"usage": usage(2, **details)["usage"]}
    for named in (answer, answer | {"system_fingerprint": NAME}):
        assert read_plain(json.dumps(named).encode()) == read_whole(named)


@pytest.mark.parametrize(
    "fields",
    [{"usage": None}, {"usage": {"prompt_tokens": -1, "completion_tokens": 1}}, {"choices": []}, {"error": {"a": 1}},
     {"usage": {"prompt_tokens": True, "completion_tokens": 1}}],
)  # fmt: skip
def test_an_answer_with_a_fault_is_left_to_the_reader_that_names_it(fields: dict[str, Any]) -> None:
    answer = chunk(48, first=True, finish="length") | {"usage": usage(1)["usage"]} | fields
    assert read_plain(json.dumps(answer).encode()) is None


def test_ids_of_a_text_are_read_or_are_none() -> None:
    assert read_tokens(b'{"count": 2, "tokens": [0, 4294967295]}') == [0, 4294967295]
    for data in (b"", b"[]", b"{}", b'{"tokens": null}', b'{"tokens": [-1]}', b'{"tokens": [4294967296]}', b"[" * 9999):
        assert read_tokens(data) is None
