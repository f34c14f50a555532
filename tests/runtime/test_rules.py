"""The format, rule by rule: what each takes at its edge, and what it refuses beyond, by its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mesh.runtime.candidate import Candidate, faults_in
from mesh.runtime.launching import launch_faults
from mesh.runtime.packing import pack
from mesh.runtime.release import release_faults
from mesh.runtime.tree import source_files
from tests.runtime.candidates import EMBEDDED, MACOS, PARALLEL, STANDALONE, VLLM, document, release

HEX = "0" * 64
IMAGE = f"registry/x@sha256:{HEX}"
GONE = object()  # instead of a value: the field is taken away
DISTRIBUTION, CONTRACT = "engine/distribution", "benchmark/contract"
TASK = "orchestration/tasks/0"

# base, field, what it takes, what it refuses
PACKING: list[tuple[str, str, list[Any], list[Any]]] = [
    (VLLM, "schema_version", [6], [4, 8, 6.0, "6", True, None]),
    (VLLM, "state", [], ["draft"]),
    (VLLM, "id", [VLLM], [VLLM.upper(), VLLM + "-x", "", 1]),
    (VLLM, "version", ["0.0.1", "7.08.9", "1.0.0+a.b", "1.0.0-a"], ["1", "2.3", "v2.3.4", "2.3.4-", "2.3.4.5", 2]),
    (VLLM, "logical_model", ["a", "0.x_y-z"], ["Harbour", "", "-a", "a/b", 1]),
    (VLLM, "target/id", [], ["Spark", "-a", "", "a b", 1, GONE]),
    (VLLM, "target/platform", ["a.b/c_d", "linux/riscv64"], [
        GONE, "linux", "linux/", "linux/a/b", "linux/ARM", "OS/arm64"]),
    (VLLM, "target/host", [], ["here"]),
    (VLLM, "target/accelerator/vendor", [], ["NVIDIA", "", GONE]),
    (VLLM, "target/accelerator/architecture", ["gb10.x_y-z"], ["GB10", GONE]),
    (VLLM, "target/accelerator/count", [1, 64, 65], [0, -1, True, 1.0, "1", GONE]),
    (VLLM, "target/accelerator/partitioning", ["full-device", "mig"], ["shared", "", GONE]),
    (VLLM, "target/accelerator/minimum_memory_gib", [1, 96, None, GONE], [0, True, -1, 1.0]),
    (VLLM, "target/memory/topology", ["unified", "discrete"], ["mixed", GONE]),
    (VLLM, "target/memory/minimum_total_gib", [1], [0, True, GONE]),
    (VLLM, "target/placement/strategy", ["single"], ["spread", GONE]),
    (VLLM, "target/placement/node_count", [1], [0, 2, GONE]),
    (PARALLEL, "target/placement/node_count", [2], [0, 65, True]),
    (VLLM, "target/placement/interconnect/kind", ["any"], ["connectx", "wifi", GONE]),
    (VLLM, "target/placement/interconnect/rdma_required", [False], [True, 0, GONE]),
    (VLLM, "target/placement/interconnect/minimum_speed_mbps", [0], [1, GONE]),
    (VLLM, "target/placement/interconnect/minimum_mtu", [0], [1, 9000, GONE]),
    (PARALLEL, "target/placement/interconnect/kind", ["any", "connectx", "ethernet", "wifi", "other"], ["roce", ""]),
    (PARALLEL, "target/placement/interconnect/rdma_required", [True, False], []),
    (PARALLEL, "target/placement/interconnect/minimum_speed_mbps", [0, 400_000], [-1, True]),
    (PARALLEL, "target/placement/interconnect/minimum_mtu", [0, 9000], [-1]),
    (VLLM, "engine/id", [], ["vLLM", GONE]),
    (VLLM, "engine/protocol", [{"version": 2}], [
        {}, {"version": 1}, {"version": 3}, {"version": 2, "x": 1}, {"version": True}, 2, GONE]),
    (VLLM, "engine/model_format", [], ["safetensors", GONE]),
    (VLLM, "engine/image", [], [{}]),
    (VLLM, "engine/arguments", [[], ["a\0b", "x" * 9999, "y"]], [[1], ["-a", ""], "-a", None, GONE]),
    (VLLM, "engine/environment", [{}, {"_a1": ""}, {"A" * 99: "\0"}, {"small": "x"}], [
        {"1A": ""}, {"": ""}, {"A-B": ""}, {"A": 5}, {"A": None}, {"LETSINFER_": ""}, {"LETSINFER_OURS": "x"}, GONE]),
    (VLLM, f"{DISTRIBUTION}/reference", [IMAGE], ["a b" + IMAGE, "a@" + IMAGE, f"x@sha256:{HEX[1:]}", GONE]),
    (VLLM, f"{DISTRIBUTION}/immutable_id", [f"sha256:{HEX}"], [HEX, f"sha256:{'A' * 64}", f"sha512:{HEX}", GONE]),
    (VLLM, f"{DISTRIBUTION}/base", [IMAGE], ["vllm:latest", ""]),
    (VLLM, f"{DISTRIBUTION}/base", [GONE], []),
    (PARALLEL, f"{DISTRIBUTION}/base", [GONE], []),
    (VLLM, f"{DISTRIBUTION}/kind", [], ["podman", GONE]),
    (VLLM, f"{DISTRIBUTION}/payload_id", [], [HEX, "sha256:", GONE]),
    (VLLM, f"{DISTRIBUTION}/more", [], [1]),
    (MACOS, f"{DISTRIBUTION}/platform", [], [GONE, "macos/x86_64"]),
    (MACOS, f"{DISTRIBUTION}/payload_id", [f"sha256:{HEX}"], [HEX, f"sha256:{HEX}0", GONE]),
    (MACOS, f"{DISTRIBUTION}/source_revision", ["a" * 40], ["A" * 40, "a" * 7, "a" * 39, "a" * 41, GONE]),
    (MACOS, f"{DISTRIBUTION}/entrypoint", ["a+b/c_d-1.x", "..a", "./x"], [
        "a b", "", "a/", "/a", "..", "a/../b", "a\\b", GONE]),
    (MACOS, f"{DISTRIBUTION}/port_count", [2, 3, 4], [True, 0, 1, 5, GONE]),
    (MACOS, f"{DISTRIBUTION}/upstream_executable", ["bin/x"], ["/x", "../x", GONE]),
    (MACOS, f"{DISTRIBUTION}/archive/sha256", [HEX], [f"sha256:{HEX}", "A" * 64]),
    (MACOS, f"{DISTRIBUTION}/archive/bytes", [1, 1 << 30], [0, True, (1 << 30) + 1, GONE]),
    (MACOS, f"{DISTRIBUTION}/archive/strip_prefix", ["a/b"], ["../a", "", "/a"]),
    (MACOS, f"{DISTRIBUTION}/archive/url", ["https://h/" + "a" * 2038], [
        "https://h/" + "a" * 2039, "ftp://h/a", "h", "http://h/a", "https://me@h/a", "https://me:word@h/a", "https://h/a#b",
        "https://h/a#", GONE]),
    (MACOS, f"{DISTRIBUTION}/archive/format", ["tar.gz", "zip"], ["tar", "tgz", "7z", GONE]),
    (MACOS, f"{DISTRIBUTION}/archive/more", [], [1]),
    (STANDALONE, f"{DISTRIBUTION}/port_count", [2, 4], [1, 5]),
    (STANDALONE, f"{DISTRIBUTION}/python/version", ["3.8.0", "3.9.2", "3.19.0", "3.10.14"], [
        "3.7.0", "3.20.1", "4.1.0", "3.12", "3.11.x", "3.11.1.1", GONE]),
    (STANDALONE, f"{DISTRIBUTION}/python/implementation", [], ["graalpy", "CPython", GONE]),
    (STANDALONE, f"{DISTRIBUTION}/requirements_lock", ["a/b.lock"], ["/a", "../a", GONE]),
    (STANDALONE, f"{DISTRIBUTION}/archive", [], [{}]),
    (EMBEDDED, f"{DISTRIBUTION}/port_count", [1, 4], [0, 5]),
    (EMBEDDED, f"{DISTRIBUTION}/bundle_id", ["a.b", "ai.x-y.z1"], ["a", "a..b", ".a", "a.", "a b.c", GONE]),
    (EMBEDDED, f"{DISTRIBUTION}/minimum_version", ["1.0.0-rc.1"], ["1.0", "", "1.0.0+a", GONE]),
    (EMBEDDED, f"{DISTRIBUTION}/signing_policy", [], ["mine", GONE]),
    (EMBEDDED, f"{DISTRIBUTION}/team", [], ["A1"]),
    (EMBEDDED, f"{DISTRIBUTION}/embedded_engine", ["x" * 128], ["x" * 129, "X", ""]),
    (VLLM, "model/uri", [], ["hf://a", "hf://a/b/c", "https://a/b", "hf:///b", "hf://a/", GONE]),
    (VLLM, "model/acquisition/image", [IMAGE], ["x:latest", GONE]),
    (VLLM, "model/acquisition/client", [], ["huggingface-http-v1"]),
    (VLLM, "model/acquisition/kind", [], ["rsync", GONE]),
    (VLLM, "model/acquisition", [], [{"kind": "huggingface-http", "client": "huggingface-http-v1"}]),
    (MACOS, "model/acquisition/client", [], ["huggingface-http-v0", "curl", GONE]),
    (MACOS, "model/acquisition", [], [{"kind": "oci-container", "image": IMAGE}]),
    (VLLM, "model/artifact", ["model"], ["draft", "none", "", GONE]),
    (VLLM, "artifacts", [], [[], {}, None]),
    (VLLM, "artifacts/1/name", [], ["Draft", "model", "", GONE]),
    (VLLM, "artifacts/1/uri", ["hf://A_b.c/D-e"], ["hf://a/b/c", GONE]),
    (VLLM, "artifacts/1/revision", ["f" * 40], ["F" * 40, "f" * 41, "latest", GONE]),
    (VLLM, "artifacts/1/bytes", [], [5]),
    (VLLM, "artifacts/1/sha256", [], [HEX]),
    (VLLM, "artifacts/1/format", [], ["safetensors", GONE]),
    (MACOS, "artifacts/0/filename", ["a b.gguf"], [
        "a.safetensors", "in/a.gguf", "a.gguf/", "/a.gguf", "..\\a.gguf", "a\n.gguf", GONE]),
    (MACOS, "artifacts/0/bytes", [1, GONE], [0, True, 1.5]),
    (MACOS, "artifacts/0/sha256", [], ["A" * 64, "a" * 63, GONE]),
    (VLLM, "container", [{}, {"x": None}], [None, 1, [], {"model_cache": None}]),
    (VLLM, "serving", [{}, {"x": 1}], [None, [], {"qualified": False}, {"blocked_by": []}]),
    (VLLM, "cache/more", [], [1]),
    (VLLM, "cache/provider", [], ["elsewhere", "", GONE]),
    (VLLM, "cache/persistent", [False], [1, None, GONE]),
    (VLLM, "cache/prewarm", [True, False], [0, GONE]),
    (VLLM, "cache/config", [{"x": []}], [[], None, GONE]),
    (VLLM, "cache/replay_output_policy", [None], ["exact", "all-phases-exact", "restored-repeat-exact", GONE]),
    (VLLM, "benchmark", [], [{}, None]),
    (VLLM, "benchmark/more", [], [None]),
    (VLLM, f"{CONTRACT}/schema_version", [], [1, 9, True, GONE]),
    (VLLM, f"{CONTRACT}/suite", [], ["letsinfer-code-prose-v2", GONE]),
    (VLLM, f"{CONTRACT}/generator/id", [], ["other", GONE]),
    (VLLM, f"{CONTRACT}/generator/version", [8], [6, 9, True, GONE]),
    (VLLM, f"{CONTRACT}/sample_interval_seconds", [1, 60], [0, 61, True, GONE]),
    (VLLM, f"{CONTRACT}/domains", [["code"], ["prose"], ["code", "prose"]], [
        [], ["prose", "code"], ["code", "code"], ["text"], "code", GONE]),
    (VLLM, f"{CONTRACT}/execution/isolation", ["fresh-matrix", "fresh-context"], ["none", GONE]),
    (VLLM, f"{CONTRACT}/execution/prefix_state", [], ["cold", GONE]),
    (VLLM, f"{CONTRACT}/execution/samples_per_cell", [1], [0, 3, True]),
    (VLLM, f"{CONTRACT}/execution/stream_prefix", [], ["own", GONE]),
    (VLLM, f"{CONTRACT}/short/domains", [], [["code"], ["prose", "code"], GONE]),
    (VLLM, f"{CONTRACT}/short/prompt_tokens", [1], [0, GONE]),
    (VLLM, f"{CONTRACT}/short/concurrencies", [], [[1], [1, 2, 4, 8], [4, 2, 1], GONE]),
    (VLLM, f"{CONTRACT}/ttft_cache/prompt_tokens", [64_000], [63_999, 64_001, GONE]),
    (VLLM, f"{CONTRACT}/ttft_cache/prompt_domain", [], ["prose"]),
    (VLLM, f"{CONTRACT}/ttft_cache/repetitions", [], [1, 3]),
    (VLLM, f"{CONTRACT}/ttft_cache/request/output_tokens", [1], [3]),
    (VLLM, f"{CONTRACT}/ttft_cache/request/temperature", [0, 0.0], [0.1]),
    (VLLM, f"{CONTRACT}/request/output_tokens", [], [0, True, GONE]),
    (VLLM, f"{CONTRACT}/request/min_completion_tokens", [1, 160], [0, 161, GONE]),
    (VLLM, f"{CONTRACT}/request/temperature", [0, 0.25, 2, 1e300], [-0.1, "0", True, None, GONE]),
    (VLLM, f"{CONTRACT}/request/seed", [0, 2**63 - 1], [-1, True, 1.0, GONE]),
    (VLLM, f"{CONTRACT}/request/require_natural_stop", [True, False], [0, GONE]),
    (VLLM, f"{CONTRACT}/cases", [], [[], {}, GONE]),
    (VLLM, f"{CONTRACT}/cases/0/id", ["8k.x_y-z"], ["8K", "", GONE]),
    (VLLM, f"{CONTRACT}/cases/1/id", [], ["20k"]),
    (VLLM, f"{CONTRACT}/cases/0/prompt_tokens", [1], [0, True, GONE]),
    (VLLM, f"{CONTRACT}/cases/0/concurrencies", [[1], [128], [2, 128]], [
        [], [1, 1], [5, 2], [0], [129], [True], 1, GONE]),
    (VLLM, f"{CONTRACT}/tokenizer/capability", [], ["x", GONE]),
    (VLLM, f"{CONTRACT}/tokenizer/render_contract", [], ["x", GONE]),
    (VLLM, f"{CONTRACT}/tokenizer/model_sha256", [], [HEX, GONE]),
    (VLLM, f"{CONTRACT}/tokenizer/engine_payload_sha256", [], [GONE, HEX, "A" * 64]),
    (MACOS, f"{CONTRACT}/tokenizer/engine_image_sha256", [], [HEX, GONE]),
    (VLLM, "orchestration", [None], [{}, document(PARALLEL)["orchestration"]]),
    (PARALLEL, "orchestration", [], [None, GONE]),
    (PARALLEL, "orchestration/schema_version", [3], [2, True, 3.0, 4, GONE]),
    (PARALLEL, "orchestration/failure_policy", [], ["each-alone", GONE]),
    (PARALLEL, "orchestration/more", [], [1]),
    (PARALLEL, "orchestration/tasks", [], [[], GONE]),
    (PARALLEL, "orchestration/startup_order", [[["task-0", "task-1"]], [["task-0"], ["task-1"]]], [
        [], [["task-1"]], [["task-0"], ["task-1"], []], [["task-1", "task-0"], ["task-0"]], GONE]),
    (PARALLEL, "orchestration/endpoint_owner", ["task-0", "task-1"], ["", "task-2", GONE]),
    (PARALLEL, f"{TASK}/task_id", [], ["task-1", "task-00", "head", GONE]),
    (PARALLEL, f"{TASK}/launcher", [], ["docker", GONE]),
    (PARALLEL, f"{TASK}/port_count", [1, 32], [0, 33, True, GONE]),
    (PARALLEL, f"{TASK}/more", [], [1]),
    (PARALLEL, f"{TASK}/environment", [{"A" * 64: ""}, {f"A{n}": "" for n in range(64)}, {"A": "x" * 16_383}], [
        {"A" * 65: ""}, {"1": ""}, {"small": ""}, {"LETSINFER_B": ""}, {f"A{n}": "" for n in range(65)},
        {"A": "x" * 16_384}, GONE]),
    (PARALLEL, f"{TASK}/command", [["/x"] * 128, ["/x", "y" * 4096], ["/x/..y"], ["/usr/bin/zsh"]], [
        [], ["run"], ["/a/../b"],
        ["/x"] * 129, ["/x", "y" * 4097], ["/x", *["y" * 4096] * 4], ["/x", ""], ["/x", "a\0"], ["./x"], ["/x/.."],
        GONE, *([f"/any/where/{shell}"] for shell in ("sh", "bash", "dash", "fish", "ksh", "env"))]),
    (PARALLEL, f"{TASK}/readiness/command", [["/x"]], [[], ["/bin/sh"], GONE]),
    (PARALLEL, f"{TASK}/readiness/interval_seconds", [1, 60], [0, 61, True, GONE]),
    (PARALLEL, f"{TASK}/readiness/timeout_seconds", [1, 30], [0, 31, GONE]),
    (PARALLEL, f"{TASK}/readiness/retries", [1, 600], [0, 601, GONE]),
    (PARALLEL, f"{TASK}/readiness/kind", [], ["http", GONE]),
    (PARALLEL, f"{TASK}/readiness/more", [], [1]),
]  # fmt: skip

# base, field, a value that makes others wrong, and one of these
ELSEWHERE: list[tuple[str, str, Any, str]] = [
    (VLLM, "target/placement/strategy", "parallel", "orchestration"),
    (VLLM, "artifacts/0/format", "gguf-file", "artifacts[0].filename"),
    (VLLM, f"{DISTRIBUTION}/kind", "native-archive", "engine.distribution.platform"),
    (VLLM, "model/acquisition/kind", "huggingface-http", "model.acquisition.client"),
    (VLLM, "cache/persistent", True, "cache.replay_output_policy"),
    (PARALLEL, f"{TASK}/launcher", "manifest", "orchestration.tasks[0].command"),
    (PARALLEL, f"{TASK}/readiness/kind", "manifest", "orchestration.tasks[0].readiness.command"),
    (PARALLEL, f"{TASK}/readiness", {"kind": "manifest"}, "orchestration.tasks[0].readiness.kind"),
]

LAUNCHING: list[tuple[str, str, list[Any], list[Any]]] = [
    (VLLM, "target/platform", ["linux/arm64", "linux/x86_64"], ["macos/amd64", "windows/x86_64"]),
    (EMBEDDED, "target/accelerator/count", [64], [65]),
    (VLLM, "engine/arguments", [["x"] * 128, ["x" * 4096] * 4, ["é" * 2048]], [["é" * 2049], ["x" * 4096] * 4 + ["x"]]),
    (VLLM, "engine/environment", [{"A" * 64: ""}, {"A": "x" * 16_383}, {f"A{n}": "" for n in range(64)}], [
        {"A" * 65: ""}, {"A": "x" * 16_384}, {"A": "\0"}, {"A": "x\n-----BEGIN PRIVATE KEY-----"},
        {"A": "-----BEGIN OPENSSH PRIVATE KEY-----"}]),
    (VLLM, "container/memory_bytes", [1], [0, True, GONE]),
    (VLLM, "container/shm_bytes", [1], [0, -1, GONE]),
    (MACOS, "container/shm_bytes", [0], [1, GONE]),
    (VLLM, "container/min_available_gib", [0], [-1, 0.5, GONE]),
    (VLLM, "container/runtime_min_available_gib", [0], [-1, GONE]),
    (VLLM, "container/startup_timeout_seconds", [1, 86_400], [0, 86_401, GONE]),
    (VLLM, "container/cpuset_cpus", ["0", "0-3,8", "9999"], ["", "0-", "-1", "a", "0 1", "1,", 0, None]),
    (VLLM, "serving/max_connections", [2**40], [0, True, GONE]),
    (VLLM, "serving/max_active_requests", [1], [0, GONE]),
    (VLLM, "serving/max_context_tokens", [1], [0, GONE]),
    (VLLM, "serving/gate", [None, {"x": 1}], [1, [], GONE]),
    (VLLM, "serving/more", [], [1]),
    (MACOS, f"{DISTRIBUTION}/upstream_executable", ["bin/x"], ["bin/./x", "./x"]),
    (STANDALONE, f"{DISTRIBUTION}/requirements_lock", ["a"], ["./a"]),
    (STANDALONE, f"{DISTRIBUTION}/python/archive/strip_prefix", ["a"], ["./a"]),
]  # fmt: skip


def cases(table: list[tuple[str, str, list[Any], list[Any]]]) -> list[Any]:
    return [
        pytest.param(base, path, value, good, id=f"{path}-{'takes' if good else 'refuses'}-{n}")
        for base, path, taken, refused in table
        for good, values in ((True, taken), (False, refused))
        for n, value in enumerate(values)
    ]


def edited(base: str, path: str, value: Any) -> dict[str, Any]:
    document_ = document(base)
    *parents, last = path.split("/")
    at: Any = document_
    for step in parents:
        if isinstance(at, dict) and step not in at:
            at[step] = {}
        at = at[int(step)] if isinstance(at, list) else at[step]
    if value is not GONE:
        at[last] = value
    else:
        at.pop(last, None)
    return document_


def dotted(path: str) -> str:
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split("/"))[1:]


def names(paths: list[str], field: str) -> bool:
    """The field itself, one in it, or, where several make the fault together, the table that it stands in."""
    above = field.rpartition(".")[0]
    return any(path in (field, above) or path.startswith((f"{field}.", f"{field}[")) for path in paths)


@pytest.mark.parametrize(("base", "path", "value", "good"), cases(PACKING))
def test_a_rule_of_the_reader_that_packs(base: str, path: str, value: Any, good: bool) -> None:
    before = {fault.path for fault in faults_in(document(base))}
    found = [fault.path for fault in faults_in(edited(base, path, value))]
    assert not before
    # what else is bound to the field is at fault with it, and no matter here
    bound = {"benchmark.contract.tokenizer.engine_image_sha256", "benchmark.contract.tokenizer.engine_payload_sha256"}
    if good:
        assert set(found) <= bound
    else:
        assert names(found, dotted(path)) or (path in ("target/id", "engine/id") and found == ["id"]), found


@pytest.mark.parametrize(("base", "path", "value", "expected"), ELSEWHERE)
def test_a_value_that_does_not_go_with_another_is_told_there(base: str, path: str, value: Any, expected: str) -> None:
    assert expected in [fault.path for fault in faults_in(edited(base, path, value))]


@pytest.mark.parametrize(("base", "path", "value", "good"), cases(LAUNCHING))
def test_a_rule_of_the_reader_that_launches(base: str, path: str, value: Any, good: bool) -> None:
    changed = edited(base, path, value)
    found = [fault.path for fault in launch_faults(Candidate.from_json(json.dumps(changed).encode()))]
    assert found == [] if good else names(found, dotted(path)), found


@pytest.mark.parametrize("field", sorted(document(PARALLEL)))
def test_every_field_of_the_top_level_has_to_be_there(field: str) -> None:
    value = document(PARALLEL)
    del value[field]
    assert field in [fault.path for fault in faults_in(value)]
    assert len(document(VLLM)) == 12


@pytest.mark.parametrize("policy", ["all-phases-exact", "restored-repeat-exact"])
def test_a_persistent_cache_says_what_of_a_replay_is_the_same(policy: str) -> None:
    value = document(PARALLEL)
    value["cache"].update(persistent=True, replay_output_policy=policy)
    assert faults_in(value) == []
    value["cache"]["replay_output_policy"] = None
    assert [fault.path for fault in faults_in(value)] == ["cache.replay_output_policy"]


def test_artifacts_behind_the_first_stand_by_name() -> None:
    value = document(VLLM)
    first, second = value["artifacts"][:2]
    value["artifacts"] = [first, second, {**second, "name": second["name"] + "z"}]
    assert faults_in(value) == []
    value["artifacts"] = [first, {**second, "name": second["name"] + "z"}, second]
    assert [fault.path for fault in faults_in(value)] == ["artifacts[2].name"]


def test_orchestration_has_at_most_64_kib() -> None:
    value = document(PARALLEL)
    for task in value["orchestration"]["tasks"]:
        task["environment"] = {"A": "x" * 16_000}
        task["command"] = ["/x", *["y" * 4000] * 3]
    assert faults_in(value) == []
    for task in value["orchestration"]["tasks"]:
        task["readiness"]["command"] = ["/x", *["y" * 4000] * 3]
    assert [str(fault) for fault in faults_in(value)] == ["orchestration: over 65536 bytes"]


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({"license": "AGPL-3.0-only"}, True), ({"license": "x" * 127}, True), ({"license": "-x"}, False),
        ({"authors": [{"github_login": "a" * 39, "github_id": 1, "github_type": "Organization"}]}, True),
        ({"authors": [{"github_login": "a" * 40, "github_id": 1, "github_type": "User"}]}, False),
        ({"authors": [{"github_login": "a", "github_id": True, "github_type": "User"}]}, False),
        ({"authors": [{"github_login": "a", "github_id": 1}]}, False),
        ({"authors": [{"github_login": "a", "github_id": n, "github_type": "User"} for n in range(1, 33)]}, True),
        ({"schema_version": True}, False), ({"provenance": {"repository": "a/b"}}, False),
    ],
)  # fmt: skip
def test_a_rule_of_what_is_published(change: dict[str, Any], good: bool) -> None:
    assert bool(release_faults({**release(), **change})) != good


def test_provenance_is_exactly_seven_fields() -> None:
    value = release(qualified=True)
    assert release_faults(value) == []
    assert len(value["provenance"]) == 7
    for field in value["provenance"]:
        less = {**value, "provenance": {k: v for k, v in value["provenance"].items() if k != field}}
        assert [fault.path for fault in release_faults(less)] == [f"provenance.{field}"]


LEFT_OUT = [
    ".git/config", "sub/.git", "__pycache__/x.py", "sub/__pycache__/x", "letsinfer-runtime.json",
    "sub/letsinfer-runtime.json", ".DS_Store", "sub/.DS_Store", "x.pyc", "sub/x.pyo", "x.letsinfer", "release.json",
    "benchmark.json", "benchmark.consensus.json", "benchmarks-2.json",
]  # fmt: skip
PACKED = [
    ".gitignore", ".pyc", "x.PYC", "x.pyc.txt", "sub/release.json", "sub/benchmark.json", "sub/benchmark.md", "release",
    "Benchmark.json", "benchmark.txt", "pycache", ".github/x",
]  # fmt: skip


def test_what_is_left_out_of_a_pack(folder: Path) -> None:
    for name in (*LEFT_OUT, *PACKED):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert [file.path for file in source_files(folder)] == sorted([*PACKED, "runtime.json"])


@pytest.mark.parametrize(
    ("mode", "packed"),
    [(0o644, 420), (0o600, 420), (0o666, 420), (0o755, 493), (0o700, 493), (0o654, 493), (0o645, 493), (0o4755, 493)],
)
def test_a_mode_is_one_of_two(mode: int, packed: int, folder: Path, tmp_path: Path) -> None:
    (folder / "x").write_bytes(b"x")
    (folder / "x").chmod(mode)
    files = pack(folder, tmp_path / "out").descriptor.files
    assert [file.mode for file in files if file.path == "x"] == [packed]
