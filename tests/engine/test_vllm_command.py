"""The command line and the environment of a vLLM server of our own."""

from __future__ import annotations

import pytest

from mesh.engine.vllm_managed import server_command, server_environment
from mesh.errors import UsageError


def test_the_environment_tells_nobody_and_fetches_nothing_unless_asked() -> None:
    assert server_environment({"HF_HUB_OFFLINE": "0", "DO_NOT_TRACK": "0", "VLLM_NO_USAGE_STATS": "0", "A": "b"}) == {
        "HF_HUB_OFFLINE": "0", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "A": "b",
    }  # fmt: skip


@pytest.mark.parametrize("variable", ["VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_LOGGING_CONFIG_PATH"])
def test_a_variable_that_logs_answers_is_refused(variable: str) -> None:
    with pytest.raises(UsageError, match=f"{variable} is set: .*log"):
        server_environment({variable: "True"})
    server_environment({variable: ""})


def command_with(*flags: str, name: str = "tiny", folder: str = "/models/tiny") -> list[str]:
    return server_command("vllm", folder, port=9000, name=name, flags=flags)


def test_the_command_is_what_vllm_takes() -> None:
    flags = ["--dtype", "float32", "--max-model-len=2048", "--enforce_eager", "-tp", "2", "--config-format", "hf",
             "--model-impl", "vllm", "--no-enable-log-requests", "--log-level", "WARNING", "-O3"]  # fmt: skip
    assert command_with(*flags) == [
        "vllm", "serve", "/models/tiny", "--host", "127.0.0.1", "--port", "9000", "--served-model-name", "tiny",
        "--enable-prompt-tokens-details", *flags,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "named", "why"),
    [
        (["--host", "0.0.0.0"], "--host", "sets it itself"),
        (["--dtype", "auto", "--host=::"], "--host", "sets it itself"),
        (["--port", "1"], "--port", "sets it itself"),
        (["--port=1"], "--port", "sets it itself"),
        (["--por", "1"], r"--por \(short for --port\)", "sets it itself"),
        (["--uds", "/tmp/s"], "--uds", "sets it itself"),
        (["--api-key", "k"], "--api-key", "sets it itself"),
        (["--api_key=k"], "--api-key", "sets it itself"),
        (["--served-model-name", "n"], "--served-model-name", "sets it itself"),
        (["--served_model_name=n"], "--served-model-name", "sets it itself"),
        (["--served-model_name", "n"], "--served-model-name", "sets it itself"),
        (["--served", "n"], r"--served \(short for", "sets it itself"),
        (["--model", "m"], "--model", "sets it itself"),
        (["--no-enable-prompt-tokens-details"], "--no-enable-prompt-tokens-details", "sets it itself"),
        (["--config", "c.yaml"], "--config", "a file of flags"),
        (["--headless"], "--headless", "plain HTTP"),
        (["--grpc"], "--grpc", "plain HTTP"),
        (["--ssl-certfile=c"], "--ssl-certfile", "plain HTTP"),
        (["--enable-log-requests"], "--enable-log-requests", "into a log"),
        (["--enable_log_requests"], "--enable-log-requests", "into a log"),
        (["--enable-log-outputs"], "--enable-log-outputs", "into a log"),
        (["--enable-log-o"], r"--enable-log-o \(short for", "into a log"),
        (["--log-error-stack"], "--log-error-stack", "into a log"),
        (["--log-config-file", "f"], "--log-config-file", "into a log"),
        (["--logging-config", "{}"], "--logging-config", "into a log"),
        (["--logging_config.pylogging_config_file=f"], "--logging-config", "into a log"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_that_is_not_the_operators_is_refused(flags: list[str], named: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^vllm: flag {named}.* is refused: .*{why}"):
        command_with(*flags)


@pytest.mark.parametrize("parts", [{"name": "--trust-remote-code"}, {"folder": "-x"}])
def test_a_name_that_would_be_a_flag_is_refused(parts: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="would be read as a flag"):
        command_with(**parts)
