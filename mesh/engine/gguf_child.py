"""The process that holds the native library: it may abort, the gateway may not.

Reads frames from what was its standard input, writes frames to what was its standard output (see `child`).
"""

from __future__ import annotations

import importlib.metadata
import os
import queue
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from mesh.engine import gguf_frames as frames
from mesh.engine.child import become_child, report
from mesh.errors import EngineFailed, EngineUnsupported, MeshError

_CONTROLS = ("temperature_u", "top_p_u", "top_k", "min_p_u", "frequency_penalty_u", "presence_penalty_u",
             "repetition_penalty_u", "seed")  # fmt: skip


def main() -> None:
    """`argv[1]` is the parent's process id."""
    pipes = become_child(int(sys.argv[1]))
    # the library's threads would otherwise spin between two tokens and be metered for it
    os.putenv("OMP_WAIT_POLICY", "passive")
    Child(*pipes).run()


class Child:
    """The main thread decodes, one thread reads the pipe, one tokenizes, so that no long text holds up a token."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._write_lock = threading.Lock()
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._texts: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._serves_lock = threading.Lock()
        self._known: set[int] = set()  # serves asked for and not ended
        self._cancelled: set[int] = set()  # those of them that nobody wants any more

    def run(self) -> NoReturn:
        threading.Thread(target=self._read, daemon=True).start()
        code = 0
        try:
            self._work(self._orders.get())
        except MeshError as e:
            kind = "unsupported" if isinstance(e, EngineUnsupported) else "failed"
            self._send({"op": "fault", "kind": kind, "reason": str(e)})
            code = 3
        except BaseException as e:  # noqa: BLE001 - reported, and the process ends
            report(type(e), e, e.__traceback__)
            code = 4
        # not sys.exit: the threads may be inside the library, whose memory a tidy end would free under them
        os._exit(code)

    def _read(self) -> None:
        reader = frames.FrameReader(frames.TO_CHILD)
        try:
            while data := os.read(self._reading, 1 << 20):
                for message in reader.feed(data):
                    if message["op"] == "cancel":
                        with self._serves_lock:
                            self._cancelled |= self._known & {message["serve"]}
                    elif message["op"] == "ping":
                        self._send({"op": "pong"})
                    elif message["op"] == "encode":
                        self._texts.put(message)
                    else:
                        if message["op"] in ("serve", "decide", "check"):
                            with self._serves_lock:
                                self._known.add(message["serve"])
                        self._orders.put(message)
        except (OSError, EngineFailed) as e:
            report(type(e), e, None)
        os._exit(0)  # the parent closed the pipe, or is gone

    def _send(self, message: Mapping[str, Any]) -> None:
        data = memoryview(frames.pack_frame(dict(message)))
        with self._write_lock:
            try:
                while data:
                    data = data[os.write(self._writing, data) :]
            except OSError:
                os._exit(0)  # nobody listens any more

    def _work(self, load: dict[str, Any]) -> None:
        # imported here: these need the library's extra, and a clear word where it is missing
        try:
            import xllamacpp

            from mesh.engine import gguf_abi, gguf_checks, gguf_decisions, gguf_model, gguf_selfcheck, gguf_slots
            from mesh.engine.gguf_order import Vocabulary
        except ImportError as e:
            raise EngineUnsupported(f"gguf engine: {e}: install the extra `gguf`") from None
        version = importlib.metadata.version("xllamacpp")
        if version != gguf_abi.WHEEL_VERSION:
            raise EngineUnsupported(f"xllamacpp {version} is installed, expected {gguf_abi.WHEEL_VERSION}")
        shared_object = Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")
        library = gguf_abi.open_library(shared_object)
        if load["op"] != "load":
            raise EngineFailed(f"engine pipe: {load['op']} before load")
        settings = gguf_model.ModelSettings(
            path=Path(load["path"]), overrides=tuple((key, value) for key, value in load["overrides"]),
            **load["settings"],
        )  # fmt: skip
        model = gguf_model.Model(library, settings)
        pieces = [model.piece(i) for i in range(model.vocab_tokens)]
        measured = gguf_selfcheck.measure(model)
        count = settings.slots if measured.identical or load["together_always"] else 1
        vocabulary, cancelled = Vocabulary(pieces, model.end_ids()), self._cancelled.__contains__
        slots = gguf_slots.Slots(model, count=count, vocabulary=vocabulary, cancelled=cancelled)
        decisions = gguf_decisions.Decisions(model, ends=vocabulary.ends, cancelled=cancelled)
        checks = gguf_checks.Checks(model, measured, vocabulary=vocabulary, cancelled=cancelled, **load["checks"])
        self._send({
            "op": "loaded", "version": version, "library": _digest(shared_object), "pieces": pieces,
            "bos": model.piece(model.bos, special=True) if model.bos >= 0 else b"",
            "eos": model.piece(model.eos, special=True) if model.eos >= 0 else b"",
            "add_bos": model.add_bos, "slots": count, "token_cpu_ns": measured.token_cpu_ns,
            "width": max(measured.widths, default=0),
            # CBOR has no null here: an agreement is -1
            "check": {name: -1 if at is None else at for name, at in measured.results.items()},
        })  # fmt: skip
        threading.Thread(target=self._tokenize, args=(model,), daemon=True).start()
        while True:
            while not (slots.busy or decisions.busy or checks.busy) or not self._orders.empty():
                message = self._orders.get()
                match message["op"]:
                    case "decide":
                        decisions.add(_question(message))
                    case "check":
                        checks.add(_known(message))
                    case _:
                        slots.add(_order(message))
            step, answers, checked = slots.step(), decisions.step(), checks.step()
            if step.tokens:
                self._send({
                    "op": "step",
                    "tokens": [
                        [serve, t, frames.pack_margin(margin), frames.pack_scores(scores)]
                        for serve, t, margin, scores in step.tokens
                    ],
                })  # fmt: skip
            elif not step.ended and not step.failed:  # part of a prompt: the parent waits for a sign of life
                self._send({"op": "alive"})
            for serve, finish in step.ended:
                self._forget(serve)
                self._send({"op": "done", "serve": serve, "finish": finish})
            for serve, reason in step.failed:
                self._forget(serve)
                self._send({"op": "failed", "serve": serve, "reason": reason})
            for serve, logprobs in answers.decided:
                self._forget(serve)
                self._send({"op": "decided", "serve": serve, "logprobs": frames.pack_logprobs(logprobs)})
            for serve, result in checked.found:
                self._forget(serve)
                self._send({"op": "checked", "serve": serve, **frames.pack_check(result)})
            for serve in (*answers.cancelled, *checked.cancelled):
                self._forget(serve)
                self._send({"op": "done", "serve": serve, "finish": "cancelled"})
            for serve, reason in (*answers.failed, *checked.failed):
                self._forget(serve)
                self._send({"op": "failed", "serve": serve, "reason": reason})

    def _forget(self, serve: int) -> None:
        with self._serves_lock:
            self._known.discard(serve)
            self._cancelled.discard(serve)

    def _tokenize(self, model: Any) -> None:
        from mesh.schema.request import pack_ids

        while True:
            text = self._texts.get()
            try:
                ids = model.tokenize(text["text"], special=text["special"], bare=text["bare"])
            except EngineFailed as e:
                self._send({"op": "refused", "call": text["call"], "reason": str(e)})
            else:
                self._send({"op": "encoded", "call": text["call"], "ids": pack_ids(ids)})


def _order(message: dict[str, Any]) -> Any:
    from mesh.engine.gguf_model import SamplingPlan
    from mesh.engine.gguf_order import Order
    from mesh.schema.request import unpack_ids

    if message["op"] not in ("serve", "check"):
        raise EngineFailed(f"engine pipe: a second {message['op']}")
    sampling = message["sampling"]
    plan = SamplingPlan(
        logit_bias=tuple((i, bias) for i, bias in sampling["logit_bias"]),
        grammar=message["grammar"],
        **{name: sampling[name] for name in _CONTROLS},
    )
    return Order(
        serve=message["serve"], prompt=tuple(unpack_ids(message["prompt"])), max_tokens=message["max_tokens"],
        plan=plan, stop=tuple(sampling["stop"]),
        stop_ids=frozenset(sampling["stop_ids"]), ignore_eos=sampling["ignore_eos"],
        scores=None if message["scores"] < 0 else message["scores"],
    )  # fmt: skip


def _known(message: dict[str, Any]) -> Any:
    from mesh.engine.gguf_checks import Known
    from mesh.schema.request import unpack_ids

    return Known(_order(message), tuple(unpack_ids(message["output"])), message["cut"])


def _question(message: dict[str, Any]) -> Any:
    from mesh.engine.gguf_decisions import Question
    from mesh.schema.request import unpack_ids

    options = tuple(tuple(unpack_ids(option)) for option in message["options"])
    return Question(message["serve"], tuple(unpack_ids(message["prompt"])), options, message["ending"])


def _digest(path: Path) -> bytes:
    from blake3 import blake3

    return blake3(max_threads=1).update_mmap(path).digest()


if __name__ == "__main__":
    main()
