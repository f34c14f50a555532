"""A body that contradicts itself is none, and says where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mesh.blueprint.body import Arm, Group, Kernel, Module, decode_body, encode_body, planned
from mesh.errors import BodyError
from tests.blueprint.bodies import body
from tests.blueprint.circuits import deep_body

GROUPS = (Group(1, (1,)), Group(0, (2, 3)))
MATMUL, NORM = body().kernels
MODULE = body().modules[0]
HARDWARE = body().hardware


def arm(mode: str = "decode", first: int = 1, last: int = 1, groups: Sequence[Group] = GROUPS) -> Arm:
    made = Arm(mode, first, last, tuple(groups), b"")
    return made if any(group.kernel > 1 for group in groups) else planned(made, (MODULE,), (MATMUL, NORM))


def features(*named: str) -> dict[str, object]:
    return {"hardware": replace(HARDWARE, features=named)}


def test_arms_of_two_modes_may_be_for_the_same_rows_and_those_of_one_follow_each_other() -> None:
    plan = (arm("prefill", 1, 4), arm("prefill", 5, 5), arm("decode", 1, 4))
    assert body(plan=plan).plan == plan


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (features("avx2", "fma", "bmi"), r"hardware\.features\[2\] is not above the one before it"),
        (features("avx2", "avx2"), r"hardware\.features\[1\] is not above"),
        ({"kernels": (NORM, MATMUL)}, r"kernels\[1\] is not above"),
        ({"evidence": (body().evidence[0],) * 2}, r"evidence\[1\] is not above"),
        ({"modules": (MODULE, MODULE)}, r"modules\[1\] is not above"),
        ({"kernels": (MATMUL, replace(NORM, module=1))}, r"kernels\[1\]\.module is 1, expected less than 1"),
        ({"kernels": (MATMUL, replace(NORM, module=2))}, r"kernels\[1\]\.module is 2, expected less than 1"),
        ({"modules": (MODULE, Module("b", b"\xff" * 32, 1, "x86_64-avx2", "b"))}, "a module of which no kernel is"),
        ({"kernels": (MATMUL, NORM, Kernel(0, "zero", "zero", "F32"))}, "kernel 'zero' computes nothing"),
        ({"plan": ()}, "no plan"),
        ({"plan": (arm(), arm("prefill"))}, r"plan\[1\] is not above"),
        ({"plan": (arm(first=0),)}, r"plan\[0\]: rows 0 to 1"),
        ({"plan": (arm(first=1, last=1), arm(first=3, last=2))}, r"plan\[1\]: rows 3 to 2"),
        ({"plan": (arm("prefill"), arm(last=2), arm(first=2, last=2))}, r"plan\[2\] is for rows that plan\[1\] is for"),
        ({"plan": (arm(groups=[*GROUPS, Group(1, (5,))]),)}, r"plan\[0\]: a node that is not there, or is computed tw"),
        ({"plan": (arm(groups=[*GROUPS, Group(1, (1,))]),)}, r"plan\[0\]: a node that is not there, or is computed tw"),
        ({"plan": (arm(groups=GROUPS[:1]),)}, r"plan\[0\]: not all nodes are computed, or an end of the circuit is"),
        ({"plan": (arm(groups=[*GROUPS, Group(1, (4,))]),)}, r"plan\[0\]: not all nodes are computed, or an end of"),
        ({"plan": (arm(groups=[*GROUPS, Group(1, ())]),)}, r"plan\[0\]\.groups\[2\]: no nodes"),
        ({"plan": (arm(groups=[Group(2, (1,)), GROUPS[1]]),)}, r"plan\[0\]\.groups\[0\]\.kernel is 2, expected less t"),
        (
            {"plan": (arm("prefill"), replace(arm(), digest=b"x" * 32))},
            r"plan\[1\]: its digest is 7878.*, its groups",
        ),
    ],
)
def test_body_that_contradicts_itself_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(BodyError, match=told):
        body(**changes)


def test_body_that_does_not_is_one_however_many_nodes_it_has() -> None:
    for made in (body(), deep_body(12)):
        assert decode_body(encode_body(made)) == made
    assert len(made.circuit.nodes) > 300
