"""Circuits as they are wired: every tensor in its place, every change of format a node, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mesh.blueprint.circuit import Circuit, Edge, Weight
from mesh.blueprint.roles import placed_hf
from mesh.blueprint.wiring import Tensor, Wiring
from mesh.errors import BodyError
from tests.blueprint.bodies import circuit
from tests.blueprint.circuits import INNER, WIDTH, numerics, tensors, wired


def of(made: Circuit, layer: int = 0) -> list[tuple[str, str]]:
    """Names and kinds of a layer's nodes, the layer's name taken off."""
    block = made.blocks.index(f"layer {layer}")
    return [(node.name.removeprefix(f"layer {layer} "), node.kind) for node in made.nodes if node.block == block]


def test_layer_of_llama_is_wired_from_its_tensors() -> None:
    made = wired(tensors(2))
    assert [kind for _, kind in of(made)].count("linear") == 7
    assert [name for name, kind in of(made) if kind == "quantize"] == [
        "queries input in Q8_K", "keys input in Q8_K", "values input in Q8_K", "keys in Q8_0", "values in Q8_0",
        "queries in Q8_0", "attention output input in Q8_K", "feed-forward up input in Q8_K",
        "feed-forward gate input in Q8_K", "feed-forward down input in Q8_K",
    ]  # fmt: skip
    assert [name for name, kind in of(made) if kind == "rotate"] == [
        "queries rotated", "keys rotated", "values rotated", "attention rotated back",
    ]  # fmt: skip
    assert {state.name for state in made.states} == {f"layer {n} {what}" for n in (0, 1) for what in ("keys", "values")}
    # the embedding is read both ways: there is no head of its own
    head = next(node for node in made.nodes if node.kind == "head")
    assert [made.weights[number].name for number in head.weights] == ["token_embd.weight"]


def test_every_edge_has_the_format_of_the_node_that_it_comes_from() -> None:
    made = wired(tensors(1))
    assert all(edge.format == made.nodes[edge.start].format for edge in made.edges)
    flows = {(made.nodes[edge.start].kind, made.formats[edge.format].name) for edge in made.edges}
    assert ("quantize", "Q8_K") in flows
    assert ("cache", "Q8_0") in flows
    widths = {edge.width for edge in made.edges}
    assert {WIDTH, INNER, 1024} <= widths


def test_settings_change_the_circuit() -> None:
    plain = of(wired(tensors(1), numerics(cache="F32", rotated=False, fused=False)))
    assert not {"rotate"} & {kind for _, kind in plain}
    assert [name for name, kind in plain if kind == "attention"] == ["scores", "softmax", "attention"]
    assert not [name for name, kind in plain if kind == "quantize" and "Q8_0" in name]
    assert not [kind for _, kind in of(wired(tensors(1), rope=False)) if kind == "rope"]


def test_biases_experts_and_norms_of_heads_have_their_nodes() -> None:
    found = [
        *tensors(1), Tensor("blk.0.attn_q.bias", "F32", (WIDTH,)), Tensor("blk.0.attn_q_norm.weight", "F32", (128,)),
        Tensor("blk.0.post_attention_norm.weight", "F32", (WIDTH,)), Tensor("rope_freqs.weight", "F32", (64,)),
        Tensor("blk.0.ffn_gate_inp.weight", "F32", (WIDTH, 8)), Tensor("output.weight", "Q6_K", (WIDTH, 32_000)),
        *(Tensor(f"blk.0.ffn_{part}_exps.weight", "Q4_K", shape) for part, shape in (
            ("gate", (WIDTH, 512, 8)), ("up", (WIDTH, 512, 8)), ("down", (512, WIDTH, 8)))),
    ]  # fmt: skip
    names = dict(of(wired(found)))
    assert names["queries bias"] == "add"
    assert names["query norm"] == names["norm after attention"] == "norm"
    assert (names["router"], names["choice of experts"], names["experts up"]) == ("router", "router", "experts")
    assert names["experts added 2"] == "add"


@pytest.mark.parametrize("weighted", [False, True])
def test_experts_shared_ones_and_a_feed_forward_are_added_one_by_one(weighted: bool) -> None:
    found = [
        *tensors(1), Tensor("blk.0.ffn_gate_inp.weight", "F32", (WIDTH, 8)),
        *(Tensor(f"blk.0.ffn_{part}_exps.weight", "Q4_K", shape) for part, shape in (
            ("gate", (WIDTH, 512, 8)), ("up", (WIDTH, 512, 8)), ("down", (512, WIDTH, 8)))),
        *(Tensor(f"blk.0.ffn_{part}_shexp.weight", "Q4_K", shape) for part, shape in (
            ("gate", (WIDTH, 512)), ("up", (WIDTH, 512)), ("down", (512, WIDTH)))),
    ]  # fmt: skip
    if weighted:
        found.append(Tensor("blk.0.ffn_gate_inp_shexp.weight", "F32", (WIDTH,)))
    made = wired(found)
    names = dict(of(made))
    assert ("weight of the shared expert" in names, "shared expert weighted" in names) == (weighted, weighted)
    assert names["shared expert up"] == "linear"

    def into(name: str) -> list[str]:
        end = next(n for n, node in enumerate(made.nodes) if node.name == f"layer 0 {name}")
        return [made.nodes[edge.start].name.removeprefix("layer 0 ") for edge in made.edges if edge.end == end]

    shared = "shared expert weighted" if weighted else "shared expert down"
    assert into("experts added 3") == [shared, "feed-forward down"]
    assert into("experts added 2") == ["experts down", "experts added 3"]


def test_tensors_of_one_for_several_are_divided() -> None:
    found = [
        tensor for tensor in tensors(1) if not tensor.name.startswith(("blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"))
    ]
    found.append(Tensor("blk.0.attn_qkv.weight", "Q4_K", (WIDTH, WIDTH + 2 * 1024)))
    made = wired(found)
    fused = next(
        number
        for number, node in enumerate(made.nodes)
        if "queries, keys and values" in node.name and node.kind == "linear"
    )
    assert sorted(edge.width for edge in made.edges if edge.start == fused) == [1024, 1024, WIDTH]


def test_folder_of_hugging_face_makes_the_same_kinds_of_nodes() -> None:
    names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    found = []
    for tensor in tensors(2):
        _, layer, part, *_ = f"{tensor.name}...".split(".")
        name = outer.get(tensor.name, f"model.layers.{layer}.{names.get(part)}.weight")
        found.append(Tensor(name, tensor.format, tensor.shape[::-1]))
    wiring = Wiring(found, numerics(), rope=True)
    made = wiring.circuit([placed_hf(n, one, "llama", post_norms=False) for n, one in enumerate(wiring.weights)])
    assert made.kinds == wired(tensors(2)).kinds
    with pytest.raises(BodyError, match=r"tensor 'x\.weight' of llama: its place in a circuit is not known"):
        placed_hf(0, replace(wiring.weights[0], name="x.weight"), "llama", post_norms=False)


@pytest.mark.parametrize(
    ("part", "role"),
    [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attn_norm"), ("self_attn.q_proj", "attn_q")],
)
def test_norm_behind_the_attention_is_its_own_where_there_are_norms_behind(part: str, role: str) -> None:
    weight = Weight(f"model.layers.3.{part}.weight", 0, (4,))
    placed = placed_hf(0, weight, "llama", post_norms=True)
    assert (placed.role, placed.layer) == (role, 3)


@pytest.mark.parametrize(("shape", "wide"), [((8, 4, 2), (2, 4)), ((4, 2), (2, 4)), ((4,), (0, 4)), ((), (0, 1))])
def test_tensor_of_several_matrices_is_as_wide_as_each(shape: tuple[int, ...], wide: tuple[int, int]) -> None:
    placed = placed_hf(0, Weight("model.layers.0.mlp.down_proj.weight", 0, shape), "llama", post_norms=False)
    assert (placed.inputs, placed.outputs) == wide


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([*tensors(1), Tensor("blk.0.ssm_a", "F32", (4,))], r"'blk\.0\.ssm_a' of llama: its place in a circuit is not"),
        ([*tensors(1), Tensor("rope_freqs.weight", "F32", (64,))], "belongs to no node"),
        ([one for one in tensors(1) if "attn_k" not in one.name], "no tensor for attn_k in layer 0"),
        ([one for one in tensors(1) if "ffn_" not in one.name], "layer 0 feed-forward: no tensors of it"),
        ([*tensors(1), Tensor("blk.0.ffn_gate_inp.weight", "F99", (1, 8))], "format 'F99' is not known"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(found: list[Tensor], told: str) -> None:
    with pytest.raises(BodyError, match=told):
        wired(found, rope="rope_freqs" not in str(found))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"edges": (Edge(0, 1, 9, 1),)}, r"edges\[0\]\.format is 9"),
        ({"edges": circuit().edges[:3]}, "'logits' .output.: nothing flows into it"),
        ({"blocks": ("layer 0", "layer 1")}, "block 'layer 1' is not used"),
        ({"blocks": ("layer 0", "layer 0")}, "'layer 0' is 2 times among the blocks"),
        ({"weights": circuit().weights[::-1]}, r"weights\[1\] is not above"),
        ({"edges": circuit().edges[::-1]}, r"edges\[1\] is not above"),
        ({"edges": [circuit().edges[number] for number in (0, 2, 1, 3)]}, r"edges\[2\] is not above"),
    ],
)  # fmt: skip
def test_circuit_that_contradicts_itself_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(BodyError, match=told):
        replace(circuit(), **changes)
