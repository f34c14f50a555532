from __future__ import annotations

import gguf
import pytest

from mesh.identity.ggml import TENSOR_TYPES, TensorType


@pytest.mark.parametrize("known", gguf.GGMLQuantizationType, ids=lambda known: known.name)
def test_tensor_type_has_the_size_that_other_readers_give_it(known: gguf.GGMLQuantizationType) -> None:
    ours = TENSOR_TYPES[int(known)]
    block, block_bytes = gguf.GGML_QUANT_SIZES[known]
    if known.name == "Q8_1":  # that package still counts two floats in a block, where ggml has two halves
        block_bytes = 36
    assert (ours.number, ours.name, ours.block, ours.block_bytes) == (int(known), known.name, block, block_bytes)


def test_tensor_type_that_this_version_of_other_readers_lacks() -> None:
    assert TENSOR_TYPES[42] == TensorType(42, "Q2_0", 64, 18)
    assert TENSOR_TYPES.keys() - {42} <= {int(known) for known in gguf.GGMLQuantizationType}
