"""`mesh chat`: talk to a gateway, and keep what proves the answers."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, stream_out
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED
from mesh.cli.newfile import PRIVATE, write_new
from mesh.cli.trust import add_trust_flag, read_trust
from mesh.errors import NotFound, PayloadError, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh.cli.client import Gateway

DEFAULT_URL = "http://127.0.0.1:8080"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk to a gateway and see the receipts",
        description="Streams answers to stdout and names each one's receipt on stderr. The environment variable "
        "MESH_API_KEY holds the key for a gateway that wants one.",
    )
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the gateway ({DEFAULT_URL})")
    parser.add_argument("--model", help="which model (default: the first that the gateway has)")
    parser.add_argument("--message", metavar="TEXT", help="ask this and leave; without it, a conversation from stdin")
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="at most so many tokens per answer")
    parser.add_argument(
        "--disclose", type=Path, metavar="DIR", help="save each receipt and disclosure in DIR, for verify and replay"
    )
    add_trust_flag(parser, required=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object; needs --message")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.cli.client import Gateway

    if args.json and args.message is None:
        raise UsageError("--json needs --message")
    trust = read_trust(args.trust) if args.trust else None
    gateway = Gateway(args.url, os.environ.get("MESH_API_KEY"))
    if args.disclose is not None:
        args.disclose.mkdir(mode=0o700, parents=True, exist_ok=True)
    talk = Talk(gateway, args.model or _first_model(gateway), args.max_tokens, args.disclose, trust, quiet=args.json)
    if args.system is not None:
        talk.messages.append({"role": "system", "content": args.system})
    if args.message is None:
        _converse(talk)
        return ACCEPTED
    answer = talk.ask(args.message)
    if args.json:
        emit(answer)
    return ACCEPTED


@dataclass(slots=True)
class Talk:
    """A conversation so far. `trust` None: receipts are named, not checked."""

    gateway: Gateway
    model: str
    max_tokens: int | None
    folder: Path | None
    trust: Collection[bytes] | None
    quiet: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> dict[str, Any]:
        """Print the answer as it comes, then its receipt. Raises Refused, OSError, or EnvelopeError where the receipt
        is to be checked and is wrong."""
        asked = {"role": "user", "content": text}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*self.messages, asked],
            "stream": True,
            "stream_options": {"include_usage": True},
            "mesh": {"disclose": self.folder is not None},
        }
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        parts: list[str] = []
        told: dict[str, Any] = {"model": self.model}
        last: dict[str, Any] = {}
        for event in self.gateway.stream("/v1/chat/completions", body):
            last = event if isinstance(event.get("mesh"), dict) else last
            if event.get("usage"):
                told["usage"] = event["usage"]
            for choice in event.get("choices") or ():
                parts.append((choice.get("delta") or {}).get("content") or "")
                self._print(parts[-1])
                told["finish_reason"] = choice.get("finish_reason") or told.get("finish_reason")
        self._print("\n")
        self.messages += [asked, {"role": "assistant", "content": "".join(parts)}]
        return {"answer": "".join(parts), **told, **self._receipt(last, told.get("usage") or {})}

    def _receipt(self, last: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        """Fetch, check and save what was asked for, and say which receipt it is."""
        own = last.get("mesh") or {}
        receipt_id = own.get("receipt_id")
        if not isinstance(receipt_id, str):
            note("no receipt came with this answer: the gateway does not speak mesh")
            return {}
        words = f"receipt {receipt_id}: {usage.get('prompt_tokens', '?')} tokens in, "
        words += f"{usage.get('completion_tokens', '?')} out"
        told: dict[str, Any] = {"receipt_id": receipt_id}
        envelope = b""
        if self.trust is not None or self.folder is not None:
            from mesh.cli.client import quoted

            envelope = self.gateway.get(f"/mesh/v1/receipts/{quoted(receipt_id)}", accept="application/cose")
        if self.trust is not None:
            words += f", {self._checked(envelope, receipt_id)}"
            told["verified"] = True
        if self.folder is not None:
            told |= self._save(envelope, last, receipt_id)
            words += f", saved as {told['receipt_file']} and {told['disclosure_file']}"
        if not self.quiet:
            note(words)
        return told

    def _checked(self, envelope: bytes, receipt_id: str) -> str:
        from mesh.cli.words import energy_words
        from mesh.schema.envelope import RECEIPT_TYPE, verify

        sealed = verify(envelope, RECEIPT_TYPE, self.trust or ())
        if sealed.id.text != receipt_id:
            raise PayloadError(f"receipt: the gateway named {receipt_id} and sent {sealed.id}")
        return f"good, {energy_words(sealed.value.energy, sealed.value.outcome.tokens_out)}"

    def _save(self, envelope: bytes, last: dict[str, Any], receipt_id: str) -> dict[str, str]:
        from mesh.cli.disclose import disclosure_in

        disclosure = disclosure_in(last, "the answer")
        assert self.folder is not None
        stem = receipt_id.removeprefix("b3:")[:16]
        paths = {
            "receipt_file": self.folder / f"{stem}.receipt.cbor",
            "disclosure_file": self.folder / f"{stem}.disclosure.cbor",
        }
        write_new(paths["receipt_file"], (envelope,))
        write_new(paths["disclosure_file"], (disclosure.to_cbor(),), mode=PRIVATE)
        return {name: str(path) for name, path in paths.items()}

    def _print(self, text: str) -> None:
        if not self.quiet:
            stream_out(text)


def _first_model(gateway: Gateway) -> str:
    models = gateway.get_json("/v1/models")
    for model in (models.get("data") if isinstance(models, dict) else None) or ():
        name = model.get("id") if isinstance(model, dict) else None
        if isinstance(name, str):
            return name
    raise NotFound(f"{gateway.url}: has no model")


def _converse(talk: Talk) -> None:
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        note(f"talking to {talk.model}; an empty line or Ctrl-D ends it")
    while True:
        if prompt:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        line = sys.stdin.readline().strip()
        if not line:
            return
        try:
            talk.ask(line)
        except Refused as e:  # the conversation may go on without this question
            if not prompt:
                raise
            note(str(e))
