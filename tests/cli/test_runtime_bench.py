"""`mesh runtime bench` on a tiny model: the whole matrix, and a record that only its receipts bear out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.runtime.document import canonical
from tests.runtime.candidates import VLLM, document
from tests.support.candidates import bound, tiny_candidate, write_candidate


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a candidate, its state and its record, and what the command said."""
    from mesh.cli.main import main

    root = tmp_path_factory.mktemp("benched")
    folder, models, value = tiny_candidate(root)
    contract = value["benchmark"]["contract"]
    contract["cases"] = [
        {"id": "small", "prompt_tokens": 200, "concurrencies": [1, 2]},
        {"id": "large", "prompt_tokens": 1022, "concurrencies": [1]},  # with 4 more it is over the limit
        {"id": "many", "prompt_tokens": 200, "concurrencies": [17]},
    ]
    contract["domains"] = ["code"]
    contract["request"].update(output_tokens=4, min_completion_tokens=4)
    write_candidate(folder, bound(value))
    argv = ["runtime", "bench", folder, "--models", models, "--state", root / "state", "--out", root / "record.json"]
    assert main([*map(str, argv), "--cpu-watts", "10"]) == 0
    return root, json.loads((root / "record.json").read_bytes())


def test_a_record_names_candidate_payload_machine_and_receipts(benched: tuple[Path, dict[str, Any]]) -> None:
    root, record = benched
    said = json.loads((root / "candidate" / "runtime.json").read_bytes())
    assert record["candidate"]["id"] == said["id"]
    assert record["candidate"]["payload"] == said["engine"]["distribution"]["payload_id"]
    assert record["machine"]["cores"] >= 1
    assert set(record["machine"]) >= {"system", "release", "architecture", "processor", "python", "mesh"}
    assert [(cell["case"], cell["concurrency"], len(cell.get("requests", []))) for cell in record["cells"]] == [
        ("small", 1, 1), ("small", 2, 2), ("large", 1, 0), ("many", 17, 0),
    ]  # fmt: skip
    assert record["cells"][2]["skipped"] == "takes 1026 tokens of context, serving.max_context_tokens is 1024"
    assert record["cells"][3]["skipped"] == "takes 17 connections, serving.max_connections is 16"
    for cell in record["cells"][:2]:
        assert cell["samples"]
        for request in cell["requests"]:
            assert (request["tokens_in"], request["tokens_out"], request["finish"]) == (200, 4, "length")
            assert 0 < request["first_ns"] <= request["total_ns"] <= cell["wall_ns"]
            assert request["energy"]["basis"] in ("modelled", "unresolved", "absent")
    receipts = [request["receipt"] for cell in record["cells"] for request in cell.get("requests", [])]
    assert len(set(receipts)) == 3


def check(mesh: Any, root: Path, path: Path) -> Any:
    return mesh("runtime", "bench", root / "candidate", "--check", path, "--state", root / "state")


