"""Rules between the fields, and how faults are told."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import CandidateError
from mesh.runtime.candidate import Candidate, derived_id, faults_in
from mesh.runtime.document import canonical, parse
from mesh.runtime.launching import launch_faults
from tests.runtime.candidates import EMBEDDED, MACOS, PARALLEL, STANDALONE, VLLM, document, runtime_json, sha
from tests.support.examples import examples


def at(value: Any, path: str, new: Any) -> Any:
    *parents, last = path.split("/")
    for step in parents:
        value = value[int(step)] if isinstance(value, list) else value[step]
    value[int(last) if isinstance(value, list) else last] = new
    return value


def faults(base: str, *edits: tuple[str, Any]) -> list[str]:
    value = document(base)
    for path, new in edits:
        at(value, path, new)
    return [str(fault) for fault in faults_in(value)]


def test_all_faults_are_named_at_once_in_the_order_in_which_readers_look() -> None:
    value = document()
    value["status"] = "draft"
    del value["version"]
    value["target"]["accelerator"]["count"] = 0
    value["engine"]["distribution"]["extra"] = 1
    value["cache"]["provider"] = "other"
    value["id"] = "x"
    with pytest.raises(CandidateError) as caught:
        Candidate.from_json(json.dumps(value).encode())
    assert [fault["path"] for fault in caught.value.faults] == [
        "status", "version", "target.accelerator.count", "engine.distribution.extra",
    ]  # fmt: skip
    value["target"]["accelerator"]["count"] = 1
    del value["engine"]["distribution"]["extra"]
    assert [fault.path for fault in faults_in(value)] == ["status", "version", "id", "cache.provider"]


def test_documents_are_bounded_by_what_they_would_become() -> None:
    """A megabyte of faults would take minutes to tell."""
    value = document()
    value["engine"]["arguments"] = ["x"] * 20_000
    contract = value["benchmark"]["contract"]
    contract["cases"] = [{"id": f"c{n}", "prompt_tokens": 1, "concurrencies": [1]} for n in range(1000)]
    assert Candidate.from_json(json.dumps(value).encode()).engine.arguments[19_999] == "x"
    contract["cases"] += contract["cases"][:2]
    assert [str(fault) for fault in faults_in(value)] == [
        "benchmark.contract.cases[1000].id: 'c0' is the id of another case too",
        "benchmark.contract.cases[1001].id: 'c1' is the id of another case too",
    ]
    value["engine"]["arguments"] = [1] * 65_536
    with pytest.raises(CandidateError, match=r"runtime\.json: over 65536 strings and separators"):
        Candidate.from_json(json.dumps(value).encode())


def test_a_message_does_not_grow_with_the_faults() -> None:
    value = {**document(), **{f"extra{n}": n for n in range(1000)}}
    with pytest.raises(CandidateError, match=r"extra39: unknown field; and 960 more$") as caught:
        Candidate.from_json(json.dumps(value).encode())
    assert len(caught.value.faults) == 1000


def test_rules_between_sections_hold_for_those_that_are_sound() -> None:
    found = faults(VLLM, ("cache/provider", "other"), ("serving/qualified", True), ("logical_model", "Big"))
    assert [text.split(":")[0] for text in found] == ["logical_model", "serving.qualified", "cache.provider"]


@pytest.mark.parametrize(
    ("base", "path", "new", "expected"),
    [
        (VLLM, "engine/distribution/base", None, "engine.distribution.base: expected a value or no such field"),
        (VLLM, "engine/arguments/1", "x${artifact:draft}", "engine.arguments[1]: expected an artifact as the whole"),
        (VLLM, "engine/arguments/1", "${artifact:nope}", "engine.arguments[1]: no artifact is named 'nope'"),
        (VLLM, "engine/environment", {"A-B": "s3cret"}, "engine.environment.A-B: expected a variable's name"),
        (VLLM, "model/uri", "hf://Example-Lab/Other", "artifacts[0].uri: expected model.uri"),
        (VLLM, "version", "1.0.0\n", "version: expected a version"),
        (VLLM, "version", "1.0.٣", "version: expected a version"),
        (VLLM, "benchmark/contract/short/request/seed", True, "benchmark.contract.short.request.seed: expected an int"),
        (VLLM, "benchmark/contract/request/temperature", False, "benchmark.contract.request.temperature"),
        (VLLM, "benchmark/contract/execution/stream_prefix", None, "benchmark.contract.execution.stream_prefix"),
        (VLLM, "benchmark/contract/tokenizer/engine_image_sha256", "0" * 64, "benchmark.contract.tokenizer.engine_im"),
        (MACOS, "benchmark/contract/domains", ["code"], "benchmark.contract.domains: unknown field in version 2"),
        (MACOS, "artifacts/0/filename", ".gguf", "artifacts[0].filename"),
        (MACOS, "artifacts/0/filename", "a\\b.gguf", "artifacts[0].filename"),
        (MACOS, "engine/distribution/archive/url", "https://h/" + "a" * 2048, "engine.distribution.archive.url: over"),
        (MACOS, "engine/distribution/archive/url", "https:///x", "engine.distribution.archive.url: expected an https"),
        (MACOS, "engine/distribution/entrypoint", "a//b", "engine.distribution.entrypoint"),
        (PARALLEL, "orchestration/tasks/1/task_id", "task-0", "orchestration.tasks[1].task_id: expected 'task-1'"),
        (PARALLEL, "orchestration/tasks/0/command", ["/usr/bin/env", "x"], "orchestration.tasks[0].command: a shell"),
        (PARALLEL, "orchestration/tasks/0/command", ["/x", "y" * 4097], "orchestration.tasks[0].command: expected at"),
        (PARALLEL, "orchestration/tasks/0/environment", {f"V{i}": "" for i in range(65)}, "orchestration.tasks[0].env"),
        (PARALLEL, "orchestration/startup_order", [["task-0"], ["task-0", "task-1"]], "orchestration.startup_order"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_its_path(base: str, path: str, new: Any, expected: str) -> None:
    found = faults(base, (path, new))
    assert any(text.startswith(expected) for text in found), found
    assert not any("s3cret" in text for text in found)


def test_versions_of_the_contract_have_their_own_fields() -> None:
    value = document()
    contract = value["benchmark"]["contract"]
    contract["schema_version"] = contract["generator"]["version"] = 2
    found = [fault.path.removeprefix("benchmark.contract.") for fault in faults_in(value)]
    assert found == [
        "domains", "execution", "short", "ttft_cache", "execution.stream_prefix", "short.concurrencies",
        "tokenizer.engine_payload_sha256", "tokenizer.engine_image_sha256",
    ]  # fmt: skip
    for version, gone in ((7, ()), (6, ("ttft_cache",)), (4, ("short",)), (2, ("domains", "execution"))):
        contract["schema_version"] = contract["generator"]["version"] = version
        for name in gone:
            del contract[name]
        image = value["engine"]["distribution"]["immutable_id"].removeprefix("sha256:")
        contract["tokenizer"].pop("engine_payload_sha256", None)
        contract["tokenizer"]["engine_image_sha256"] = image
        assert faults_in(value) == []
    contract["execution"] = {"isolation": "fresh-context", "prefix_state": "shared", "samples_per_cell": 1}
    contract["domains"] = ["code"]
    contract["schema_version"] = contract["generator"]["version"] = 3
    assert [fault.path for fault in faults_in(value)] == ["benchmark.contract.execution.isolation"]


@pytest.mark.parametrize("candidate", [VLLM, MACOS, PARALLEL, STANDALONE, EMBEDDED])
def test_parts_are_bound_by_the_digests_of_their_canonical_spelling(candidate: str) -> None:
    value = document(candidate)
    parts = {
        "target": value["target"],
        "benchmark": value["benchmark"]["contract"],
        "execution": value.get("orchestration", {"contract": "letsinfer-single-task-v1"}),
    }
    read = Candidate.from_json(runtime_json(candidate))
    assert read.contract_digests == {
        f"{name}_contract_sha256": sha(json.dumps(part, sort_keys=True, separators=(",", ":")) + "\n")
        for name, part in parts.items()
    }
    assert read.payload_id == value["engine"]["distribution"]["payload_id"]


def test_what_a_variable_holds_is_not_told() -> None:
    assert faults(VLLM, ("engine/environment", {"A": 80443}), ("engine/arguments", [80443])) == [
        "engine.arguments[0]: expected text, got 80443", "engine.environment.A: expected text",
    ]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2, 3, 5, 7])
def test_another_schema_is_refused_by_its_number_alone(version: int) -> None:
    value = {**document(), "schema_version": version, "status": "draft", "engine": None}
    assert [str(fault) for fault in faults_in(value)] == [f"schema_version: expected 6, got {version}"]


def test_the_id_follows_from_engine_model_and_target() -> None:
    assert derived_id("vllm", "hf://Some-ORG/Model.X", "desk") == "vllm--some-org--model.x--desk"


@pytest.mark.parametrize("candidate", [VLLM, MACOS, PARALLEL])
def test_a_candidate_of_schema_6_is_read_whole(candidate: str) -> None:
    read = Candidate.from_json(canonical(document(candidate)))
    assert read.id == candidate
    assert read.summary["id"] == candidate


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not JSON at line 1"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"id": 1, "id": 2}', "key 'id' is there twice"),
        (b'{"a": {"b": 1, "b": 1}}', "key 'b' is there twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1e999}', "beyond a double"),
        (b'{"a": 1%s.5}' % (b"0" * 400), r"\b10{23} is beyond a double"),
        (b'{"a": 99999999999999999999999}', "beyond 64 bits"),
        (b'{"a": %s}' % (b"9" * 400), r"\b9{24} is beyond 64 bits"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b"[" * 60_000, "nested deeper"),
        (b"[" * 65 + b"]" * 65, "nested deeper"),
        (b" " * ((1 << 20) + 1), "over 1048576 bytes"),
        (b"[]", "expected an object, got a list"),
        (b"{}", "schema_version: expected 6, and it is missing"),
    ],
)
def test_bytes_that_are_no_candidate_are_refused(data: bytes, expected: str) -> None:
    with pytest.raises(CandidateError, match=expected):
        Candidate.from_json(data)


def test_interconnect_of_one_node_is_told_in_the_words_of_the_document() -> None:
    value = copy.deepcopy(document(VLLM))
    value["target"]["placement"]["interconnect"].update(kind="ethernet", rdma_required=True)
    with pytest.raises(CandidateError) as caught:
        Candidate.from_json(json.dumps(value).encode())
    assert "interconnect.kind: expected 'any' where strategy is single" in str(caught.value)
    assert "interconnect.rdma_required: expected false where strategy is single" in str(caught.value)


def test_variable_that_is_called_as_a_mark_is_named() -> None:
    value = copy.deepcopy(document(VLLM))
    value["engine"]["environment"] = {"[key]": ""}
    with pytest.raises(CandidateError, match=r"engine\.environment\.'\[key\]': expected a variable's name"):
        Candidate.from_json(json.dumps(value).encode())


def test_canonical_json_keeps_what_is_beyond_ascii() -> None:
    assert canonical({"b": [1, True, None], "a": "naïve"}) == '{"a":"naïve","b":[1,true,null]}\n'.encode()
    assert parse(canonical({"x": 0.5}), "it") == {"x": 0.5}


def launch(base: str, *edits: tuple[str, Any]) -> list[str]:
    value = copy.deepcopy(document(base))
    for path, new in edits:
        at(value, path, new)
    return [str(fault) for fault in launch_faults(Candidate.from_json(json.dumps(value).encode()))]


@pytest.mark.parametrize(
    ("base", "path", "new", "expected"),
    [
        (VLLM, "target/platform", "linux/amd64", "target.platform: expected one of"),
        (VLLM, "target/accelerator/count", 65, "target.accelerator.count: expected at most 64"),
        (VLLM, "engine/arguments", ["x"] * 129, "engine.arguments: expected at most 128"),
        (VLLM, "engine/arguments", ["x" * 4097], "engine.arguments[0]: over 4096 bytes"),
        (VLLM, "engine/arguments", ["x" * 4096] * 5, "engine.arguments: over 16384 bytes together"),
        (VLLM, "engine/arguments", ["a\0b"], "engine.arguments[0]: holds a NUL"),
        (VLLM, "engine/environment", {f"V{i}": "" for i in range(65)}, "engine.environment: expected at most 64"),
        (VLLM, "engine/environment", {"V" * 65: ""}, "a name over 64 characters"),
        (VLLM, "engine/environment", {"V": "-----BEGIN RSA PRIVATE KEY-----"}, "engine.environment.V: holds a private"),
        (VLLM, "engine/environment", {"V": "x" * 16_384}, "engine.environment: over 16384 bytes"),
        (VLLM, "container/shm_bytes", 0, "container.shm_bytes: expected more than 0"),
        (MACOS, "container/shm_bytes", 1, "container.shm_bytes: expected 0"),
        (MACOS, "container/startup_timeout_seconds", 86_401, "container.startup_timeout_seconds: expected at most"),
        (MACOS, "container/cpuset_cpus", "٣", "container.cpuset_cpus: expected processors like 0-3,8"),
        (MACOS, "container/cpuset_cpus", "3-1", "container.cpuset_cpus: expected ranges that do not end before"),
        (MACOS, "container/cpuset_cpus", "0-99999", "container.cpuset_cpus: expected processors of at most 4 digits"),
        (MACOS, "container/anything", 1, "container.anything: unknown field"),
        (MACOS, "serving", {}, "serving.max_connections: missing"),
        (MACOS, "serving/max_active_requests", 33, "serving.max_active_requests: expected at most max_connections"),
        (MACOS, "engine/distribution/entrypoint", "./adapter", "engine.distribution.entrypoint: expected a path"),
        (MACOS, "engine/distribution/archive/strip_prefix", "a/./b", "engine.distribution.archive.strip_prefix"),
        (PARALLEL, "orchestration/tasks/1/command/0", "/bin/zsh", "orchestration.tasks[1].command: a shell"),
        (PARALLEL, "orchestration/tasks/0/readiness/command/0", "/zsh", "orchestration.tasks[0].readiness.command"),
    ],
)  # fmt: skip
def test_what_may_be_packed_and_would_not_launch_is_told_apart(base: str, path: str, new: Any, expected: str) -> None:
    assert launch(base) == []
    assert any(expected in text for text in launch(base, (path, new)))


def test_many_cases_may_be_packed_and_not_launched() -> None:
    cases = [{"id": f"c{i}", "prompt_tokens": 1, "concurrencies": [1]} for i in range(129)]
    assert launch(MACOS, ("benchmark/contract/cases", cases)) == ["benchmark.contract.cases: expected at most 128"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("kind", "x")), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        found += nodes(below, (*path, key))
    return found


@settings(max_examples=examples(120))
@given(data=st.data())
def test_whatever_stands_in_a_field_is_taken_or_refused_by_its_path(data: st.DataObject) -> None:
    value = document(data.draw(st.sampled_from((VLLM, MACOS, PARALLEL))))
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(nodes(value)))
        at: Any = value
        for step in parents:
            at = at[step]
        if data.draw(st.booleans()) and isinstance(at, dict):
            del at[last]
        else:
            at[last] = data.draw(JSON)
    found = faults_in(value)
    encoded = json.dumps(value).encode()
    if not found:
        launch_faults(Candidate.from_json(encoded))
        return
    with pytest.raises(CandidateError) as caught:
        Candidate.from_json(encoded)
    assert caught.value.faults == [fault.to_map() for fault in found]
