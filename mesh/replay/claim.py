"""What a receipt claims, held against what was disclosed. Nothing here runs an engine.

A disclosure is not signed. Its request is bound by the receipt's `request_id`; its payload, opening and output only
once the output opens the commitment. Until then they may be anyone's, and no fault of the steward follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mesh.replay.verdict import Output
from mesh.schema.commitment import output_commitment
from mesh.schema.disclosure import Disclosure
from mesh.schema.receipt import Receipt
from mesh.schema.request import ServeRequest, payload_digest, prompt_hash_of_ids, prompt_hash_of_text


@dataclass(frozen=True, slots=True)
class Fault:
    """A field, and what is wrong with it in words."""

    field: str
    detail: str


@dataclass(frozen=True, slots=True)
class Claim:
    """`output` are the disclosed ids, None where there are none; `opened` says whether they open the commitment."""

    receipt: Receipt
    disclosure: Disclosure
    payload: tuple[int, ...]
    payload_digest: bytes
    output: tuple[int, ...] | None
    opened: bool

    @classmethod
    def of(cls, receipt: Receipt, disclosure: Disclosure) -> Claim:
        """Raises SchemaError for a payload or output that is not a whole number of ids."""
        payload = tuple(disclosure.payload_ids)
        digest = payload_digest(payload)
        ids = disclosure.output_ids
        output = None if ids is None else tuple(ids)
        opened = output is not None and _opens(receipt, disclosure, digest, output)
        return cls(receipt, disclosure, payload, digest, output, opened)

    @property
    def request(self) -> ServeRequest:
        return self.disclosure.request

    @property
    def cut(self) -> bool:
        """Whether the serve was cancelled, so that only the ids before the cut are claimed."""
        return self.receipt.outcome.finish == "cancelled"

    def opens(self, ids: Sequence[int]) -> bool:
        return _opens(self.receipt, self.disclosure, self.payload_digest, ids)

    def output_says(self) -> Output:
        if self.output is None:
            return "not-given"
        return "matches" if self.opened else "differs"

    def other_request(self) -> Fault | None:
        """What shows that the disclosure belongs to another serve than the receipt."""
        request, receipt = self.request, self.receipt
        if request.id != receipt.request_id:
            return Fault("request", "the disclosed request is not the one that the receipt names")
        prompt = self.disclosure.prompt
        if prompt is not None and prompt_hash_of_text(prompt, request.nonce) != request.prompt_hash:
            return Fault("prompt", "the disclosed prompt is not the one that the request addresses")
        if self.opened:  # then payload and opening are the steward's own, whatever else the disclosure says
            return None
        if self.disclosure.serve_id != receipt.serve_id:
            return Fault("serve_id", "the disclosure is of another serve of the same request")
        if len(self.payload) != request.prompt_tokens:
            detail = f"the disclosed payload has {len(self.payload)} ids, the request {request.prompt_tokens}"
            return Fault("payload", detail)
        return None

    def contradiction(self, ids: Sequence[int]) -> Fault | None:
        """The first field of the receipt that its own commitment disproves, where `ids` open it.

        Opening binds steward, request, payload and ids to each other, so everything that follows from them alone is
        held against the receipt: its counts, and whatever it repeats from the request or promised before the serve.
        A count that is absent claims nothing.
        """
        receipt, request, outcome = self.receipt, self.request, self.receipt.outcome
        tokens_in, tokens_out = len(self.payload), len(ids)
        if outcome.tokens_out != tokens_out:
            return _got("tokens_out", outcome.tokens_out, tokens_out)
        if outcome.tokens_in not in (None, tokens_in):
            return _got("tokens_in", outcome.tokens_in, tokens_in)
        if outcome.finish == "length" and tokens_out != request.max_tokens:
            return Fault("finish", f"length, but {tokens_out} ids were committed of max_tokens {request.max_tokens}")
        if receipt.max_tokens != request.max_tokens:
            return _got("max_tokens", receipt.max_tokens, request.max_tokens)
        if receipt.prompt_hash != request.prompt_hash:
            return Fault("prompt_hash", "is not the request's")
        if request.prompt_tokens != tokens_in:
            return _got("prompt_tokens", request.prompt_tokens, tokens_in)
        for name in ("tokens_accepted", "tokens_delivered"):
            count = getattr(outcome, name)
            if count is not None and count > tokens_out:
                return Fault(name, f"{count} of {tokens_out} committed ids")
        if outcome.weights_digest not in (None, receipt.engine.weights_digest):
            return Fault("weights_digest", "the outcome names other weights than the engine block")
        return None

    def payload_is_prompt_hash(self) -> bool:
        """Whether the client gave ids, and these are they."""
        return prompt_hash_of_ids(self.payload, self.request.nonce) == self.request.prompt_hash


def _opens(receipt: Receipt, disclosure: Disclosure, digest: bytes, ids: Sequence[int]) -> bool:
    if receipt.output_commitment is None:
        return False
    found = output_commitment(disclosure.opening, disclosure.request.id, digest, ids)
    return found == receipt.output_commitment


def _got(field: str, said: int | None, found: int) -> Fault:
    return Fault(field, f"the receipt says {said}, the commitment {found}")
