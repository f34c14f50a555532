"""What a page shows of a blueprint."""

from __future__ import annotations

from dataclasses import replace

from mesh.blueprint.body import Arm, Group, Kernel, planned
from mesh.blueprint.drawing import _kernels, drawing
from tests.blueprint.bodies import body, verified


def test_kernels_shown_are_those_that_decode_or_of_the_first_arm() -> None:
    one = body()
    kernels = (*one.kernels, Kernel(0, "other_norm", "other", "F32"))
    arms = (
        Arm("prefill", 1, 1, (Group(1, (1,)), Group(0, (2, 3))), b""),
        Arm("decode", 1, 1, (Group(2, (1,)), Group(0, (2, 3))), b""),
    )
    plan = tuple(planned(arm, one.modules, kernels) for arm in arms)
    assert _kernels(replace(one, kernels=kernels, plan=plan))[1] == ("lib.so::other_norm", "other")
    assert _kernels(replace(one, plan=plan[:1]))[1] == ("lib.so::norm", "norm")


def test_ends_of_a_circuit_have_no_kernel_and_the_rest_has_its_own() -> None:
    nodes = drawing(verified(), "signed")["nodes"]
    assert nodes["names"] == ["tokens", "norm", "norm to Q8_1", "proj", "logits"]
    assert nodes["family"] == [-1, 1, 0, 0, -1]
    assert nodes["kernel"] == ["", "lib.so::norm", "lib.so::mul_mat", "lib.so::mul_mat", ""]
    assert nodes["block"] == [-1, 0, 0, 0, -1]
