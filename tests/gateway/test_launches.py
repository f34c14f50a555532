"""What a gateway tells of launches: ledgers and the last look, and of what is old or damaged that it is so."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.engine.reference import ReferenceEngine
from mesh.errors import UsageError
from mesh.gateway.config import MeshConfig
from mesh.gateway.launch_page import LaunchPage
from mesh.gateway.launches import told_of
from tests.gateway.launching import closed, filled, ledger, looked, opened, seen
from tests.gateway.serving import house


def told(folder: Path) -> dict[str, Any]:
    return told_of(folder, time.time_ns())


def states(folder: Path) -> dict[str, str]:
    return {run["run"]: run["state"] for run in told(folder)["runs"]}


def test_runs_are_what_ledger_and_last_look_say_together(tmp_path: Path) -> None:
    all_of_it = told(filled(tmp_path / "launches"))
    assert all_of_it["fresh"] is True
    assert "fault" not in all_of_it
    runs = {run["run"]: run for run in all_of_it["runs"]}
    assert {name: run["state"] for name, run in runs.items()} == {
        "r-up": "up", "r-stale": "stale", "r-odd": "inconclusive", "r-old": "closed"
    }  # fmt: skip
    assert list(runs)[-1] == "r-old"
    assert [node["liveness"] for node in runs["r-up"]["nodes"]] == ["alive", "alive"]
    assert (runs["r-old"]["verified"], runs["r-old"]["how"]) == (True, "stopped")
    assert all_of_it["clusters"][0]["state"] == "up"


def test_old_look_says_nothing_of_now(tmp_path: Path) -> None:
    filled(tmp_path)
    looked(tmp_path, seen("r-up"), ago_s=20_000)
    all_of_it = told(tmp_path)
    assert all_of_it["fresh"] is False
    assert {run["state"] for run in all_of_it["runs"]} == {"open", "closed"}
    (cluster,) = all_of_it["clusters"]
    assert (cluster["state"], {node["state"] for node in cluster["nodes"]}) == ("unknown", {"unknown"})
    (tmp_path / "live.json").unlink()
    assert "looked_ms" not in told(tmp_path)
    assert states(tmp_path)["r-up"] == "open"


def test_ledger_that_was_closed_since_the_look_is_right(tmp_path: Path) -> None:
    filled(tmp_path)
    ledger(tmp_path, "qwen", {"event": "stopping", "run": "r-up", "at_ns": 1})
    assert "is being stopped" in next(run["why"] for run in told(tmp_path)["runs"] if run["run"] == "r-up")
    ledger(tmp_path, "qwen", closed("r-up"))
    assert states(tmp_path)["r-up"] == "closed"


def test_damaged_files_are_named_and_the_rest_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "live.json").write_text("{")
    assert told(tmp_path)["fault"] == "the state folder/live.json: damaged: not valid json"
    assert states(tmp_path)["r-up"] == "open"
    looked(tmp_path, v="another/1")
    assert "version is 'another/1'" in told(tmp_path)["fault"]
    looked(tmp_path, clusters=[3, {"nodes": "x", "runs": [7, {"run": "r-up"}]}])
    assert told(tmp_path)["clusters"] == [{"cluster": "None", "state": "down", "nodes": []}]
    odd = {"event": "opened", "run": "r-bare", "nodes": "none", "at_ns": True}
    ledger(tmp_path, "bare", odd, {"run": "r-bare", "event": "what"})
    (bare,) = [run for run in told(tmp_path)["runs"] if run["run"] == "r-bare"]
    assert bare == {"recipe": "bare", "run": "r-bare", "nodes": [], "state": "open", "readiness": "unknown",
                    "why": "nobody has looked at its nodes lately"}  # fmt: skip
    assert told(tmp_path / "nowhere")["fault"] == "the state folder is not there"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["run", "runs", "nodes", "node", "state", "up", "blocked", "liveness", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON, JSON, st.sampled_from(["at_ns", "nodes", "cluster", "model", "record", "port", "event"]))
def test_files_that_somebody_edited_are_told_as_far_as_they_can_be(
    tmp_path: Path, clusters: Any, value: Any, key: str
) -> None:
    looked(tmp_path, clusters=clusters)
    path = tmp_path / "qwen" / "runs.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(opened("r-up", 1, **{key: value})) + "\n" + json.dumps(opened("r-2", 1)) + "\n")
    json.dumps(told(tmp_path))
    assert states(tmp_path)["r-2"]


def test_newest_of_the_closed_runs_are_told(tmp_path: Path) -> None:
    for n in range(60):
        ledger(tmp_path, "many", opened(f"r-{n:02}", 9), closed(f"r-{n:02}"))
    names = [run["run"] for run in told(tmp_path)["runs"]]
    assert (len(names), "r-59" in names, "r-09" in names) == (50, True, False)


def test_gateway_tells_those_who_may_use_it_and_writes_nothing(tmp_path: Path) -> None:
    folder = filled(tmp_path / "launches")

    def all_bytes() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = all_bytes()

    async def main() -> None:
        async with house(tmp_path / "open", ReferenceEngine(), launches=folder) as gate:
            assert (await gate.get("/launches")).status == 200
            assert len((await gate.get("/mesh/v1/launches")).json["runs"]) == 4
        async with house(tmp_path / "none", ReferenceEngine()) as gate:
            assert (await gate.get("/mesh/v1/launches")).json == {"configured": False}
        keys = ["b3:" + "0" * 64]
        async with house(tmp_path / "keys", ReferenceEngine(), keys=keys, launches=folder) as gate:
            assert (await gate.get("/mesh/v1/launches")).status == 401

    asyncio.run(main())
    assert all_bytes() == before


def test_page_by_itself_is_of_launches_alone_and_of_loopback(tmp_path: Path) -> None:
    import aiohttp

    folder = filled(tmp_path)

    async def main() -> None:
        page = LaunchPage(folder)
        with pytest.raises(UsageError, match="is not loopback"):
            await page.start("0.0.0.0", 0)
        port = await page.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
                async with http.get("/") as reply:
                    assert (reply.status, reply.url.path) == (200, "/launches")
                    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
                async with http.get("/mesh/v1/launches") as reply:
                    assert len(json.loads(await reply.read())["runs"]) == 4
                    assert reply.headers["Cache-Control"] == "no-store"
                for path in ("/blueprint", "/v1/models", "/mesh/v1/steward"):
                    async with http.get(path) as reply:
                        assert reply.status == 404
        finally:
            await page.stop()

    asyncio.run(main())


def test_configuration_names_the_state_folder() -> None:
    text = '[[backend]]\nkind = "reference"\n[launch]\nstate = "launches"\n'
    config = MeshConfig.from_toml(text)
    assert config.launch is not None
    assert config.launch.state == "launches"
    with pytest.raises(UsageError, match=r"launch\.dir"):
        MeshConfig.from_toml(text.replace("state =", "dir ="))
