"""What a launch has in force, each value with its one origin (RC-06)."""

from __future__ import annotations

import pytest

from mesh.launch.config import Loaded, load_config
from mesh.launch.plan import make_plan
from mesh.launch.record import HIDDEN, make_record
from mesh.launch.selection import Wish, choose
from mesh.launch.settings import settings_of
from mesh.schema.envelope import SigningKey
from tests.launch.recipes import PINNED, clusters, recipe_file

ORIGINS = (
    '[env]\nHF_TOKEN = "x"\nA = "1"\n[origins]\nkv_cache_dtype = "x.env: KV"\nimage = "compose.yaml"\n"env.A" = "y"\n'
)


@pytest.mark.parametrize("more", ["", 'distributed_backend = "ray"\n'])
def test_rc_06_each_setting_in_force_has_one_value_and_one_origin(more: str) -> None:
    config: Loaded = load_config(None)
    file = recipe_file(PINNED + more + ORIGINS)
    plan = make_plan(clusters(), file, choose(clusters(), file.recipe, Wish("2nodes")), run="r1")
    record = make_record(plan, config, {}, model="org/model", launched_ns=1, key=SigningKey(b"\x07" * 32))
    found = settings_of(record, file.recipe)
    assert len({one.name for one in found}) == len(found)
    told = {one.name: (one.value, one.origin) for one in found}
    assert told["model"] == ("org/model", "recipe.toml: model")
    assert told["kv_cache_dtype"] == ("fp8", "x.env: KV")
    assert told["image"] == (file.recipe.image, "compose.yaml")
    assert told["tensor_parallel_size"] == ("2", "recipe.toml: tensor_parallel_size")
    assert told["port"] == ("30000", "the launcher")
    assert told["env.A"] == ("1", "y")
    assert told["env.HF_TOKEN"] == (HIDDEN, "recipe.toml: env")
    assert told["env.NCCL_DEBUG"] == ("WARN", "the launcher")
    assert next(one.words() for one in found if one.name == "port") == "port = 30000 (the launcher)"
