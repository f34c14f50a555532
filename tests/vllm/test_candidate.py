"""A runtime candidate on a real vLLM: started as it says, its receipts replayed on another start of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from mesh.cli.candidates import machine, spec_of_candidate
from mesh.cli.starting import start_engine
from mesh.engine.protocol import ServingEngine
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.replay.replayer import replay
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.runtime.candidates import VLLM, document
from tests.support.stewards import KEY, running
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.asking import disclosed
from tests.vllm.servers import ENVIRONMENT, FLAGS

TRUST = {KEY.public}


def candidate(root: Path) -> tuple[Path, Path, dict[str, Any]]:
    value = document(VLLM)
    value["target"]["platform"] = f"linux/{machine()}"
    value["target"]["accelerator"].update(vendor="cpu", architecture="any")
    value["target"]["memory"]["minimum_total_gib"] = 1
    value["engine"].update(arguments=[*FLAGS, "--dtype", "float32"])
    value["engine"]["environment"] = {name: ENVIRONMENT[name] for name in ENVIRONMENT if name != "VLLM_NO_USAGE_STATS"}
    value["container"].update(min_available_gib=0, runtime_min_available_gib=0, startup_timeout_seconds=600)
    value["serving"].update(max_connections=4, max_active_requests=2, max_context_tokens=2048)
    models = root / "models"
    for artifact in value["artifacts"]:
        name = artifact["uri"].removeprefix("hf://").lower().replace("/", "--")
        (models / name).mkdir(parents=True)
        write_tiny_hf(models / name / artifact["revision"])
    (root / "candidate").mkdir()
    (root / "candidate" / "runtime.json").write_text(json.dumps(value))
    return root / "candidate", models, value


async def served(engine: ServingEngine, state: Path) -> tuple[bytes, Disclosure]:
    async with running(state, keep_ns=10**15) as steward:
        gateway = Gateway(steward, [engine], GatewayConfig())
        port = await gateway.start("127.0.0.1", 0)
        try:
            disclosure = await disclosed(port, engine.recipe_id, "hi", max_tokens=8, temperature=0)
        finally:
            await gateway.stop()
        (entry,) = list(steward.reader.receipts())
        return entry.envelope, disclosure


def test_a_candidate_is_served_and_its_receipts_replay(executable: Path, tmp_path: Path) -> None:
    folder, models, value = candidate(tmp_path)
    spec = spec_of_candidate(folder, models, executable=str(executable))

    async def run() -> None:
        engine = await start_engine(spec)
        try:
            told = engine.settings["candidate"]
            envelope, disclosure = await served(engine, tmp_path / "state")
        finally:
            await engine.close()
        assert told["payload"] == f"told:{value['engine']['distribution']['payload_id']}"
        receipt = verify(envelope, RECEIPT_TYPE, TRUST).value
        assert (receipt.engine.recipe_id, receipt.outcome.tokens_out) == (value["id"], 8)
        again = await start_engine(spec)
        try:
            assert again.settings == engine.settings
            verdict = await replay(envelope, disclosure, again, TRUST)
            assert (verdict.kind, verdict.output) == ("verified", "matches"), verdict
        finally:
            await again.close()

    asyncio.run(run())
