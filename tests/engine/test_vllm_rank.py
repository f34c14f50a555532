"""The extension that a vLLM server loads; in one it runs in tests/vllm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mesh.engine.vllm_rank import EXTENSION, METHOD, MeshRank, absent_layers, layers_computed

ROOT = Path(__file__).parents[2]


class Part:
    """A tree of modules, as a model shows itself."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def modules(self):
        return [self, *self.__dict__.get("inner", [])]

    def named_modules(self):
        return [(f"model.layers.{n}", each) for n, each in enumerate(self.__dict__.get("inner", []))]


class PPMissingLayer(Part):
    pass


def test_layers_are_those_that_the_model_says_it_computes():
    assert layers_computed(Part(inner=[Part(start_layer="0"), Part(start_layer=2, end_layer=5)])) == (2, 5)
    assert layers_computed(Part()) == (0, 0)


def test_stand_ins_are_told_by_their_place():
    assert absent_layers(Part(inner=[PPMissingLayer(), Part(), PPMissingLayer()])) == [0, 2]


def test_extension_is_found_by_its_name():
    assert EXTENSION == "mesh.engine.vllm_rank.MeshRank"
    assert callable(getattr(MeshRank, METHOD))


def test_extension_needs_nothing_but_the_standard_library():
    """A server's own environment has nothing of ours."""
    code = "import sys, mesh.engine.vllm_rank; print(*(n for n in sys.modules if '/site-packages/' in str(" + (
        "getattr(sys.modules[n], '__file__', ''))))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
