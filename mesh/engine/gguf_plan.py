"""Which functions of llama.cpp compute which nodes of a circuit, on a CPU with AVX2.

This follows how the pinned build chooses (ggml's traits of types, its repacked layouts, and the matrix products of
llamafile, which it takes for two rows and more), and was held against what a profile of that build shows. It belongs to
the build like the structures in `gguf_abi`: another one may choose otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mesh.blueprint.body import Arm, Group, Kernel, Module, planned
from mesh.blueprint.circuit import Circuit, Format, Node
from mesh.blueprint.settings import GgufSettings
from mesh.blueprint.wiring import Numerics
from mesh.errors import EngineUnsupported
from mesh.identity.ggml import TENSOR_TYPES
from mesh.identity.metadata import Metadata

ISA: Final = "x86_64-avx2"
FEATURES: Final = ("avx", "avx2", "f16c", "fma")  # as the kernel of Linux names them

FORMATS: Final = {kind.name: Format(kind.name, kind.block, kind.block_bytes * 8) for kind in TENSOR_TYPES.values()}
# What rows are made into before they meet weights of a type.
_Q8_0: Final = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4", "Q1_0", "Q2_0")
_Q8_K: Final = (
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
    "IQ4_XS", "TQ1_0", "TQ2_0",
)  # fmt: skip
MEETS: Final = {
    **dict.fromkeys(_Q8_0, "Q8_0"), **dict.fromkeys(_Q8_K, "Q8_K"), "Q4_1": "Q8_1", "Q5_1": "Q8_1", "F32": "F32",
    "F16": "F16", "BF16": "BF16",
}  # fmt: skip
# Laid out anew when they are loaded, eight rows together.
_REPACKED: Final = {"Q4_0": "q4_0_8x8_q8_0", "IQ4_NL": "iq4_nl_8x8_q8_0", "MXFP4": "mxfp4_8x8_q8_0",
                    "Q4_K": "q4_K_8x8_q8_K"}  # fmt: skip
_REPACKED_ROWS: Final = 8
# Of which llamafile has a product of matrices.
_TILED: Final = ("F32", "F16", "BF16", "Q4_0", "Q5_0", "Q8_0", "IQ4_NL")
_ROTATED_HEAD: Final = 64
_PARTS: Final = {
    "embedding": ("ggml_compute_forward_get_rows", "gather"), "rope": ("ggml_compute_forward_rope", "rope"),
    "rotate": ("ggml_compute_forward_fwht", "transform"), "cache": ("ggml_compute_forward_set_rows", "cache"),
    "add": ("ggml_compute_forward_add", "elementwise"),
}  # fmt: skip


def numerics_of(metadata: Metadata, architecture: str, settings: GgufSettings) -> Numerics:
    """How llama.cpp computes this model under these settings."""
    cache = settings.kv_type.upper()
    quantized = cache not in ("F32", "F16", "BF16")
    heads = metadata.get(f"{architecture}.attention.head_count")
    width = metadata.integer(f"{architecture}.embedding_length")
    head = metadata.integer(f"{architecture}.attention.key_length")
    if head is None and width is not None and isinstance(heads, int) and heads > 0:
        head = width // heads
    return Numerics(
        formats=FORMATS,
        activation="F32",
        cache=cache,
        requantized=MEETS,
        query=MEETS[cache] if settings.flash_attention else None,
        rotated=quantized and head is not None and head % _ROTATED_HEAD == 0,
        fused=settings.flash_attention,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    function: str
    family: str
    numerics: str


def plan_of(
    circuit: Circuit, settings: GgufSettings, modules: tuple[Module, ...]
) -> tuple[tuple[Kernel, ...], tuple[Arm, ...]]:
    """The kernels that are needed, and an arm for each mode and number of rows in which others are chosen. Raises
    EngineUnsupported for what this build has no kernel for."""
    arms = [("prefill", 1, 1), ("prefill", 2, settings.n_ubatch), ("decode", 1, 1), ("decode", 2, settings.slots)]
    groups = _groups(circuit)
    inputs = Counter(edge.end for edge in circuit.edges)
    chosen = [
        (arm, [(_choice(circuit, group, arm, settings, inputs), group) for group in groups])
        for arm in arms
        if arm[1] <= arm[2]
    ]
    needed = sorted({choice.function: choice for _, choices in chosen for choice, _ in choices}.items())
    kernels = tuple(Kernel(0, name, choice.family, choice.numerics) for name, choice in needed)
    place = {kernel.function: number for number, kernel in enumerate(kernels)}
    return kernels, tuple(
        planned(
            Arm(mode, first, last, tuple(Group(place[choice.function], nodes) for choice, nodes in choices), b""),
            modules,
            kernels,
        )
        for (mode, first, last), choices in chosen
    )


def _groups(circuit: Circuit) -> list[tuple[int, ...]]:
    """What llama.cpp computes in one operation: keys and values are quantized where they are kept, queries where they
    meet the keys, rows apart."""
    nodes = circuit.nodes
    after = {edge.start: edge.end for edge in circuit.edges if nodes[edge.start].kind == "quantize"}
    fused = {
        start: end for start, end in after.items() if nodes[end].kind == "cache" or nodes[end].kind == "attention"
    }  # fmt: skip
    before = {end: start for start, end in fused.items()}
    return [
        (before[number], number) if number in before else (number,)
        for number, node in enumerate(nodes)
        if node.kind not in ("input", "output") and number not in fused
    ]


def _choice(
    circuit: Circuit, group: tuple[int, ...], arm: tuple[str, int, int], settings: GgufSettings, inputs: Counter[int]
) -> _Choice:
    node = circuit.nodes[group[-1]]
    if node.kind in ("linear", "head", "router", "experts") and node.weights:
        return _product(circuit, node, arm, settings)
    if node.kind == "router":
        return _Choice("ggml_compute_forward_argsort", "router", "F32")
    if node.kind == "quantize":
        name = circuit.formats[node.format].name
        if name in ("F16", "BF16"):
            return _Choice(f"ggml_cpu_fp32_to_{name.lower().replace('f16', 'fp16', 1) if name == 'F16' else 'bf16'}",
                           "quantize", f"F32 to {name}")  # fmt: skip
        return _Choice(f"quantize_row_{_spelled(name)}", "quantize", f"F32 to {name}")
    if node.kind == "norm":
        biased = len(node.weights) > 1
        return _Choice(
            "ggml_compute_forward_norm" if biased else "ggml_compute_forward_rms_norm_mul_fused", "norm", "F32"
        )  # fmt: skip
    if node.kind == "activation":
        gated = inputs[group[-1]] > 1
        return _Choice("ggml_compute_forward_glu" if gated else "ggml_compute_forward_unary", "activation", "F32")
    if node.kind == "attention":
        return _attention(circuit, group, settings)
    function, family = _PARTS[node.kind]
    return _Choice(function, family, circuit.formats[node.format].name)


def _attention(circuit: Circuit, group: tuple[int, ...], settings: GgufSettings) -> _Choice:
    cache = settings.kv_type.upper()
    if settings.flash_attention:
        return _Choice("ggml_compute_forward_flash_attn_ext", "attention", f"{cache} x {MEETS[cache]}, sums in F32")
    if "softmax" in circuit.nodes[group[-1]].name:
        return _Choice("ggml_compute_forward_soft_max", "attention", "F32")
    return _Choice("ggml_compute_forward_mul_mat", "attention", f"{cache} x {MEETS[cache]}, sums in F32")


def _product(circuit: Circuit, node: Node, arm: tuple[str, int, int], settings: GgufSettings) -> _Choice:
    weight = circuit.weights[node.weights[0]]
    name = circuit.formats[weight.format].name
    meets = MEETS.get(name)
    if meets is None:
        raise EngineUnsupported(f"circuit: {weight.name}: no kernel multiplies {name}")
    numerics = f"{name} x {meets}, sums in F32"
    mode, _, rows = arm
    many = rows > 1 and not (node.kind == "head" and mode == "prefill")  # of a prompt the last row alone is wanted
    columns = weight.shape[1] if len(weight.shape) > 1 else 1
    if settings.repack and name in _REPACKED and columns % _REPACKED_ROWS == 0:
        return _Choice(f"ggml_{'gemm' if many else 'gemv'}_{_REPACKED[name]}", "matmul", numerics)
    if many and name in _TILED and node.kind != "experts":
        return _Choice("llamafile_sgemm", "matmul", "as the weights, sums in F32")
    both = _spelled(name) if name == meets and not name.startswith("Q") else f"{_spelled(name)}_{_spelled(meets)}"
    return _Choice(f"ggml_vec_dot_{both}", "matmul", numerics)


def _spelled(name: str) -> str:
    return name.lower().removesuffix("_k") + ("_K" if name.endswith("_K") else "")


def functions_of(kernels: Sequence[Kernel]) -> list[str]:
    return [kernel.function for kernel in kernels]
