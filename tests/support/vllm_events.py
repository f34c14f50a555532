"""Events of a vLLM stream by hand, and the transcript that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from mesh.engine.vllm_stream import Chunk, Event, EventReader, Usage
from mesh.engine.vllm_transcript import Transcript
from mesh.errors import EngineFailed
from tests.support.fake_completion import DONE
from tests.support.fake_vllm import frame
from tests.support.serves import request_for
from tests.support.vllm_folder import piece

PROMPT = (40, 41, 60)
NAME = "vllm-0.32.0-0a1b2c3d"


def chunk(*ids: int, finish: str | None = None, first: bool = False, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "?", "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": list(PROMPT) if first else None, "token_ids": list(ids)}
    return {"object": "text_completion", "model": "tiny", "choices": [choice | fields]}


def usage(completion: int, prompt: int = len(PROMPT), **fields: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return {"choices": [], "usage": counts | fields, "system_fingerprint": NAME}


WHOLE = [chunk(48, 49, first=True), chunk(50), chunk(51, finish="length"), usage(4), DONE]


def read(events: Iterable[Any]) -> list[Event]:
    return list(EventReader().feed(b"".join(e if isinstance(e, bytes) else frame(e) for e in events)))


def transcribe(*events: Any, max_tokens: int = 4, prompt: Sequence[int] = PROMPT, **sampling: Any) -> Transcript:
    """A whole stream as the engine reads one."""
    transcript = Transcript(request_for(prompt, max_tokens, **sampling), prompt, piece, NAME)
    told = None
    for event in read(events):
        if isinstance(event, Chunk):
            transcript.take(event)
        elif isinstance(event, Usage):
            told = event
    transcript.close(told)
    return transcript


def fault(*events: Any, **asked: Any) -> str:
    with pytest.raises(EngineFailed) as caught:
        transcribe(*events, **asked)
    return str(caught.value)


def failure(attempt: Callable[[], object]) -> EngineFailed | None:
    """The one kind of error that may come."""
    try:
        attempt()
    except EngineFailed as e:
        return e
    return None
