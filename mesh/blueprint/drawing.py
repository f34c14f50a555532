"""A circuit as columns of plain values, for whoever draws it: one entry for each node, one for each edge."""

from __future__ import annotations

from typing import Any

from mesh.blueprint.body import Body
from mesh.blueprint.circuit import KINDS
from mesh.blueprint.verification import Blueprint


def drawing(blueprint: Blueprint, mark: str) -> dict[str, Any]:
    """What `web/page/circuit.js` draws; `mark` says who signed it, as far as that is known. Numbers are places in
    `kinds`, `formats`, `families` and `blocks`; -1 is none. A node with weights has their format to be coloured by."""
    body = blueprint.body
    circuit = body.circuit
    kernels = _kernels(body)
    families = sorted({kernel.family for kernel in body.kernels})
    weights = [
        f"{weight.name}, {circuit.formats[weight.format].name}, {' x '.join(map(str, weight.shape))}"
        for weight in circuit.weights
    ]
    return {
        "name": body.name,
        "id": f"sha256:{blueprint.id.hex()}",
        "signed": mark,
        "facts": _facts(body),
        "blocks": list(circuit.blocks),
        "kinds": list(KINDS),
        "formats": [one.name for one in circuit.formats],
        "families": families,
        "nodes": {
            "names": [node.name for node in circuit.nodes],
            "kind": [KINDS.index(node.kind) for node in circuit.nodes],
            "format": [
                circuit.weights[node.weights[0]].format if node.weights else node.format for node in circuit.nodes
            ],
            "computes": [node.format for node in circuit.nodes],
            "family": [families.index(kernels[n][1]) if n in kernels else -1 for n in range(len(circuit.nodes))],
            "kernel": [kernels[n][0] if n in kernels else "" for n in range(len(circuit.nodes))],
            "block": [-1 if node.block is None else node.block for node in circuit.nodes],
            "weights": ["; ".join(weights[number] for number in node.weights) for node in circuit.nodes],
        },
        "edges": {
            "start": [edge.start for edge in circuit.edges],
            "end": [edge.end for edge in circuit.edges],
            "format": [edge.format for edge in circuit.edges],
            "width": [edge.width for edge in circuit.edges],
        },
    }


def _kernels(body: Body) -> dict[int, tuple[str, str]]:
    """The kernel and its family for each node, where one row is decoded; of the first arm where none is."""
    arm = next((arm for arm in body.plan if arm.mode == "decode"), body.plan[0])
    return {
        node: (
            f"{body.modules[body.kernels[group.kernel].module].name}::{body.kernels[group.kernel].function}",
            body.kernels[group.kernel].family,
        )
        for group in arm.groups
        for node in group.nodes
    }


def _facts(body: Body) -> list[str]:
    checkpoint, circuit = body.checkpoint, body.circuit
    return [
        f"{checkpoint.architecture}, {checkpoint.layers} layers, {checkpoint.precision} ({checkpoint.format})",
        f"{len(circuit.nodes)} nodes, {len(circuit.edges)} edges, {len(circuit.weights)} tensors",
        f"for {body.hardware.isa} on {body.hardware.device}",
        *(f"{module.name}, {module.origin}" for module in body.modules),
        f"revision {body.revision} of {body.lineage.hex()}",
    ]
