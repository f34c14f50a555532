"""An answer as it comes from a vLLM server, put where it is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh.engine.http_pool import Left
from mesh.engine.protocol import TokenSink
from mesh.engine.vllm_http import VllmServer
from mesh.engine.vllm_stream import Chunk, Event, Usage
from mesh.engine.vllm_transcript import Transcript


async def read_streamed(
    server: VllmServer, body: Mapping[str, Any], transcript: Transcript, sink: TokenSink
) -> Usage | None:
    """Token by token. None where the end was not waited for: nobody wants more, or a stop string is complete that the
    server did not see. Raises EngineError."""
    usage: Usage | None = None

    def take(event: Event) -> bool:
        nonlocal usage
        if type(event) is Chunk:
            transcript.deliver(event, sink)
            return transcript.finish is None or event.finish is not None
        if type(event) is Usage:
            usage = event
        return True

    if not await server.stream(body, take, until=sink.cancelled):
        return None
    transcript.close(usage)
    return usage


async def read_at_once(
    server: VllmServer, body: Mapping[str, Any], transcript: Transcript, sink: TokenSink, *, patience_s: float
) -> Usage | None:
    """The same of an answer in one piece, which costs the server and us a fraction. Of one that is called off nobody
    learns how far it was."""
    try:
        chunk, usage = await server.answer(body, until=sink.cancelled, patience_s=patience_s)
    except Left:
        return None
    transcript.deliver(chunk, sink)
    transcript.close(usage)
    return usage
