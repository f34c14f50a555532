"""What a contract has measured, and where an engine starts afresh."""

from __future__ import annotations

import json

from mesh.runtime.candidate import Candidate
from mesh.runtime.matrix import contexts
from tests.runtime.candidates import MACOS, PARALLEL, VLLM, document, runtime_json


def test_the_oldest_contract_is_each_case_in_both_domains() -> None:
    (cells,) = contexts(Candidate.from_json(runtime_json(MACOS)).benchmark.contract)
    assert [(cell.case, cell.domain, cell.concurrency) for cell in cells] == [
        (case, domain, concurrency)
        for case in ("3k", "9k") for domain in ("code", "prose") for concurrency in (1, 3)
    ]  # fmt: skip
    assert {cell.tokens - cell.prompt_tokens for cell in cells} == {160}


def test_the_newest_has_short_prompts_and_a_warm_cache_too() -> None:
    (cells,) = contexts(Candidate.from_json(runtime_json(VLLM)).benchmark.contract)
    assert [(cell.part, cell.domain, cell.prompt_tokens, cell.concurrency, cell.repetition) for cell in cells] == [
        *(("short", domain, 300, concurrency, 0) for domain in ("code", "prose") for concurrency in (1, 2, 4)),
        *(("cases", "code", tokens, concurrency, 0) for tokens in (20_000, 90_000) for concurrency in (1, 3)),
        ("ttft_cache", "code", 64000, 1, 0), ("ttft_cache", "code", 64000, 1, 1),
    ]  # fmt: skip
    assert [cell.request.output_tokens for cell in cells] == [400] * 6 + [160] * 4 + [1] * 2


def test_fresh_contexts_are_the_short_ones_each_case_and_the_pair() -> None:
    groups = contexts(Candidate.from_json(runtime_json(PARALLEL)).benchmark.contract)
    assert [(group[0].case, len(group)) for group in groups] == [
        ("short", 6), ("25k", 2), ("75k", 2), ("ttft_cache", 2),
    ]  # fmt: skip


def test_short_prompts_of_version_5_run_alone() -> None:
    value = document(VLLM)
    contract = value["benchmark"]["contract"]
    contract["schema_version"] = contract["generator"]["version"] = 5
    del contract["ttft_cache"], contract["short"]["concurrencies"], contract["tokenizer"]["engine_payload_sha256"]
    image = value["engine"]["distribution"]["immutable_id"].removeprefix("sha256:")
    contract["tokenizer"]["engine_image_sha256"] = image
    (cells,) = contexts(Candidate.from_json(json.dumps(value).encode()).benchmark.contract)
    assert [cell.concurrency for cell in cells if cell.part == "short"] == [1, 1]
