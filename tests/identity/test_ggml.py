from __future__ import annotations

import gguf
import pytest

from mesh.identity.ggml import TENSOR_TYPES


@pytest.mark.parametrize("known", gguf.GGMLQuantizationType, ids=lambda known: known.name)
def test_tensor_type_has_the_size_that_other_readers_give_it(known: gguf.GGMLQuantizationType) -> None:
    ours = TENSOR_TYPES[int(known)]
    block, block_bytes = gguf.GGML_QUANT_SIZES[known]
    if known.name == "Q8_1":  # that package still counts two floats in a block, where ggml has two halves
        block_bytes = 36
    assert (ours.number, ours.name, ours.block, ours.block_bytes) == (int(known), known.name, block, block_bytes)
