"""The lane with schemathesis: `make test-openapi`. MESH_OPENAPI names the environment that it is installed in.

It reads the description from a running gateway, sends what it allows and what it forbids, and holds the answers to it:
no 500, no status, content type or body that is not described, nothing accepted that is forbidden, no key ignored.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from blake3 import blake3

from tests.gateway.serving import Deciding, house

FOLDER = os.environ.get("MESH_OPENAPI")
KEY = "a-key-of-this-test"

pytestmark = pytest.mark.skipif(FOLDER is None, reason="no schemathesis here: `make test-openapi` installs it")


def test_what_the_description_says_holds(tmp_path: Path) -> None:
    assert FOLDER is not None
    program = Path(FOLDER).absolute() / "bin" / "schemathesis"
    home = tmp_path / "home"
    home.mkdir()
    keys = ["b3:" + blake3(KEY.encode()).hexdigest()]
    bounds = {"default_max_tokens": 4, "max_output_tokens": 16, "keep_ns": 10**15}

    async def main() -> None:
        async with house(tmp_path / "state", others=[Deciding()], keys=keys, key=KEY, **bounds) as gate:
            process = await asyncio.create_subprocess_exec(
                str(program), "run", f"{gate.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
                # what a description cannot say (an engine's own bounds, fields that go only beside others) is refused
                "--checks", "all", "--exclude-checks", "positive_data_acceptance",
                "--max-examples", "20", "--seed", "7", "--generation-database", "none", "--request-timeout", "60",
                "--no-color", "--no-shrink",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=home,
                env={"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "*"},
            )  # fmt: skip
            try:
                told, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            print(told.decode(errors="replace"))
            assert process.returncode == 0
            assert (await gate.get("/healthz")).status == 200
            assert gate.steward.reader.count() > 0

    asyncio.run(main())
