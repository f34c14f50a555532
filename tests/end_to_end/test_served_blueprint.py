"""`mesh serve` under a blueprint, as an operator runs it: what receipts say, what replay and grants make of it, and
every lever that it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.blueprints import Signers, kept, mesh, serving
from tests.support.models import smollm2_path
from tests.support.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.deep  # dozens of processes


@dataclass
class Stage:
    """A model with two revisions of one blueprint, which differ in nothing but their title."""

    folder: Path
    model: Path
    signers: Signers
    first: str
    second: str

    @classmethod
    def at(cls, folder: Path, model: Path, *flags: str) -> Stage:
        signers = Signers.in_(folder / "keys")
        first = signers.build(folder / "first.kbp", "--gguf", model, "--name", "m", *flags)
        second = signers.build(
            folder / "second.kbp", "--gguf", model, "--name", "m", *flags, "--title", "the same again", "--after",
            folder / "first.kbp",
        )  # fmt: skip
        assert first != second
        return cls(folder, model, signers, first, second)

    def under(self, name: str) -> tuple[str | Path, ...]:
        return ("--blueprint", self.folder / f"{name}.kbp", *self.signers.trusted, "--gguf", self.model)

    def refused(self, *flags: str | Path, **variables: str) -> tuple[int, dict[str, Any]]:
        code, told = mesh("serve", *flags, "--state", self.folder / "refused", "--port", "0", **variables)
        return code, told["error"]


def check_receipts_replay_and_grants(stage: Stage) -> None:
    folder = stage.folder
    issuer = folder / "keys" / "issuer"
    steward = mesh_grant(stage, issuer, stage.first)
    with serving(folder / "log", *stage.under("first"), "--state", folder / "state", "--issuer", steward[1]) as gate:
        status, answer = gate.ask("m", steward[0], mesh={"disclose": True})
        assert status == 200
        other = mesh_grant(stage, issuer, stage.second)[0]
        status, refusal = gate.ask("m", other)
        assert (status, refusal["error"]["code"]) == (403, "grant_refused")
        assert "blueprint-in" in refusal["error"]["message"]
    receipt, disclosure = kept(answer, folder)
    code, told = mesh("verify", receipt, "--trust", gate.steward)
    assert code == 0
    stated = json.dumps(told)
    assert f"b3:{stage.first.removeprefix('sha256:')}" in stated

    def replayed(*flags: str | Path) -> tuple[int, str, str | None]:
        code, verdict = mesh("replay", receipt, disclosure, "--trust", gate.steward, *flags)
        return code, verdict["verdict"], verdict.get("reason")

    assert replayed(*stage.under("first")) == (0, "verified", None)
    assert replayed(*stage.under("second")) == (11, "not-replayable", "other-blueprint")
    assert replayed("--gguf", stage.model, "--name", "m") == (11, "not-replayable", "other-blueprint")


def mesh_grant(stage: Stage, issuer: Path, blueprint: str) -> tuple[str, str]:
    """A grant for serves under `blueprint`, and who issued it."""
    out = stage.folder / f"grant-{blueprint[-8:]}"
    code, told = mesh("grant", "issue", "--key", issuer, "--blueprint-in", blueprint, "--out", out)
    assert code == 0
    return out.read_text().strip(), told["issuer"]


def check_levers_are_refused_by_name(stage: Stage) -> None:
    under = stage.under("first")
    # it turns off what this library does to queries and keys, and so moves every number
    code, error = stage.refused(*under, LLAMA_ATTN_ROT_DISABLE="1")
    assert (code, error["code"]) == (2, "unstated-lever")
    assert "LLAMA_ATTN_ROT_DISABLE" in error["message"]
    for flag in (["--kv-type", "f16"], ["--no-flash-attention"], ["--threads", "2"], ["--name", "other"]):
        code, error = stage.refused(*under, *flag)
        assert (code, error["code"]) == (2, "unstated-lever")
        assert flag[0] in error["message"]
    config = stage.folder / "mesh.toml"
    keys = stage.signers.folder
    table = f'[blueprints]\nroots = ["{keys}/root.pub"]\nrevoked = "{keys}/revoked"\n[[backend]]\nkind = "gguf"\n'
    table += f'path = "{stage.model}"\nblueprint = "first.kbp"\n'
    config.write_text(table + 'kv_type = "f16"\n')
    code, error = stage.refused("--config", config)
    assert code == 2
    assert "kv_type: all settings come from the blueprint" in error["message"]
    config.write_text(table)
    config.write_text(table + "silent_s = 30\n")  # how long it is waited for moves no number
    code, told = mesh("serve", "--config", config, "--check")
    assert (code, told["backends"][0]["name"]) == (0, "m")
    assert mesh("serve", *under, "--silent-s", "30", "--check")[0] == 0
    assert not (stage.folder / "refused").exists()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("stage")
    return Stage.at(folder, write_tiny_gguf(folder / "tiny.gguf"))


def test_receipts_carry_the_blueprint_and_replay_and_grants_notice(tiny: Stage) -> None:
    check_receipts_replay_and_grants(tiny)


def test_lever_that_is_not_stated_is_refused_by_name(tiny: Stage) -> None:
    check_levers_are_refused_by_name(tiny)


def test_lower_revision_is_refused_and_the_override_is_reported(tiny: Stage) -> None:
    state, log = tiny.folder / "revisions", tiny.folder / "revisions.log"
    for name in ("first", "second", "second"):
        with serving(log, *tiny.under(name), "--state", state):
            assert "ALLOWED" not in log.read_text()
    code, told = mesh("serve", *tiny.under("first"), "--state", state, "--port", "0")
    assert (code, told["error"]["code"]) == (10, "lineage")
    assert "revision 1, after revision 2" in told["error"]["message"]
    with serving(log, *tiny.under("first"), "--state", state, "--allow-lower-revision"):
        assert "ALLOWED although a higher revision was served before" in log.read_text()
    _, told = mesh("blueprint", "history", "--state", state)
    assert [(one["revision"], one.get("allowed")) for one in told["starts"]] == [
        (1, None), (2, None), (2, None), (1, "lower-revision"),
    ]  # fmt: skip
    assert told["starts"][3]["blueprint_id"] == tiny.first
    # allowing it once is not allowing it for good
    assert mesh("serve", *tiny.under("first"), "--state", state, "--port", "0")[0] == 10


def test_another_checkpoint_or_another_root_is_refused(tiny: Stage, tmp_path: Path) -> None:
    other = write_tiny_gguf(tmp_path / "tiny.gguf", seed=2)
    code, error = tiny.refused("--blueprint", tiny.folder / "first.kbp", *tiny.signers.trusted, "--gguf", other)
    assert (code, error["code"]) == (10, "body")
    assert "weights" in error["message"]
    strangers = Signers.in_(tmp_path / "keys")
    code, error = tiny.refused("--blueprint", tiny.folder / "first.kbp", *strangers.trusted, "--gguf", tiny.model)
    assert (code, error["code"]) == (11, "untrusted-root")
    code, error = tiny.refused(
        "--blueprint", tiny.folder / "first.preview", *tiny.signers.trusted, "--gguf", tiny.model
    )
    assert (code, error["code"]) == (10, "signer")
    code, error = tiny.refused("--blueprint", tiny.folder / "first.kbp", "--gguf", tiny.model)
    assert (code, error["code"]) == (2, "usage")


def test_stated_variable_of_the_environment_must_have_the_stated_value(tiny: Stage, tmp_path: Path) -> None:
    path = tmp_path / "env.kbp"
    tiny.signers.build(path, "--gguf", tiny.model, "--name", "m", "--env", "GGML_NO_BACKTRACE=1")
    flags = ("--blueprint", path, *tiny.signers.trusted, "--gguf", tiny.model)
    code, error = tiny.refused(*flags, GGML_NO_BACKTRACE="0")
    assert (code, error["code"]) == (2, "unstated-lever")
    told = mesh("blueprint", "inspect", path)[1]
    assert told["settings"]["environment"] == [["GGML_NO_BACKTRACE", "1"]]


@pytest.mark.real_model
def test_smollm2_under_its_blueprint(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path, smollm2_path())
    check_receipts_replay_and_grants(stage)
    check_levers_are_refused_by_name(stage)
