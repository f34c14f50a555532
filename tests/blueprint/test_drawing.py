"""What a page shows of a blueprint."""

from __future__ import annotations

from dataclasses import replace

from mesh.blueprint.body import Arm, Group, Kernel, planned
from mesh.blueprint.drawing import _kernels
from tests.blueprint.bodies import body


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
