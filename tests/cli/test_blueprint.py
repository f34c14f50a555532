"""`mesh blueprint`: from a model file to a signed blueprint, by the commands, in this process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_gguf import write_tiny_gguf

LATER = "2100-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=1)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def told(mesh: Any, *words: str | Path, code: int = 0) -> dict[str, Any]:
    result = mesh("blueprint", *map(str, words), "--json")
    assert result.code == code, result.out
    said: dict[str, Any] = json.loads(result.out)
    return said


def keys(mesh: Any, at: Path) -> None:
    for name in ("root", "middle", "signer"):
        told(mesh, "keygen", "--out", at / name)
    told(mesh, "certify", "--key", at / "root", "--subject", at / "middle.pub", "--label", "middle", "--may-certify",
         "--not-after", LATER, "--out", at / "middle.cert")  # fmt: skip
    told(mesh, "certify", "--key", at / "middle", "--subject", at / "signer.pub", "--label", "signer", "--not-after",
         LATER, "--out", at / "signer.cert")  # fmt: skip
    told(mesh, "revoke", "--key", at / "root", "--not-after", LATER, "--out", at / "revoked")


def test_preview_is_built_signed_verified_and_taken_back(mesh: Any, at: Path, model: Path) -> None:
    keys(mesh, at)
    assert (at / "root").stat().st_mode & 0o777 == 0o600
    built = told(mesh, "build", "--gguf", model, "--name", "tiny", "--out", at / "preview")
    assert (built["signed"], built["layers"]) == (False, 1)
    chain = ("--cert", at / "signer.cert", "--cert", at / "middle.cert")
    signed = told(mesh, "sign", at / "preview", "--key", at / "signer", *chain, "--out", at / "signed")
    assert signed["blueprint_id"] == built["blueprint_id"]
    trusted = ("--blueprint-root", at / "root.pub", "--blueprint-revoked", at / "revoked")
    verified = told(mesh, "verify", at / "signed", *trusted)
    assert verified["blueprint_id"] == built["blueprint_id"]
    assert [one["label"] for one in verified["chain"]] == ["signer", "middle"]
    refused = told(mesh, "verify", at / "preview", *trusted, code=10)
    assert refused["error"]["code"] == "signer"
    assert told(mesh, "verify", at / "signed", *trusted, "--at", "2099-12-31T00:00:00Z")["revision"] == 1
    assert told(mesh, "verify", at / "signed", *trusted, "--at", LATER, code=10)["error"]["code"] == "expired"
    for number, one in enumerate((verified["chain"][0]["certificate"], built["blueprint_id"])):
        out = at / f"revoked-{number}"
        told(
            mesh, "revoke", one, "--key", at / "root", "--previous", at / "revoked", "--not-after", LATER, "--out", out
        )
        trusted = ("--blueprint-root", at / "root.pub", "--blueprint-revoked", out)
        assert told(mesh, "verify", at / "signed", *trusted, code=10)["error"]["code"] == "revoked"


def test_inspect_and_diff_say_what_is_stated(mesh: Any, at: Path, model: Path) -> None:
    told(mesh, "build", "--gguf", model, "--name", "tiny", "--out", at / "one")
    seen = told(mesh, "inspect", at / "one")
    assert (seen["signed"], seen["verified"], seen["form"]) == (False, False, "lite, an unsigned preview")
    assert seen["circuit"]["kinds"]["linear"] == 7
    assert seen["settings"]["kv_type"] == "q8_0"
    assert {kernel["function"] for kernel in seen["kernels"]} >= {"ggml_vec_dot_q8_0_q8_0", "ggml_compute_forward_rope"}
    people = mesh("blueprint", "inspect", str(at / "one"))
    assert "a preview: it is not signed" in people.err
    assert "xllamacpp.abi3.so::ggml_compute_forward_rope (rope; F32)" in people.out
    flags = ("--kv-type", "f16", "--after", at / "one", "--env", "GGML_NO_BACKTRACE=1")
    told(mesh, "build", "--gguf", model, "--name", "tiny", *flags, "--out", at / "two")
    found = {
        one["of"]: (one["a"], one["b"]) for one in told(mesh, "diff", at / "one", at / "two", code=10)["differences"]
    }
    assert found["revision"] == ("1", "2")
    assert found["settings.kv_type"] == ("q8_0", "f16")
    assert found["settings.environment[GGML_NO_BACKTRACE]"] == ("none", "1")
    assert "lineage" not in found
    assert told(mesh, "diff", at / "one", at / "one")["same"] is True


def test_evidence_is_stated_by_its_hashes_and_by_nothing_else(mesh: Any, at: Path, model: Path) -> None:
    told_of = {
        "kind": "measurement", "record": "a" * 64, "engine_commit": "b11549", "engine_binary": "b" * 64,
        "argv": "c" * 64, "env": "d" * 64,
    }  # fmt: skip
    (at / "evidence").write_text(json.dumps(told_of))
    told(mesh, "build", "--gguf", model, "--evidence", at / "evidence", "--out", at / "one")
    assert told(mesh, "inspect", at / "one")["evidence"] == [told_of]
    for wrong in ({**told_of, "joules": "7"}, {**told_of, "record": "x"}, {}, []):
        (at / "evidence").write_text(json.dumps(wrong))
        refused = told(mesh, "build", "--gguf", model, "--evidence", at / "evidence", "--out", at / "no", code=2)
        assert "expected" in refused["error"]["message"]
    assert not (at / "no").exists()


def test_page_is_one_file_that_asks_nobody_for_anything(mesh: Any, at: Path, model: Path) -> None:
    told(mesh, "build", "--gguf", model, "--title", "</script><b>", "--out", at / "one")
    told(mesh, "page", at / "one", "--out", at / "one.html")
    text = (at / "one.html").read_text()
    assert text.count("</script>") == 2
    assert "<b>" not in text
    assert not re.search(r"^import ", text, re.MULTILINE)
    assert "default-src 'none'" in text


def test_key_that_others_can_read_signs_nothing(mesh: Any, at: Path, model: Path) -> None:
    keys(mesh, at)
    told(mesh, "build", "--gguf", model, "--out", at / "one")
    (at / "signer").chmod(0o644)
    words = ("sign", at / "one", "--key", at / "signer", "--cert", at / "signer.cert", "--out", at / "two")
    refused = told(mesh, *words, code=3)
    assert "expected 0600" in refused["error"]["message"]
    (at / "signer").chmod(0o600)
    refused = told(mesh, "sign", at / "one", "--key", at / "root", *words[4:], code=10)
    assert (refused["error"]["code"], (at / "two").exists()) == ("chain", False)
    refused = told(mesh, "keygen", "--out", at / "signer", code=3)
    assert "file exists" in refused["error"]["message"]
