"""Candidates of our own, one for each way in which an engine comes: made-up names and numbers, digests of a word."""

from __future__ import annotations

import hashlib
import json
from typing import Any

VLLM = "vllm--example-lab--harbour-14b-fp8--bench-arm"
MACOS = "llamacpp--example-lab--pebble-1b-gguf--desk-mac"
PARALLEL = "sglang--example-lab--estuary-90b-fp8--bench-arm-pair"
STANDALONE = "mlx-lm--example-lab--pebble-1b-4bit--desk-mac"
EMBEDDED = "llamacpp--example-lab--pebble-1b-gguf--pocket"


def sha(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def image(word: str) -> str:
    return f"registry.example.org/lab/{word}@sha256:{sha(word)}"


def target(
    id_: str, platform: str, accelerator: tuple[str, str], gib: int, nodes: int = 1, **interconnect: Any
) -> dict[str, Any]:
    vendor, architecture = accelerator
    link = {"kind": "any", "rdma_required": False, "minimum_speed_mbps": 0, "minimum_mtu": 0}
    return {
        "id": id_,
        "platform": platform,
        "accelerator": {"vendor": vendor, "architecture": architecture, "count": 1, "partitioning": "full-device"},
        "memory": {"topology": "unified", "minimum_total_gib": gib},
        "placement": {
            "strategy": "parallel" if nodes > 1 else "single",
            "node_count": nodes,
            "interconnect": link | interconnect,
        },
    }


def container(word: str) -> dict[str, Any]:
    """How an engine comes as an image."""
    return {
        "kind": "oci-container",
        "reference": image(f"{word}-engine"),
        "immutable_id": f"sha256:{sha(f'{word} image id')}",
        "base": image(f"{word}-base"),
        "payload_id": f"sha256:{sha(f'{word} payload')}",
    }


def native(kind: str, word: str, platform: str, ports: int) -> dict[str, Any]:
    """How one comes as files."""
    return {
        "kind": kind,
        "platform": platform,
        "payload_id": f"sha256:{sha(f'{word} payload')}",
        "source_revision": sha(f"{word} source")[:40],
        "entrypoint": "start/run-engine",
        "port_count": ports,
    }


def archive(word: str, size: int) -> dict[str, Any]:
    url = f"https://downloads.example.org/{word}.tar.gz"
    return {"url": url, "sha256": sha(f"{word} archive"), "bytes": size, "format": "tar.gz", "strip_prefix": word}


def snapshot(name: str, repository: str) -> dict[str, Any]:
    revision = sha(f"{repository} revision")[:40]
    return {"name": name, "uri": f"hf://{repository}", "format": "huggingface-snapshot", "revision": revision}


PEBBLE = {
    "name": "model", "uri": "hf://Example-Lab/Pebble-1B-GGUF", "format": "gguf-file",
    "revision": sha("pebble revision")[:40], "filename": "pebble-1b.Q8_0.gguf", "sha256": sha("pebble weights"),
    "bytes": 1_234_567_890,
}  # fmt: skip
HTTP = {"kind": "huggingface-http", "client": "huggingface-http-v1"}


def request(output_tokens: int) -> dict[str, Any]:
    """As many tokens as that, neither more nor fewer."""
    return {
        "output_tokens": output_tokens, "min_completion_tokens": output_tokens, "require_natural_stop": False,
        "temperature": 0, "seed": 7001,
    }  # fmt: skip


def contract(engine: dict[str, Any], artifact: dict[str, Any], version: int, cases: dict[str, int]) -> dict[str, Any]:
    """Of version 2, which has the fewest fields, or 8, which has them all."""
    repository = artifact["uri"].removeprefix("hf://")
    pin = f'{{"repository":"{repository}","revision":"{artifact["revision"]}"}}\n'
    bound = "engine_payload_sha256" if version >= 8 else "engine_image_sha256"
    made: dict[str, Any] = {
        "schema_version": version,
        "suite": "letsinfer-code-prose-v1",
        "generator": {"id": "letsinfer-code-prose", "version": version},
        "tokenizer": {
            "capability": "engine-rendered-chat-count-v1",
            "model_sha256": artifact.get("sha256", sha(pin)),
            bound: engine["distribution"]["payload_id"].removeprefix("sha256:"),
            "render_contract": "openai-chat-user-v1",
        },
        "request": request(160),
        "sample_interval_seconds": 4,
        "cases": [{"id": id_, "prompt_tokens": size, "concurrencies": [1, 3]} for id_, size in cases.items()],
    }
    if version >= 8:
        made |= {
            "domains": ["code"],
            "execution": {
                "isolation": "fresh-matrix", "prefix_state": "shared", "samples_per_cell": 1,
                "stream_prefix": "shared-body",
            },
            "short": {
                "domains": ["code", "prose"], "prompt_tokens": 300, "concurrencies": [1, 2, 4], "request": request(400),
            },
            "ttft_cache": {
                "prompt_tokens": 64000, "prompt_domain": "code", "repetitions": 2, "request": request(1),
            },
        }  # fmt: skip
    return made


def engine(id_: str, distribution: dict[str, Any], artifact: dict[str, Any], arguments: str = "") -> dict[str, Any]:
    return {
        "id": id_,
        "protocol": {"version": 2},
        "distribution": distribution,
        "model_format": artifact["format"],
        "cache_provider": f"{id_}-example-v1",
        "arguments": arguments.split(),
        "environment": {},
    }


def whole(
    version: str, target_: dict[str, Any], engine_: dict[str, Any], acquisition: dict[str, Any],
    artifacts: list[dict[str, Any]], contract_: dict[str, Any], *, gib: int, slots: int, context: int,
) -> dict[str, Any]:  # fmt: skip
    owner, repository = artifacts[0]["uri"].removeprefix("hf://").lower().split("/")
    shared = 8 << 30 if target_["platform"].startswith("linux") else 0
    return {
        "schema_version": 6,
        "id": f"{engine_['id']}--{owner}--{repository}--{target_['id']}",
        "version": version,
        "logical_model": repository.rsplit("-", 1)[0],
        "target": target_,
        "engine": engine_,
        "model": {"uri": artifacts[0]["uri"], "artifact": artifacts[0]["name"], "acquisition": acquisition},
        "artifacts": artifacts,
        "container": {
            "memory_bytes": gib << 30, "shm_bytes": shared, "min_available_gib": gib - 2,
            "runtime_min_available_gib": 1, "startup_timeout_seconds": 2400,
        },
        "cache": {
            "provider": engine_["cache_provider"], "persistent": False, "prewarm": False,
            "replay_output_policy": None, "config": {},
        },
        "serving": {"max_connections": 28, "max_active_requests": slots, "max_context_tokens": context, "gate": None},
        "benchmark": {"contract": contract_},
    }  # fmt: skip


def _vllm() -> dict[str, Any]:
    artifacts = [
        snapshot("model", "Example-Lab/Harbour-14B-FP8"),
        snapshot("draft", "Example-Lab/Harbour-14B-Draft"),
    ]
    made = engine(
        "vllm", container("harbour"), artifacts[0],
        "--max-model-len 98304 --max-num-seqs 20 --gpu-memory-utilization 0.83 --kv-cache-dtype fp8"
        " --speculative-config.method eagle3 --speculative-config.model ${artifact:draft}"
        " --speculative-config.num-speculative-tokens 2 --enable-prefix-caching --seed 7001",
    )  # fmt: skip
    made["environment"] = {"OMP_NUM_THREADS": "6"}
    cases = {"20k": 20_000, "90k": 90_000}
    return whole(
        "1.2.0-beta.3", target("bench-arm", "linux/arm64", ("nvidia", "sm_121"), 60), made,
        {"kind": "oci-container", "image": image("harbour-base")}, artifacts, contract(made, artifacts[0], 8, cases),
        gib=48, slots=20, context=98_304,
    )  # fmt: skip


def _macos() -> dict[str, Any]:
    distribution = native("native-archive", "pebble-mac", "macos/arm64", 3)
    distribution |= {"archive": archive("llama-build", 7_654_321), "upstream_executable": "bin/llama-server"}
    made = engine("llamacpp", distribution, PEBBLE, "--ctx-size 12288 --parallel 3 --flash-attn on")
    cases = {"3k": 3000, "9k": 9000}
    return whole(
        "4.5.6", target("desk-mac", "macos/arm64", ("apple", "m-series"), 12), made, HTTP, [PEBBLE],
        contract(made, PEBBLE, 2, cases), gib=6, slots=3, context=12_288,
    )  # fmt: skip


def _parallel() -> dict[str, Any]:
    artifact = snapshot("model", "Example-Lab/Estuary-90B-FP8")
    made = engine("sglang", container("estuary"), artifact, "--context-length 81920 --max-running-requests 5")
    made["environment"] = {"NCCL_CROSS_NIC": "1"}
    measured = contract(made, artifact, 8, {"25k": 25_000, "75k": 75_000})
    measured["execution"]["isolation"] = "fresh-context"
    link = {"kind": "connectx", "rdma_required": True, "minimum_speed_mbps": 100_000, "minimum_mtu": 4096}
    ready = {
        "kind": "exec", "command": ["/srv/engine/bin/is-up"], "interval_seconds": 7, "timeout_seconds": 3,
        "retries": 240,
    }  # fmt: skip
    tasks = [
        {
            "task_id": f"task-{n}", "launcher": "runtime-command", "port_count": 3,
            "command": ["/srv/engine/bin/run", role], "environment": {"ROLE": role}, "readiness": dict(ready),
        }
        for n, role in enumerate(("head", "follower"))
    ]  # fmt: skip
    return whole(
        "0.9.1-rc.4", target("bench-arm-pair", "linux/arm64", ("nvidia", "sm_121"), 100, nodes=2, **link), made,
        {"kind": "oci-container", "image": image("estuary-base")}, [artifact], measured,
        gib=90, slots=5, context=81_920,
    ) | {
        "orchestration": {
            "schema_version": 3, "failure_policy": "whole-group", "endpoint_owner": "task-0",
            "startup_order": [["task-1"], ["task-0"]], "tasks": tasks,
        }
    }  # fmt: skip


def _standalone() -> dict[str, Any]:
    artifact = snapshot("model", "Example-Lab/Pebble-1B-4bit")
    distribution = native("python-standalone", "pebble-mlx", "macos/arm64", 2)
    python = {"implementation": "cpython", "version": "3.12.4", "archive": archive("python-build", 22_222_222)}
    distribution |= {"python": python, "requirements_lock": "start/packages.lock"}
    made = engine("mlx-lm", distribution, artifact, "--decode-concurrency 3")
    return whole(
        "2.0.0", target("desk-mac", "macos/arm64", ("apple", "m-series"), 12), made, HTTP, [artifact],
        contract(made, artifact, 2, {"3k": 3000}), gib=6, slots=3, context=12_288,
    )  # fmt: skip


def _embedded() -> dict[str, Any]:
    distribution = native("embedded-application", "pebble-pocket", "ios/arm64", 1)
    distribution |= {
        "bundle_id": "org.example.pocket", "signing_policy": "deployment-managed", "minimum_version": "3.1.0",
        "embedded_engine": "llamacpp",
    }  # fmt: skip
    made = engine("llamacpp", distribution, PEBBLE)
    return whole(
        "0.3.0", target("pocket", "ios/arm64", ("apple", "phone-gpu"), 5), made, HTTP, [PEBBLE],
        contract(made, PEBBLE, 2, {"1k": 1000}), gib=3, slots=1, context=4096,
    )  # fmt: skip


_MADE = {VLLM: _vllm, MACOS: _macos, PARALLEL: _parallel, STANDALONE: _standalone, EMBEDDED: _embedded}


def runtime_json(candidate: str) -> bytes:
    return (json.dumps(_MADE[candidate](), indent=2) + "\n").encode()


def document(candidate: str = VLLM) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(runtime_json(candidate))
    return value


def release(*, qualified: bool = False) -> dict[str, Any]:
    """What is published beside a candidate; `qualified` where there is a consensus beside it too."""
    provenance = {
        "consensus_sha256": sha("consensus"), "execution_sha256": sha("execution"),
        "proposal_head_sha": sha("proposal")[:40], "pull_request": 12,
        "pull_request_url": "https://forge.example.org/lab/candidates/pull/12",
        "qualified_commit_sha": sha("qualified")[:40], "repository": "lab/candidates",
    }  # fmt: skip
    return {
        "schema_version": 2,
        "authors": [
            {"github_login": "example-lab", "github_id": 1001, "github_type": "Organization"},
            {"github_login": "ada-example", "github_id": 1002, "github_type": "User"},
        ],
        "license": "Apache-2.0",
        "provenance": provenance if qualified else None,
    }
