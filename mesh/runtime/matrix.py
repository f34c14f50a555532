"""What a contract has measured: every cell of its matrix, in order, and where an engine has to be started afresh."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.runtime.benchmark import Contract, Request


@dataclass(frozen=True, slots=True)
class Cell:
    """`concurrency` streams at once, each with a prompt of `prompt_tokens` as the engine counts a rendered chat.
    `part` is `cases`, `short` or `ttft_cache`; `case` the id of a case, else the part. Prompts of one `prompt` are one
    text but for their ends; `repetition` counts the times that the same are sent again, from 0."""

    part: str
    case: str
    domain: str
    prompt_tokens: int
    concurrency: int
    request: Request
    repetition: int = 0

    @property
    def tokens(self) -> int:
        """Of context that each stream takes."""
        return self.prompt_tokens + self.request.output_tokens


def contexts(contract: Contract) -> list[list[Cell]]:
    """The cells, those together that one start of the engine serves: all of them, or, where isolation is
    `fresh-context`, the short ones, each case, and the pair that shows what a warm cache gains."""
    domains = contract.domains or ["code", "prose"]
    groups = []
    if (short := contract.short) is not None:
        groups.append([
            Cell("short", "short", domain, short.prompt_tokens, concurrency, short.request)
            for domain in short.domains
            for concurrency in short.concurrencies or [1]
        ])  # fmt: skip
    groups += [
        [
            Cell("cases", case.id, domain, case.prompt_tokens, concurrency, contract.request)
            for domain in domains
            for concurrency in case.concurrencies
        ]
        for case in contract.cases
    ]
    if (ttft := contract.ttft_cache) is not None:
        groups.append([
            Cell("ttft_cache", "ttft_cache", ttft.prompt_domain, ttft.prompt_tokens, 1, ttft.request, repetition)
            for repetition in range(ttft.repetitions)
        ])  # fmt: skip
    if contract.execution is not None and contract.execution.isolation == "fresh-context":
        return groups
    return [[cell for group in groups for cell in group]]
