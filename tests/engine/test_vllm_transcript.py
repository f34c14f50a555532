"""The answer that a vLLM server streams, event by event, by hand: its ids, or a named fault. No server runs here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.call_off import CallOff
from mesh.engine.vllm_stream import Chunk, Done, Event, joined
from mesh.engine.vllm_transcript import Transcript
from mesh.errors import EngineFailed
from tests.support.fake_completion import DONE
from tests.support.serves import request_for
from tests.support.vllm_events import NAME, PROMPT, WHOLE, chunk, fault, read, transcribe, usage
from tests.support.vllm_folder import encode, piece


def test_a_whole_answer_is_taken() -> None:
    told = transcribe(*WHOLE)
    assert (told.tokens, told.finish, told.cached) == ([48, 49, 50, 51], "length", None)
    assert told.margins == [None] * 4


# GW-02: what a chunk says of totals so far is never read; the ids are counted, and held against the last word
@pytest.mark.parametrize(
    "totals",
    [
        [(3, 2), (3, 3), (3, 4)],  # a
        [None, None, (3, 4)],  # b: and once more in the usage that follows
        [None, None, None],  # c
        [(3, 2), (3, 4), (3, 3)],  # d: fewer than before
        [(1, 2), (2, 3), (3, 4)],  # e: the prompt's is right on the last one alone
    ],
)
def test_totals_on_every_chunk_are_not_added_up(totals: list[tuple[int, int] | None]) -> None:
    counts = [{"usage": None if total is None else usage(total[1], prompt=total[0])["usage"]} for total in totals]
    told = transcribe(*(one | count for one, count in zip(WHOLE[:3], counts, strict=True)), *WHOLE[3:])
    assert (told.tokens, told.finish, told.cached) == ([48, 49, 50, 51], "length", None)


def test_prompt_tokens_from_the_cache_are_carried_through() -> None:
    for cached in (0, 2, 3):
        told = transcribe(*WHOLE[:3], usage(4, prompt_tokens_details={"cached_tokens": cached}), DONE)
        assert told.cached == cached


def test_margins_are_the_distance_of_the_best_two_whichever_was_chosen() -> None:
    top = {"token_id:48": -1.5, "token_id:49": -1.0, "token_id:7": -9.0}
    one = chunk(48, first=True, logprobs={"token_logprobs": [-1.5], "top_logprobs": [top]})
    tie = {"token_id:50": -2.0, "token_id:51": -2.0}
    only = {"token_id:50": -2.0}
    rest = {"token_logprobs": [-2.0, -2.0, -2.0], "top_logprobs": [tie, only, tie]}
    told = transcribe(one, chunk(50, 50, 50, finish="length", logprobs=rest), usage(4))
    assert told.margins == [0.5, 0.0, None, 0.0]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([chunk(48, first=True, token_ids=None)], "no token ids although return_token_ids"),
        ([chunk(48)], "no token ids although return_token_ids"),
        ([chunk(48, first=True, prompt_token_ids=[40, 41])], "an answer to another prompt: of 3 ids it read 2"),
        ([chunk(48, first=True, prompt_token_ids=[40, 41, 61])], "an answer to another prompt"),
        ([chunk(48, first=True), chunk(49, token_ids=None)], "a chunk without token_ids"),
        ([chunk(48, 49, 50, 51, 52, first=True)], "more than max_tokens 4 ids"),
        ([chunk(48, 49, 50, 51, first=True), chunk(52)], "more than max_tokens 4 ids"),
        ([*WHOLE[:3], chunk(52), usage(4)], "more after its finish_reason"),
        ([*WHOLE[:3], chunk(finish="stop"), usage(4)], "more after its finish_reason"),
        ([chunk(48, first=True, finish="length")], "finish_reason length after 1 of 4 ids"),
        ([chunk(48, first=True, finish="abort")], "finish_reason abort"),
        ([chunk(48, first=True, finish="error")], "finish_reason error"),
        ([chunk(48, first=True, finish="tool\x1b")], r"finish_reason 'tool\x1b'"),
        ([chunk(48, first=True, finish="stop", stop_reason="xy")], "a stop for a string that its ids do not spell"),
        ([chunk(48, first=True, finish="stop", stop_reason=1)], "a stop for an id that is not its last"),
        ([chunk(first=True, finish="stop", stop_reason=1)], "a stop for an id that is not its last"),
        ([], "its last word before the answer ended"),
        ([DONE], "its last word before the answer ended"),
        ([chunk(48, first=True), DONE], "its last word before the answer ended"),
        ([chunk(48, first=True), usage(1), DONE], "its last word before the answer ended"),
        ([chunk(48, first=True), {"error": {"type": "InternalServerError", "code": 500}}, DONE], "an error in mid-str"),
        ([*WHOLE[:3], DONE], "no usage although stream_options"),
        ([*WHOLE[:3], usage(3), DONE], "usage of 3 tokens, 4 came"),
        ([*WHOLE[:3], usage(5), DONE], "usage of 5 tokens, 4 came"),
        ([*WHOLE[:3], usage(4, prompt=2), DONE], "usage of 2 prompt tokens, 3 were given"),
        ([*WHOLE[:3], usage(4, prompt_tokens_details={"cached_tokens": 4}), DONE], "4 cached tokens in a prompt of 3"),
        ([*WHOLE[:3], usage(4) | {"system_fingerprint": "vllm-0.33.0-x"}, DONE], "an answer as vllm-0.33.0-x"),
        ([chunk(48, first=True) | {"system_fingerprint": "other"}], "an answer as other, it was"),
    ],
)
def test_a_broken_promise_is_named(events: list[Any], words: str) -> None:
    assert words in fault(*events)


def test_a_stop_that_ignore_eos_forbids_is_a_fault_and_one_that_was_asked_for_is_not() -> None:
    ended = [chunk(48, 1, first=True, finish="stop"), usage(2)]
    assert transcribe(*ended).finish == "stop"
    assert "ignore_eos" in fault(*ended, ignore_eos=True)
    by_id = [chunk(48, 1, first=True, finish="stop", stop_reason=1), usage(2)]
    assert transcribe(*by_id, ignore_eos=True, stop_ids=[1]).finish == "stop"
    # the model folder's second end-of-text id, which nobody had to ask for
    assert transcribe(*by_id).finish == "stop"


def test_a_stop_string_ends_an_answer_at_the_id_that_completes_it() -> None:
    o, ok = encode("o")[0], encode("ok!")
    told = transcribe(
        chunk(o, first=True), chunk(*ok[:2], finish="stop", stop_reason="ok"), usage(3), max_tokens=9, stop=["ok"]
    )
    assert (told.tokens, told.finish) == ([o, *ok[:2]], "stop")


def test_ids_that_a_server_made_beyond_a_stop_string_are_counted_and_not_taken() -> None:
    """Several ids a step: the server says what it made, which is more than what was asked for."""
    ids = encode("ok!?")
    told = transcribe(chunk(*ids, first=True, finish="stop", stop_reason="ok"), usage(4), max_tokens=9, stop=["ok"])
    assert (told.tokens, told.finish) == (ids[:2], "stop")
    short = [chunk(*ids, first=True, finish="length"), usage(4)]
    assert transcribe(*short, stop=["ok"]).finish == "stop"
    assert "usage of 2 tokens, 4 came" in fault(short[0], usage(2), stop=["ok"])


def test_a_server_that_sees_no_stop_is_stopped() -> None:
    transcript = Transcript(request_for(PROMPT, 9, stop=["ok"]), PROMPT, piece, None)
    first, second, third = (event for event in read([chunk(*encode("o"), first=True), chunk(*encode("k!")), chunk(5)]))
    assert isinstance(first, Chunk)
    assert isinstance(second, Chunk)
    assert isinstance(third, Chunk)
    assert transcript.take(first) == encode("o")
    assert transcript.finish is None
    assert transcript.take(second) == encode("k")
    assert transcript.finish == "stop"
    assert transcript.take(third) == []


def test_stop_ids_end_an_answer_whatever_the_server_says() -> None:
    told = transcribe(chunk(48, 50, first=True, finish="stop", stop_reason=50), usage(2), stop_ids=[50])
    assert (told.tokens, told.finish) == ([48, 50], "stop")


def test_last_word_is_an_event() -> None:
    assert isinstance(read([DONE])[0], Done)


# --- chunks that came together


class Kept:
    """A sink that keeps what is put."""

    def __init__(self) -> None:
        self.cancelled = CallOff()
        self.ids: list[int] = []

    def put(self, token: int, scores: object = None) -> None:
        self.ids.append(token)


@given(
    ids=st.lists(st.integers(48, 57), min_size=1, max_size=9),
    together=st.lists(st.booleans(), min_size=9, max_size=9),
    stops=st.booleans(),
)
def test_chunks_that_came_together_are_the_same_answer(ids: list[int], together: list[bool], stops: bool) -> None:
    last = len(ids) - 1
    stop = [(piece(49) + piece(50)).decode()] if stops else []
    sent = [chunk(token, first=not n, finish="length" if n == last else None) for n, token in enumerate(ids)]
    events = read([*sent, usage(len(ids)), DONE])
    batches: list[list[Event]] = [[]]
    for event, joins in zip(events, [*together, True, True], strict=False):
        if not joins:
            batches.append([])
        batches[-1].append(event)

    def answer(batches: list[list[Event]]) -> tuple[list[int], str | None, list[int]]:
        transcript = Transcript(request_for(PROMPT, len(ids), stop=stop), PROMPT, piece, NAME)
        sink = Kept()
        for event in itertools.chain.from_iterable(map(joined, batches)):
            if isinstance(event, Chunk):
                transcript.deliver(event, sink)
        return transcript.tokens, transcript.finish, sink.ids

    assert answer(batches) == answer([[event] for event in events])


def test_chunks_of_two_servers_with_scores_or_after_the_end_stay_apart() -> None:
    plain, scored = Chunk((48,), fingerprint="a"), Chunk((49,), best=((0.0, -1.0),), fingerprint="a")
    other, ended = Chunk((50,), fingerprint="b"), Chunk((51,), finish="stop", fingerprint="a")
    for events in ([plain, scored], [scored, plain], [plain, other], [ended, plain], [plain, Chunk(None)]):
        assert list(joined(events)) == events
    assert list(joined([plain, plain, ended, plain])) == [plain.but(tokens=(48, 48, 51), finish="stop"), plain]


def test_of_chunks_that_came_together_those_before_the_fault_count() -> None:
    sink = Kept()
    transcript = Transcript(request_for(PROMPT, 4), PROMPT, piece, NAME, vocabulary=60)
    events = read([chunk(48, first=True), chunk(49), chunk(99), chunk(50)])
    (one,) = joined(events)
    assert isinstance(one, Chunk)
    with pytest.raises(EngineFailed, match="sent id 99, outside the vocabulary of 60"):
        transcript.deliver(one, sink)
    assert sink.ids == [48, 49]
    sink = Kept()
    transcript = Transcript(request_for(PROMPT, 3), PROMPT, piece, NAME, vocabulary=60)
    with pytest.raises(EngineFailed, match="more than max_tokens 3 ids"):
        transcript.deliver(Chunk((48, 49, 50, 51), tuple(PROMPT), fingerprint=NAME), sink)
    assert sink.ids == [48, 49, 50]