def test_a_good_record_is_borne_out(mesh, benched: tuple[Path, dict[str, Any]]) -> None:
    root, record = benched
    result = check(mesh, root, root / "record.json")
    assert (result.code, result.out) == (0, f"good: {record['candidate']['id']} 0.1.0, 3 receipts\n")
    told = mesh(
        "runtime", "bench", root / "candidate", "--check", root / "record.json", "--state", root / "state", "--json"
    )
    assert told.json == {"record": str(root / "record.json"), "good": True, "receipts": 3}


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "tokens": (lambda r: r["cells"][0]["requests"][0].update(tokens_out=5), "cells[0].requests[0].tokens_out: exp"),
    "prompt": (lambda r: r["cells"][0]["requests"][0].update(tokens_in=201), "tokens_in: expected 200, got 201"),
    "energy": (lambda r: r["cells"][1]["requests"][1]["energy"].update(uj=1, basis="measured"), "energy.basis: measur"),
    "late": (lambda r: r["cells"][0]["requests"][0].update(first_ns=10**15), "first_ns: 1000000000000000, after the e"),
    "cell's time": (lambda r: r["cells"][0].update(wall_ns=1), ", longer than the cell's 1"),
    "request's time": (
        lambda r: r["cells"][0]["requests"][0].update(first_ns=1, total_ns=1),
        "requests[0].total_ns: 1, its receipt's serve took ",
    ),
    "receipt": (lambda r: r["cells"][1]["requests"][0].update(receipt="b3:" + "0" * 64), "receipt: not in this ledger"),
    "twice": (
        lambda r: r["cells"][1]["requests"][0].update(receipt=r["cells"][0]["requests"][0]["receipt"]),
        "stands for another request too",
    ),
    "payload": (lambda r: r["candidate"].update(payload="sha256:" + "0" * 64), "candidate.payload: expected sha256:"),
    "candidate": (lambda r: r["candidate"].update(version="0.2.0"), "candidate.version: expected 0.1.0, got 0.2.0"),
    "pack": (lambda r: r["candidate"].update(runtime_digest="sha256:" + "1" * 64), "candidate.runtime_digest: "),
    "steward": (lambda r: r.update(steward="ed25519:" + "0" * 64), "receipt: "),
    "settings": (lambda r: r["engines"][0].update(settings_digest="b3:" + "0" * 64), "settings_digest: not in this"),
    "backend": (lambda r: r["engines"][0].update(backend_id="x"), "receipt: of another engine than the record names"),
    "cell": (lambda r: r["cells"].pop(), "cells: expected the whole matrix, 4, got 3"),
    "order": (lambda r: r["cells"].reverse(), "cells[0]: expected small code of 1"),
    "prompts": (lambda r: r.update(prompts="other/1"), "prompts: expected mesh-code-prose/1"),
    "skipped": (lambda r: r["cells"][0].update(skipped="tired"), "skipped: expected no requests"),
    "skipped, with requests": (
        lambda r: r["cells"][0].update(skipped="tired") or r["cells"][0].pop("wall_ns"),
        "skipped: expected no requests",
    ),
    "skipped, with a time": (lambda r: r["cells"][0].update(skipped="tired", requests=[]), "skipped: expected no requ"),
    "no starts": (lambda r: r.update(engines=[]), "engines: expected at least 1, got 0"),
    "no cells": (lambda r: r.update(cells=[]), "cells: expected at least 1, got 0"),
    "starts": (lambda r: r["engines"].append(dict(r["engines"][0])), "engines: expected 1, one for each start, got 2"),
    "unknown": (lambda r: r.update(more=1), "more: unknown field"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_record_is_refused_by_its_field(
    mesh, benched: tuple[Path, dict[str, Any]], edit: str, tmp_path: Path
) -> None:
    root, record = benched
    changed, expected = json.loads(json.dumps(record)), EDITS[edit][1]
    EDITS[edit][0](changed)
    (tmp_path / "record.json").write_bytes(canonical(changed))
    result = check(mesh, root, tmp_path / "record.json")
    assert result.code == 10
    assert expected in result.err


def test_a_record_has_one_spelling_and_is_not_written_over(
    mesh, benched: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, record = benched
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert "not the canonical spelling" in check(mesh, root, tmp_path / "record.json").err
    (tmp_path / "record.json").write_bytes(canonical(record) + b"\n")
    assert "not the canonical spelling" in check(mesh, root, tmp_path / "record.json").err
    again = mesh("runtime", "bench", root / "candidate", "--models", root / "models", "--out", tmp_path / "record.json")
    assert again.code == 3


@pytest.mark.deep
def test_fresh_contexts_are_fresh_starts(mesh, tmp_path: Path) -> None:
    folder, models, value = tiny_candidate(tmp_path)
    contract = value["benchmark"]["contract"]
    newest = document(VLLM)["benchmark"]["contract"]
    contract.update(
        {name: newest[name] for name in ("schema_version", "generator", "execution", "short", "ttft_cache")}
    )
    contract["execution"]["isolation"] = "fresh-context"
    contract["short"]["request"].update(output_tokens=2, min_completion_tokens=2)
    contract["domains"] = ["prose"]
    contract["cases"] = [{"id": "small", "prompt_tokens": 200, "concurrencies": [1]}]
    contract["request"].update(output_tokens=2, min_completion_tokens=1)
    value = bound(value)
    contract["tokenizer"]["engine_payload_sha256"] = contract["tokenizer"].pop("engine_image_sha256")
    write_candidate(folder, value)
    out = tmp_path / "record.json"
    state = ("--state", tmp_path / "state")
    result = mesh("runtime", "bench", folder, "--models", models, *state, "--out", out, "--json")
    assert result.code == 0, result.err
    record = json.loads(out.read_bytes())
    assert len(record["engines"]) == 3
    assert [(cell["context"], cell["case"], "skipped" in cell) for cell in record["cells"]] == [
        *((0, "short", False) for _ in range(6)), (1, "small", False), (2, "ttft_cache", True), (2, "ttft_cache", True),
    ]  # fmt: skip
    assert [cell.get("skipped", "")[:5] for cell in result.json["cells"][-2:]] == ["takes"] * 2
    assert mesh("runtime", "bench", folder, "--check", out, *state).code == 0
