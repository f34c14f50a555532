"""One blueprint in several forms: the body's bytes are the same in all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mesh.blueprint.body import encode_body
from mesh.blueprint.container import Container, Disk, Locator, head_of
from mesh.blueprint.difference import differences
from mesh.blueprint.modules import check_module, measured
from mesh.blueprint.packing import full, lite, preview, signed
from mesh.blueprint.verification import read_unverified
from mesh.errors import KernelError
from tests.blueprint.bodies import PAYLOAD, SIGNER, body, chain, kbp

ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + b"x86_64 code"


def filled(data: bytes, path: Path) -> bytes:
    container = Container.of_bytes(data)
    return b"".join(full(container, read_unverified(container), lambda *_: path))


def test_full_to_lite_to_full_is_byte_identical(tmp_path: Path) -> None:
    module = tmp_path / "lib.so"
    module.write_bytes(PAYLOAD)
    for key in (SIGNER, None):
        whole = kbp(key=key)
        small = b"".join(lite(Container.of_bytes(whole)))
        assert len(small) < len(whole)
        assert filled(small, module) == whole
        assert b"".join(lite(Container.of_bytes(filled(small, module)))) == small
        assert filled(whole, tmp_path / "not asked for") == whole
        assert Container.of_bytes(small).id == Container.of_bytes(whole).id
        assert Container.of_bytes(small).body == Container.of_bytes(whole).body


def test_module_with_other_bytes_does_not_get_in(tmp_path: Path) -> None:
    module = tmp_path / "lib.so"
    for data in (PAYLOAD + b"!", PAYLOAD[:-1] + b"!", b""):
        module.write_bytes(data)
        with pytest.raises(KernelError, match=r"lib\.so is \d+ bytes with SHA-256 [0-9a-f]{64}, expected"):
            filled(kbp(full=False), module)


def test_preview_is_signed_without_another_body() -> None:
    made = preview(body())
    container = Container.of_bytes(made)
    done = b"".join(signed(container, SIGNER, chain()))
    again = b"".join(signed(Container.of_bytes(kbp()), SIGNER, chain()))
    assert Container.of_bytes(done).body == container.body == Container.of_bytes(again).body
    assert Container.of_bytes(again).header.payloads == len(PAYLOAD)


def test_source_on_a_disk_stays_where_it_is_in_a_lite_file() -> None:
    made = body()
    where = (Locator(made.modules[0].digest, Disk("/opt/lib.so")),)
    data = head_of(encode_body(made), where)
    assert b"".join(lite(Container.of_bytes(data))) == data


def test_module_is_measured_and_held_to_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(ELF)
    module = measured(path, name="lib.so", isa="x86_64-avx2", origin="lib 1")
    check_module(path, module)
    with pytest.raises(KernelError, match="compiled for x86_64, not aarch64-neon"):
        measured(path, name="lib.so", isa="aarch64-neon", origin="lib 1")
    with pytest.raises(KernelError, match="compiled for x86_64, expected aarch64-neon"):
        check_module(path, replace(module, architecture="aarch64-neon"))
    path.write_bytes(b"no module")
    with pytest.raises(KernelError, match="no machine that is known"):
        measured(path, name="lib.so", isa="x86_64-avx2", origin="lib 1")


def test_difference_names_what_is_stated_otherwise() -> None:
    one = body()
    assert list(differences(one, one)) == []
    other = replace(
        one, revision=4, settings=replace(one.settings, slots=3, environment=(("OMP_PROC_BIND", "false"),)),
        kernels=(replace(one.kernels[0], numerics="F32"), one.kernels[1]),
    )  # fmt: skip
    nodes = one.circuit.nodes
    circuit = replace(
        one.circuit, nodes=(nodes[0], replace(nodes[1], kind="add"), *nodes[2:]),
        edges=(*one.circuit.edges[:3], replace(one.circuit.edges[3], width=32)),
    )  # fmt: skip
    assert list(differences(one, replace(one, circuit=circuit))) == [
        ("circuit.nodes[norm].kind", "norm", "add"),
        ("circuit.edges[proj to logits]", "64 in F32", "32 in F32"),
    ]
    assert list(differences(one, other)) == [
        ("revision", "3", "4"),
        ("kernels[mul_mat].numerics", "Q4_1 x Q8_1, sums in F32", "F32"),
        ("settings.slots", "2", "3"),
        ("settings.environment[OMP_PROC_BIND]", "true", "false"),
    ]
