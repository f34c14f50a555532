"""Circuits of llama's kind, as many layers long as a test wants."""

from __future__ import annotations

from dataclasses import replace

from mesh.blueprint.body import Body
from mesh.blueprint.circuit import Circuit
from mesh.blueprint.roles import placed_gguf
from mesh.blueprint.wiring import Numerics, Tensor, Wiring
from mesh.engine.gguf_plan import FORMATS, MEETS, plan_of
from tests.blueprint.bodies import SETTINGS, body

WIDTH, INNER = 4096, 11008
LAYER = (
    ("attn_norm", "F32", (WIDTH,)), ("attn_q", "Q4_K", (WIDTH, WIDTH)), ("attn_k", "Q4_K", (WIDTH, 1024)),
    ("attn_v", "Q6_K", (WIDTH, 1024)), ("attn_output", "Q4_K", (WIDTH, WIDTH)), ("ffn_norm", "F32", (WIDTH,)),
    ("ffn_gate", "Q4_K", (WIDTH, INNER)), ("ffn_up", "Q4_K", (WIDTH, INNER)), ("ffn_down", "Q6_K", (INNER, WIDTH)),
)  # fmt: skip


def tensors(layers: int) -> list[Tensor]:
    outer = [Tensor("token_embd.weight", "Q8_0", (WIDTH, 32_000)), Tensor("output_norm.weight", "F32", (WIDTH,))]
    return outer + [Tensor(f"blk.{n}.{name}.weight", kind, shape) for n in range(layers) for name, kind, shape in LAYER]


def numerics(*, cache: str = "Q8_0", rotated: bool = True, fused: bool = True) -> Numerics:
    return Numerics(FORMATS, "F32", cache, MEETS, MEETS[cache] if fused else None, rotated, fused)


def wired(found: list[Tensor], how: Numerics | None = None, *, rope: bool = True) -> Circuit:
    wiring = Wiring(found, how or numerics(), rope=rope)
    return wiring.circuit([placed_gguf(n, weight, "llama") for n, weight in enumerate(wiring.weights)])


def deep_body(layers: int) -> Body:
    """A blueprint of a model that nobody has made."""
    made, circuit = body(), wired(tensors(layers))
    kernels, plan = plan_of(circuit, SETTINGS, made.modules)
    checkpoint = replace(made.checkpoint, layers=layers, precision="Q4_K")
    return replace(
        made, name=f"synthetic, {layers} layers", circuit=circuit, kernels=kernels, plan=plan, checkpoint=checkpoint
    )
