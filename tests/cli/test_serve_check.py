"""`mesh serve --check`: what would run, and everything that is wrong, without starting or writing anything."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_gguf import write_tiny_gguf


def config(folder: Path, text: str) -> Path:
    path = folder / "mesh.toml"
    path.write_text(text)
    return path


SOUND = """
[gateway]
port = 9000
[meter]
cpu_watts = 7.5
[disclosures]
keep = true
days = 1
[[backend]]
kind = "gguf"
path = "model.gguf"
aliases = ["chat"]
[[backend]]
kind = "reference"
aliases = ["chat"]
[[backend]]
kind = "vllm"
url = "http://127.0.0.1:1"
"""


def test_check_says_what_would_run_and_starts_nothing(mesh, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    path = config(tmp_path, SOUND)
    before = sorted(tmp_path.iterdir())
    result = mesh("serve", "--config", path, "--check")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "listens on 127.0.0.1:9000 without keys",
        f"state in {tmp_path / 'state'}, with a key that is yet to be made",
        "energy: cpu time at 7.5 W, modelled",
        "prompts and answers are kept 1 day",
        f"gguf: model, also chat, {tmp_path / 'model.gguf'}",
        "reference: reference, also chat, the reference engine",
        "vllm: (as its server calls it), http://127.0.0.1:1",
    ]
    told = mesh("serve", "--config", path, "--check", "--json").json
    assert told["cpu_watts"] == "7.5"
    assert [(one["kind"], one["name"], one["aliases"]) for one in told["backends"]] == [
        ("gguf", "model", ["chat"]), ("reference", "reference", ["chat"]), ("vllm", None, []),
    ]  # fmt: skip
    assert told["faults"] == []
    assert sorted(tmp_path.iterdir()) == before


def test_check_names_everything_that_is_wrong(mesh, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03")
    path = config(
        tmp_path,
        """
        [gateway]
        host = "0.0.0.0"
        [[backend]]
        kind = "gguf"
        path = "broken.gguf"
        [[backend]]
        kind = "gguf"
        path = "absent.gguf"
        chat_template = "absent.jinja"
        aliases = ["broken"]
        [[backend]]
        kind = "vllm"
        url = "http://127.0.0.1:1"
        weights = "nowhere"
        key_file = "no-key"
        [[backend]]
        kind = "vllm-managed"
        weights = "nowhere"
        executable = "no-such-program"
        name = "absent"
        """,
    )
    result = mesh("serve", "--config", path, "--check")
    assert result.code == 2
    for said in (
        "host '0.0.0.0' is not loopback and no keys are configured",
        "broken.gguf: ",
        "absent.gguf: no such file or directory",
        "absent.jinja: no such file or directory",
        "nowhere: no such folder",
        "no-key: no such file or directory",
        "no-such-program: no such program",
        "'absent' is the name of another backend too",
        "alias 'broken' is the name of a backend",
    ):
        assert said in result.err
    assert len(mesh("serve", "--config", path, "--check", "--json").json["faults"]) == 11


def test_check_of_flags_and_of_a_config_that_cannot_be_followed(mesh, tmp_path: Path) -> None:
    assert mesh("serve", "--reference", "--state", tmp_path, "--check").code == 0
    result = mesh("serve", "--config", config(tmp_path, "hots = 1"), "--check")
    assert (result.code, "hots: unknown key" in result.err) == (2, True)
    assert list(tmp_path.iterdir()) == [tmp_path / "mesh.toml"]


def test_check_names_a_host_that_is_none(mesh, tmp_path: Path) -> None:
    path = config(tmp_path, f'[auth]\nkeys = ["b3:{"0" * 64}"]\n[[backend]]\nkind = "reference"\n')
    result = mesh("serve", "--config", path, "--host", "a..b", "--check")
    assert (result.code, "host 'a..b' is no name of a host" in result.err) == (2, True)
