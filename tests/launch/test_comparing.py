"""Ranks of one launch that are not of one kind are refused before any of them starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mesh.errors import RanksDiffer
from mesh.launch.comparing import check_ranks
from mesh.launch.plan import make_plan
from mesh.launch.ranks import Rank
from mesh.launch.selection import Wish, choose
from tests.launch.recipes import PINNED, clusters, recipe_file

FACTS = {"image": "sha256:1 []", "weights": "aa config.json\nbb model.safetensors"}


def ranks(text: str = PINNED) -> tuple[Rank, ...]:
    config, file = clusters(), recipe_file(text)
    return make_plan(config, file, choose(config, file.recipe, Wish("2nodes")), run="r").ranks


def test_ranks_of_one_kind_pass_with_the_places_that_they_have() -> None:
    check_ranks(ranks(), {"a": FACTS, "b": FACTS})
    check_ranks(ranks(PINNED + 'distributed_backend = "ray"\n'), {"a": FACTS, "b": FACTS})


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"image": "sha256:2 []"}, "image: rank 1 on b and rank 0 on a: 'sha256:2 .*', not 'sha256:1"),
        ({"weights": "aa config.json\ncc model.safetensors"}, "weights: .* 'cc model.safetensors', not 'bb model"),
        ({"weights": "aa config.json"}, "weights: .* 'bb model.safetensors' is on one alone"),
        ({"program": "x"}, "program: .*is on one alone"),
    ],
)
def test_rank_with_another_image_or_other_weights_is_refused(changed: dict[str, str], fault: str) -> None:
    with pytest.raises(RanksDiffer, match=fault):
        check_ranks(ranks(), {"a": FACTS, "b": FACTS | changed})


def test_rank_with_another_argv_or_environment_is_refused() -> None:
    head, worker = ranks()
    with pytest.raises(RanksDiffer, match=r"argv: .*'fp4', not 'fp8'"):
        check_ranks((head, replace(worker, argv=(*worker.argv[:-1], "fp4"))), {})
    with pytest.raises(RanksDiffer, match=r"environment: .*NCCL_DEBUG is 'INFO', not 'WARN'"):
        check_ranks((head, replace(worker, environment={**worker.environment, "NCCL_DEBUG": "INFO"})), {})
    with pytest.raises(RanksDiffer, match="VLLM_PP_LAYER_PARTITION is '1,3', not None"):
        check_ranks((head, replace(worker, environment={**worker.environment, "VLLM_PP_LAYER_PARTITION": "1,3"})), {})
