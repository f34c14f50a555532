from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import xllamacpp

from mesh.engine import gguf_abi as abi
from mesh.errors import EngineUnsupported

SHARED_OBJECT = Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")


def defaults() -> tuple[abi.ModelParams, abi.ContextParams]:
    library = abi.open_library(SHARED_OBJECT)
    return library.llama_model_default_params(), library.llama_context_default_params()


def test_the_pinned_library_is_the_one_these_structures_are_of() -> None:
    abi.check_abi(*defaults())
    assert xllamacpp.__version__ == abi.WHEEL_VERSION


@pytest.mark.parametrize("name", [name for name, _ in abi.ModelParams._fields_])
def test_every_default_of_the_model_is_compared(name: str) -> None:
    model, context = defaults()
    setattr(model, name, not abi.MODEL_DEFAULTS[name])
    with pytest.raises(EngineUnsupported, match=rf"llama_model_params\.{name} is .*expected .*{abi.WHEEL_VERSION}"):
        abi.check_abi(model, context)


@pytest.mark.parametrize("name", [name for name, _ in abi.ContextParams._fields_])
def test_every_default_of_the_context_is_compared(name: str) -> None:
    model, context = defaults()
    setattr(context, name, 77)
    if abi.CONTEXT_DEFAULTS[name] is True:
        setattr(context, name, False)
    with pytest.raises(EngineUnsupported, match=rf"llama_context_params\.{name} is .*expected .*{abi.WHEEL_VERSION}"):
        abi.check_abi(model, context)


def test_a_structure_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(abi.SIZES, "llama_batch", (abi.Batch, 64))
    with pytest.raises(EngineUnsupported, match=rf"llama_batch is {ctypes.sizeof(abi.Batch)} bytes here, expected 64"):
        abi.check_abi(*defaults())


def test_a_library_without_the_functions_is_refused() -> None:
    import _ctypes

    with pytest.raises(EngineUnsupported, match="no function llama_model_default_params"):
        abi.open_library(Path(_ctypes.__file__))


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"not a library")
    with pytest.raises(EngineUnsupported, match="cannot be opened"):
        abi.open_library(tmp_path / "lib.so")
