"""RC-04: a launch file that is not consistent with itself. RC-06: one configuration, three files, three answers."""

from __future__ import annotations

import pytest
import yaml

from mesh.launch.importer import import_recipe
from mesh.launch.manifests import compose_findings, is_kubernetes, kubernetes_findings
from mesh.launch.views import View, compose_views, differences, env_view, interpolated, read_env_file
from tests.launch.foreign_examples import COMPOSE, COMPOSE_ENV, ENV_FILE, RUNNER, STATEFUL


def of_manifest(text: str) -> list[str]:
    documents = list(yaml.safe_load_all(text))
    assert is_kubernetes(documents)
    return [one.words() for one in kubernetes_findings(documents)]


def test_rc_04_port_without_a_listener_floating_tag_null_requests_and_ranks() -> None:
    assert of_manifest(STATEFUL) == [
        "error: StatefulSet two: docker.io/org/sglang:latest: floating image tag",
        "warning: StatefulSet two: resources.requests is null",
        "note: StatefulSet two: ranks 2 x 8 GPUs = TP 16: consistent",
        "error: Service serving: port 8080 has no listener: the engine is at 0.0.0.0:8000, the head:5000",
    ]


def test_rc_04_three_replicas_disagree_with_the_ranks() -> None:
    found = of_manifest(STATEFUL.replace("replicas: 2", "replicas: 3"))
    assert "error: StatefulSet two: TP 16 and nnodes 2 disagree with 3 x 8 GPUs" in found


def test_rc_04_engine_that_is_not_told_where_to_listen_is_not_behind_its_service() -> None:
    text = STATEFUL.replace("--host 0.0.0.0 \\\n", "\\\n").replace("          --port 8000 \\\n", "")
    found = of_manifest(text)
    assert "warning: StatefulSet two: --host and --port not given: sglang listens on 127.0.0.1:30000" in found
    assert "error: Service serving: port 8000 has no listener: the engine is at 127.0.0.1:30000, the head:5000" in found


def test_rc_04_compose_file_floats_and_holds_a_placeholder_and_probes_its_own_port() -> None:
    findings, _ = compose_findings(yaml.safe_load(COMPOSE), "compose.yaml")
    assert [one.words() for one in findings] == [
        "error: services.engine: org/sglang:latest: floating image tag",
        "error: services.engine HF_TOKEN: <secret> stands for a value that was never filled in",
        "note: services.engine.healthcheck: port 30000 equals the engine's",
        "note: services.engine.healthcheck: says that a server is there, not which model it serves",
    ]
    other, _ = compose_findings(yaml.safe_load(COMPOSE.replace("localhost:30000", "localhost:8000")), "compose.yaml")
    assert "error: services.engine.healthcheck: port 8000, the engine listens on 30000" in [o.words() for o in other]


def three_views() -> list[View]:
    document, env = yaml.safe_load(COMPOSE_ENV), read_env_file(ENV_FILE)
    runner = import_recipe(RUNNER.encode(), "runner.yaml").view
    return [*compose_views(document, "compose.yaml", {}, None), env_view(document, env, ".env"), runner]


def test_rc_06_every_difference_of_three_views_is_found() -> None:
    rows = differences(three_views())
    assert {name: rows[name] for name in ("max_num_seqs", "gpu_memory_utilization", "host", "model")} == {
        "max_num_seqs": ["6", "12", "6"],
        "gpu_memory_utilization": ["0.80", "0.85", "0.78"],
        "host": ["127.0.0.1", "0.0.0.0", "0.0.0.0"],
        "model": ["org/old", "org/old", "org/new"],
    }
    assert rows["max_cudagraph_capture_size"] == ["computed", None, None]
    assert rows["env.VLLM_ENGINE_READY_TIMEOUT_S"] == [None, "3600", "3600"]
    assert rows["image"][0] == "runtime:stage-c"
    assert rows["image"][2] is not None
    assert rows["image"][2].startswith("registry.example/runtime@sha256:")


def test_rc_06_variable_that_the_compose_file_never_passes_on_is_called_unused() -> None:
    findings, _ = compose_findings(yaml.safe_load(COMPOSE_ENV), "compose.yaml", read_env_file(ENV_FILE), ".env")
    assert "warning: .env: VLLM_ENGINE_READY_TIMEOUT_S: '3600': set but unused" in [one.words() for one in findings]


def test_rc_06_each_effective_value_has_one_origin() -> None:
    (view,) = compose_views(yaml.safe_load(COMPOSE_ENV), "compose.yaml", read_env_file(ENV_FILE), ".env")
    assert (view.settings["max_num_seqs"], view.origins["max_num_seqs"]) == ("12", ".env: SEQS")
    assert (view.settings["image"], view.origins["image"]) == ("runtime:stage-c", "compose.yaml, default")
    assert (view.settings["model"], view.origins["model"]) == ("org/old", ".env: MODEL")
    assert (view.environment["DRAFT"], view.origins["env.DRAFT"]) == ("5", "compose.yaml, default")
    assert "headless" not in view.settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("$A", "1"),
        ("${B:-x}", "x"),
        ("${E:-x}", "x"),
        ("${E-x}", ""),
        ("${A:+y}", "y"),
        ("${E:+y}", ""),
        ("${B:-${A}}", "1"),
        ("${B}", ""),
    ],
)
def test_variables_are_filled_as_compose_fills_them(text: str, value: str) -> None:
    assert interpolated(text, {"A": "1", "E": ""}) == value
