"""`mesh.toml`: what is not known is refused, and the message says what to change."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from mesh.errors import UsageError
from mesh.gateway.config import GatewayConfig, GgufBackend, MeshConfig, ReferenceBackend

REFERENCE = '[[backend]]\nkind = "reference"\n'


def fault(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        MeshConfig.from_toml(text)
    return str(caught.value)


def test_smallest_config_has_every_default() -> None:
    config = MeshConfig.from_toml(REFERENCE)
    assert config.gateway == GatewayConfig()
    assert (config.gateway.host, config.disclosures.keep_ns, config.meter.cpu_watts_u, config.auth.keys) == (
        "127.0.0.1", None, None, [],
    )  # fmt: skip
    assert config.backend == [ReferenceBackend(kind="reference")]


def test_full_config_is_read() -> None:
    config = MeshConfig.from_toml(
        f"""
        [gateway]
        host = "0.0.0.0"
        port = 9000
        default_max_tokens = 64
        [state]
        dir = "somewhere"
        [meter]
        cpu_watts = 7.25
        [disclosures]
        keep = true
        days = 2
        [auth]
        keys = ["b3:{"ab" * 32}"]
        [[backend]]
        kind = "gguf"
        path = "model.gguf"
        name = "small"
        slots = 3
        context_tokens = 2048
        kv_type = "f16"
        flash_attention = false
        """
    )
    assert (config.gateway.host, config.gateway.port, config.state.dir) == ("0.0.0.0", 9000, "somewhere")
    assert (config.meter.cpu_watts, config.meter.cpu_watts_u) == (Decimal("7.25"), 7_250_000)
    assert config.disclosures.keep_ns == 2 * 86_400 * 10**9
    backend = config.backend[0]
    assert isinstance(backend, GgufBackend)
    assert (backend.path, backend.name, backend.slots, backend.kv_type) == ("model.gguf", "small", 3, "f16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "backend: missing"),
        ("backend = []", "backend: "),
        (REFERENCE * 2, "backend: two are named 'reference'"),
        (REFERENCE + 'aliases = ["reference"]', "backend: alias 'reference' is the name of a backend"),
        (REFERENCE + 'aliases = [""]', "backend.0.aliases.0: not a name"),
        (REFERENCE + "queue = -1", "backend.0.queue: "),
        (REFERENCE + "[disclosures]\ndays = 4", "disclosures: days without keep"),
        (REFERENCE + "surprise = 1", "backend.0.surprise: unknown key"),
        ("top = 1\n" + REFERENCE, "top: unknown key"),
        (REFERENCE + "[gateway]\nhots = 1", "gateway.hots: unknown key"),
        (REFERENCE + '[gateway]\nport = "80"', "gateway.port: input should be a valid integer, got '80'"),
        (REFERENCE + "[gateway]\nport = 70000", "got '70000'"),
        (REFERENCE + "[meter]\ncpu_watts = 0", "meter.cpu_watts: input should be greater than 0"),
        (REFERENCE + "[meter]\ncpu_watts = 0.0000001", "meter.cpu_watts: more than six decimals"),
        (REFERENCE + "[meter]\ncpu_watts = nan", "meter.cpu_watts: "),
        ('[[backend]]\nkind = "other"', "'other'"),
        ('[[backend]]\nkind = "vllm"', "backend.0.url: missing"),
        ('[[backend]]\nkind = "vllm"\nurl = "http://x"\ndtype = "int8"', "backend.0.dtype: "),
        ('[[backend]]\nkind = "vllm-managed"', "backend.0.weights: missing"),
        ('[[backend]]\nkind = "gguf"', "backend.0.path: missing"),
        (REFERENCE + '[cors]\norigins = ["ui.example"]', "cors.origins: expected scheme://host[:port]"),
        (REFERENCE + '[cors]\norigins = ["https://ui.example/"]', "cors.origins: expected scheme://host[:port]"),
        (REFERENCE + '[cors]\norigins = ["*"]', "cors.origins: * without [auth] keys"),
        ("= 1", "not valid toml"),
        ("a = " + "[" * 10_000, "mesh.toml: "),
    ],
)
def test_fault_names_key_and_value(text: str, said: str) -> None:
    assert said in fault(text)


def test_every_fault_is_told_at_once() -> None:
    said = fault(REFERENCE + "[gateway]\nhots = 1\nport = 70000")
    assert "gateway.hots" in said
    assert "gateway.port" in said


def test_key_given_in_place_of_its_digest_is_not_repeated() -> None:
    said = fault(REFERENCE + '[auth]\nkeys = ["sk-secret"]')
    assert "auth.keys: expected b3:" in said
    assert "sk-secret" not in said


@pytest.mark.parametrize("name", ['""', '"a\\nb"', '"\\u001b[31m"', f'"{"x" * 257}"'])
@pytest.mark.parametrize("kind", ['"reference"', '"gguf"\npath = "model.gguf"'])
def test_names_that_no_receipt_can_hold_are_refused(kind: str, name: str) -> None:
    assert "backend.0.name: not a name that a receipt can hold" in fault(f"[[backend]]\nkind = {kind}\nname = {name}\n")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.toml"):
        MeshConfig.load(tmp_path / "absent.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not valid utf-8"):
        MeshConfig.load(tmp_path / "bytes.toml")
    (tmp_path / "good.toml").write_text(REFERENCE)
    assert MeshConfig.load(tmp_path / "good.toml").backend[0].kind == "reference"
