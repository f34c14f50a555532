"""`mesh blueprint`: from a model file to a signed blueprint, by the commands, in this process."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.blueprint.bodies import PAYLOAD, kbp
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


def test_what_is_no_file_is_refused_and_not_waited_for(mesh: Any, at: Path, model: Path) -> None:
    keys(mesh, at)
    os.mkfifo(at / "pipe")
    told(mesh, "build", "--gguf", model, "--out", at / "one")
    root, listed = ("--blueprint-root", at / "root.pub"), ("--blueprint-revoked", at / "revoked")
    sign = ("sign", at / "one", "--key", at / "signer", "--out", at / "no")
    later = ("--not-after", LATER, "--out", at / "no")
    for words in (
        ("verify", at / "pipe", *root, *listed),
        ("verify", at / "one", "--blueprint-root", at / "pipe", *listed),
        ("verify", at / "one", *root, "--blueprint-revoked", at / "pipe"),
        (*sign, "--cert", at / "pipe"),
        ("certify", "--key", at / "root", "--subject", at / "pipe", "--label", "x", *later),
        ("revoke", "--key", at / "root", "--previous", at / "pipe", *later),
        ("build", "--gguf", model, "--evidence", at / "pipe", "--out", at / "no"),
    ):
        assert "pipe: not a regular file" in told(mesh, *words, code=10)["error"]["message"]
    assert not (at / "no").exists()


def test_chain_that_leads_nowhere_signs_nothing(mesh: Any, at: Path, model: Path) -> None:
    keys(mesh, at)
    told(mesh, "build", "--gguf", model, "--out", at / "one")
    sign = ("sign", at / "one", "--key", at / "signer", "--out", at / "no", "--cert", at / "signer.cert")
    refused = told(mesh, *sign, "--cert", at / "signer.cert", code=10)["error"]
    assert (refused["code"], "its issuer is" in refused["message"]) == ("chain", True)
    assert told(mesh, *sign, *("--cert", at / "middle.cert") * 4, code=10)["error"]["code"] == "chain"
    assert not (at / "no").exists()


def test_revocations_that_do_not_hold_are_told_with_their_file(mesh: Any, at: Path, model: Path) -> None:
    keys(mesh, at)
    told(mesh, "build", "--gguf", model, "--out", at / "one")
    data = bytearray((at / "revoked").read_bytes())
    data[-1] ^= 1
    (at / "bad").write_bytes(data)
    words = ("verify", at / "one", "--blueprint-root", at / "root.pub", "--blueprint-revoked")
    assert str(at / "bad") in told(mesh, *words, at / "bad", code=10)["error"]["message"]
    refused = told(
        mesh, "verify", at / "one", "--blueprint-root", at / "signer.pub", *words[4:], at / "revoked", code=11
    )
    assert refused["error"]["code"] == "untrusted-root"


@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        (("A=1", "A=2"), 2, "--env A: given twice"),
        (("A",), 2, "expected NAME=VALUE"),
        (("A B=1",), 10, "no variable of an environment"),
        (("LD_PRELOAD=x.so",), 10, "LD_PRELOAD: it loads code of which no kernel module is pinned"),
        (("GGML_BACKEND_PATH=x.so",), 10, "GGML_BACKEND_PATH: it loads code"),
    ],
)
def test_variable_that_cannot_be_stated_is_refused(
    mesh: Any, at: Path, model: Path, variables: tuple[str, ...], code: int, message: str
) -> None:
    words = [word for one in variables for word in ("--env", one)]
    refused = told(mesh, "build", "--gguf", model, *words, "--out", at / "no", code=code)
    assert message in refused["error"]["message"]
    assert not (at / "no").exists()


def test_title_makes_no_line_of_its_own(mesh: Any, at: Path, model: Path) -> None:
    title = "a\nsigned by   everybody\x1b[31m"
    told(mesh, "build", "--gguf", model, "--title", title, "--out", at / "one")
    told(mesh, "build", "--gguf", model, "--title", "another\nrevision: 1 -> 9", "--out", at / "two")
    lines = mesh("blueprint", "inspect", str(at / "one")).out.splitlines()
    assert "title       a\\nsigned by   everybody\\x1b[31m" in lines
    assert not [line for line in lines if line.startswith("signed by")]
    assert "revision: 1 -> 9" not in mesh("blueprint", "diff", str(at / "one"), str(at / "two")).out.splitlines()


def test_lite_file_says_where_its_modules_are(mesh: Any, at: Path) -> None:
    modules, whole = at / "modules", kbp()
    modules.mkdir()
    (modules / "lib.so").write_bytes(PAYLOAD)
    (at / "full").write_bytes(whole)
    (at / "bare").write_bytes(kbp(full=False))
    told(mesh, "full", at / "bare", "--kernels", modules, "--out", at / "filled")
    for where, source in (
        (str(modules), {"source": "disk", "path": f"{modules}/lib.so"}),
        ("https://host.invalid/m/", {"source": "remote", "url": "https://host.invalid/m/lib.so"}),
    ):
        for number, path in enumerate(("bare", "full")):
            lite, again = at / f"{source['source']}-{number}", at / f"again-{source['source']}-{number}"
            told(mesh, "lite", at / path, "--at", where, "--out", lite)
            seen = told(mesh, "inspect", lite)
            assert (seen["form"], {**seen["locators"][0], **source}) == ("lite", seen["locators"][0])
            if source["source"] == "disk":
                told(mesh, "full", lite, "--out", again)
            else:
                refused = told(mesh, "full", lite, "--out", at / "no", code=10)["error"]
                assert f"at {source['url']}: it is not fetched here" in refused["message"]
                told(mesh, "full", lite, "--kernels", modules, "--out", again)
            assert again.read_bytes() == (at / ("filled" if path == "bare" else "full")).read_bytes()
    refused = told(mesh, "lite", at / "full", "--at", "modules", "--out", at / "no", code=2)["error"]
    assert "expected a folder from / on" in refused["message"]
    refused = told(mesh, "full", at / "bare", "--out", at / "no", code=10)["error"]
    assert "kernel module 'lib.so' of lib 1: not found; --kernels names a folder" in refused["message"]
    for data, message in (
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00", "compiled for aarch64"),
        (PAYLOAD + b"!", "lib.so is 69 bytes with SHA-256"),
    ):
        (modules / "lib.so").write_bytes(data)
        for path in ("bare", "disk-0"):
            refused = told(mesh, "full", at / path, "--kernels", modules, "--out", at / "no", code=10)["error"]
            assert (refused["code"], message in refused["message"]) == ("kernel", True)
    assert not (at / "no").exists()


def test_lower_revision_is_allowed_of_a_blueprint_alone(mesh: Any, model: Path) -> None:
    refused = mesh("serve", "--gguf", str(model), "--allow-lower-revision", "--check")
    assert (refused.code, "no engine here is under a blueprint" in refused.err) == (2, True)
