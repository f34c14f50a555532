"""The circuit of a decoder-only transformer, wired from what its tensors are and from how its engine computes.

Every tensor gets a place, or there is no circuit: what is not understood is not drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mesh.blueprint.circuit import Circuit, Edge, Format, Node, State, Weight
from mesh.blueprint.roles import Placed
from mesh.errors import BodyError


@dataclass(frozen=True)
class Numerics:
    """How an engine computes. `formats` knows every format by name; `activation` is what flows between nodes,
    `cache` what keys and values are kept in. `requantized` says what rows are made into before they meet weights of a
    format, where that is another than `activation`; `query` is what queries meet the cache in. `rotated` turns
    queries, keys and values by a Hadamard transform, so that fewer of them stick out; `fused` attention is one node."""

    formats: Mapping[str, Format]
    activation: str
    cache: str
    requantized: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    rotated: bool = False
    fused: bool = True


@dataclass(frozen=True, slots=True)
class Tensor:
    """Of a checkpoint: its name there, the name of its format, its shape in the checkpoint's order."""

    name: str
    format: str
    shape: tuple[int, ...]


def weights_of(tensors: Sequence[Tensor], names: Sequence[str]) -> tuple[Weight, ...]:
    """As the circuit lists them; `names` are those of the formats, in order."""
    place = {name: number for number, name in enumerate(names)}
    ordered = sorted(tensors, key=lambda tensor: tensor.name.encode())
    return tuple(Weight(tensor.name, place[tensor.format], tensor.shape) for tensor in ordered)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Where a value comes from: a node, the format that it has there, and how many elements a row."""

    node: int
    format: str
    width: int


_Namer = Callable[[str], str]


class Wiring:
    """Call `circuit` once."""

    def __init__(self, tensors: Sequence[Tensor], numerics: Numerics, *, rope: bool) -> None:
        used = {tensor.format for tensor in tensors} | {numerics.activation, numerics.cache}
        used |= set(numerics.requantized.values())
        if numerics.query is not None:
            used.add(numerics.query)
        missing = sorted(used - numerics.formats.keys())
        if missing:
            raise BodyError(f"circuit: format {missing[0]!r} is not known")
        self._numerics, self._rope = numerics, rope
        self._names = sorted(used, key=str.encode)
        self._tensor_formats = {tensor.name: tensor.format for tensor in tensors}
        self.weights = weights_of(tensors, self._names)
        self._nodes: list[tuple[str, str, str, int | None, tuple[int, ...], int | None]] = []
        self._edges: list[tuple[int, int, str, int]] = []
        self._states: list[tuple[str, int]] = []
        self._block: int | None = None

    def circuit(self, placed: Sequence[Placed]) -> Circuit:
        """Raises BodyError where a part is missing, or a tensor is left over."""
        parts: dict[tuple[int | None, str], list[Placed]] = defaultdict(list)
        for one in placed:
            parts[one.layer, one.role].append(one)
        self._parts = parts
        layers = sorted({layer for layer, _ in parts if layer is not None})
        start = self._add("tokens", "input", ())
        ids = _Flow(start, self._numerics.activation, 1)
        flow = self._weighted("embedding", "embedding", ids, None, "embedding", last="inputs")
        if (None, "positions") in parts:
            places = self._weighted("positions", "embedding", ids, None, "positions", last="inputs")
            flow = self._join("positions added", flow, places)
        flow = self._norm("embedding norm", flow, None, "embedding_norm")
        for place, layer in enumerate(layers):
            self._block = place
            flow = self._layer(flow, layer)
        self._block = None
        flow = self._norm("output norm", flow, None, "output_norm")
        role = "head" if (None, "head") in parts else "embedding"  # many models read the embedding both ways
        flow = self._matrix("head", "head", flow, None, role)
        end = self._add("logits", "output", ())
        self._connect(flow, end)
        return self._made([f"layer {layer}" for layer in layers])

    # --- a layer

    def _layer(self, flow: _Flow, layer: int) -> _Flow:
        def name(what: str) -> str:
            return f"layer {layer} {what}"

        normed = self._norm(name("attention norm"), flow, layer, "attn_norm")
        mixed = self._attention(name, normed, layer)
        mixed = self._norm(name("norm after attention"), mixed, layer, "post_attn_norm")
        added = self._join(name("attention added"), flow, mixed)
        # without a norm of its own the second part reads what the first one read
        has_norm = (layer, "ffn_norm") in self._parts
        inner = self._norm(name("feed-forward norm"), added, layer, "ffn_norm") if has_norm else normed
        out = self._feed_forward(name, inner, layer)
        out = self._norm(name("norm after feed-forward"), out, layer, "post_ffn_norm")
        return self._join(name("feed-forward added"), added, out)

    def _attention(self, name: _Namer, normed: _Flow, layer: int) -> _Flow:
        numerics = self._numerics
        if (layer, "attn_qkv") in self._parts:
            fused = self._matrix(name("queries, keys and values"), "linear", normed, layer, "attn_qkv")
            width = self._one(layer, "attn_output").inputs
            rest = (fused.width - width) // 2
            if rest <= 0:
                raise BodyError(f"circuit: {name('attn_qkv')}: {fused.width} outputs, of which {width} are queries")
            q, k, v = (_Flow(fused.node, fused.format, size) for size in (width, rest, rest))
        else:
            q = self._matrix(name("queries"), "linear", normed, layer, "attn_q")
            k = self._matrix(name("keys"), "linear", normed, layer, "attn_k")
            v = self._matrix(name("values"), "linear", normed, layer, "attn_v")
        q = self._norm(name("query norm"), q, layer, "attn_q_norm")
        k = self._norm(name("key norm"), k, layer, "attn_k_norm")
        if self._rope:
            q = self._step(name("queries in place"), "rope", q, weights=self._of(None, "rope"))
            k = self._step(name("keys in place"), "rope", k, weights=self._of(None, "rope"))
        if numerics.rotated:
            q = self._step(name("queries rotated"), "rotate", q)
            k = self._step(name("keys rotated"), "rotate", k)
            v = self._step(name("values rotated"), "rotate", v)
        kept = [self._kept(name, one, flow) for one, flow in (("keys", k), ("values", v))]
        if numerics.query is not None and numerics.query != q.format:
            q = self._quantized(name("queries"), q, numerics.query)
        if numerics.fused:
            mixed = self._several(name("attention"), "attention", (q, *kept), q.width)
        else:
            scores = self._several(name("scores"), "attention", (q, kept[0]), q.width)
            shares = self._step(name("softmax"), "attention", scores)
            mixed = self._several(name("attention"), "attention", (shares, kept[1]), q.width)
        if numerics.rotated:
            mixed = self._step(name("attention rotated back"), "rotate", mixed)
        return self._matrix(name("attention output"), "linear", mixed, layer, "attn_output")

    def _kept(self, name: _Namer, what: str, flow: _Flow) -> _Flow:
        numerics = self._numerics
        if numerics.cache != flow.format:
            flow = self._quantized(name(what), flow, numerics.cache)
        self._states.append((name(what), flow.width))
        node = self._add(name(f"{what} kept"), "cache", (), numerics.cache, state=len(self._states) - 1)
        self._connect(flow, node)
        return _Flow(node, numerics.cache, flow.width)

    def _feed_forward(self, name: _Namer, inner: _Flow, layer: int) -> _Flow:
        parts = self._parts
        outs = []
        if (layer, "router") in parts:
            choice = self._matrix(name("router"), "router", inner, layer, "router")
            choice = self._step(name("choice of experts"), "router", choice)
            outs.append(self._gated(name, "experts", inner, layer, "_exps", also=choice))
        if (layer, "ffn_up_shexp") in parts:
            outs.append(self._gated(name, "shared expert", inner, layer, "_shexp"))
            if (layer, "shared_router") in parts:
                weight = self._matrix(name("weight of the shared expert"), "router", inner, layer, "shared_router")
                outs[-1] = self._join(name("shared expert weighted"), outs[-1], weight)
        if (layer, "ffn_up") in parts:
            outs.append(self._gated(name, "feed-forward", inner, layer, ""))
        if not outs:
            raise BodyError(f"circuit: {name('feed-forward')}: no tensors of it")
        while len(outs) > 1:
            outs[-2:] = [self._join(name(f"experts added {len(outs)}"), outs[-2], outs[-1])]
        return outs[0]

    def _gated(
        self, name: _Namer, what: str, inner: _Flow, layer: int, suffix: str, *, also: _Flow | None = None
    ) -> _Flow:
        kind = "experts" if also is not None else "linear"
        up = self._matrix(name(f"{what} up"), kind, inner, layer, f"ffn_up{suffix}", also=also)
        down_inputs = self._one(layer, f"ffn_down{suffix}").inputs
        if (layer, f"ffn_gate{suffix}") in self._parts:
            gate = self._matrix(name(f"{what} gate"), kind, inner, layer, f"ffn_gate{suffix}", also=also)
            active = self._several(name(f"{what} activation"), "activation", (gate, up), down_inputs)
        else:  # one matrix for both, or no gate
            active = self._step(name(f"{what} activation"), "activation", up, width=down_inputs)
        return self._matrix(name(f"{what} down"), kind, active, layer, f"ffn_down{suffix}", also=also)

    # --- nodes

    def _norm(self, name: str, flow: _Flow, layer: int | None, role: str) -> _Flow:
        if (layer, role) not in self._parts:
            return flow
        return self._step(name, "norm", flow, weights=self._of(layer, role))

    def _matrix(
        self, name: str, kind: str, flow: _Flow, layer: int | None, role: str, *, also: _Flow | None = None
    ) -> _Flow:
        """Rows times a matrix, made into what the kernel wants first, and its bias after."""
        first = self._one(layer, role)
        wanted = self._numerics.requantized.get(self._tensor_formats[self.weights[first.weight].name])
        if wanted is not None and wanted != flow.format:
            flow = self._quantized(f"{name} input", flow, wanted)
        matrices = tuple(one.weight for one in self._parts[layer, role] if not one.bias)
        node = self._add(name, kind, matrices[:1] if kind == "head" else matrices)
        self._connect(flow, node)
        if also is not None:
            self._connect(also, node)
        out = _Flow(node, self._numerics.activation, first.outputs)
        biases = tuple(one.weight for one in self._parts[layer, role] if one.bias)
        return self._step(f"{name} bias", "add", out, weights=biases) if biases else out

    def _weighted(self, name: str, kind: str, flow: _Flow, layer: int | None, role: str, *, last: str) -> _Flow:
        first = self._one(layer, role)
        return self._step(name, kind, flow, weights=self._of(layer, role), width=getattr(first, last))

    def _step(
        self, name: str, kind: str, flow: _Flow, *, weights: tuple[int, ...] = (), width: int | None = None
    ) -> _Flow:
        return self._several(name, kind, (flow,), flow.width if width is None else width, weights)

    def _join(self, name: str, one: _Flow, other: _Flow) -> _Flow:
        return self._several(name, "add", (one, other), one.width)

    def _several(
        self, name: str, kind: str, flows: Sequence[_Flow], width: int, weights: tuple[int, ...] = ()
    ) -> _Flow:
        node = self._add(name, kind, weights)
        for flow in flows:
            self._connect(flow, node)
        return _Flow(node, self._numerics.activation, width)

    def _quantized(self, name: str, flow: _Flow, wanted: str) -> _Flow:
        node = self._add(f"{name} in {wanted}", "quantize", (), wanted)
        self._connect(flow, node)
        return _Flow(node, wanted, flow.width)

    def _add(
        self, name: str, kind: str, weights: tuple[int, ...], format_: str | None = None, *, state: int | None = None
    ) -> int:
        self._nodes.append((name, kind, format_ or self._numerics.activation, self._block, weights, state))
        return len(self._nodes) - 1

    def _connect(self, flow: _Flow, node: int) -> None:
        if any(edge[:2] == (flow.node, node) for edge in self._edges[-8:]):  # of one matrix for several
            return
        self._edges.append((flow.node, node, flow.format, flow.width))

    def _of(self, layer: int | None, role: str) -> tuple[int, ...]:
        return tuple(one.weight for one in self._parts.get((layer, role), ()))

    def _one(self, layer: int | None, role: str) -> Placed:
        found = [one for one in self._parts.get((layer, role), ()) if not one.bias]
        if not found:
            where = "" if layer is None else f" in layer {layer}"
            raise BodyError(f"circuit: no tensor for {role}{where}")
        return found[0]

    def _made(self, blocks: Sequence[str]) -> Circuit:
        """With the formats that are used, in order, and everything by its place."""
        used = {format_ for _, _, format_, *_ in self._nodes}
        used |= set(self._tensor_formats.values()) | ({self._numerics.cache} if self._states else set())
        names = [name for name in self._names if name in used]
        place = {name: number for number, name in enumerate(names)}
        return Circuit(
            formats=tuple(self._numerics.formats[name] for name in names),
            weights=tuple(
                Weight(weight.name, place[self._tensor_formats[weight.name]], weight.shape) for weight in self.weights
            ),
            blocks=tuple(blocks),
            states=tuple(State(name, place[self._numerics.cache], width) for name, width in self._states),
            nodes=tuple(
                Node(name, kind, place[format_], block, weights, state)
                for name, kind, format_, block, weights, state in self._nodes
            ),
            edges=tuple(
                Edge(start, end, place[format_], width)
                for start, end, format_, width in sorted(self._edges, key=lambda edge: (edge[1], edge[0]))
            ),
        )
