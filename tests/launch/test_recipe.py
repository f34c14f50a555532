"""Recipes and configurations as they are read: every key known, every fault named, origins kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.errors import UsageError
from mesh.launch.config import find_config, load_config
from mesh.launch.recipe import RecipeFile, find_recipe, recipe_name, shell_lines, without_tag
from tests.launch.recipes import CLUSTERS, COMMIT, DIGEST, PINNED, clusters, recipe_file

EVERY_FIELD = f"""
engine = "vllm"
docker_image = "img:tag"
model = "org/model"
parent_model = "org/base"
archived = false
port = 30000
required_nodes = 2
solo = false
deploy = "docker"
tensor_parallel_size = 2
pipeline_parallel_size = 1
distributed_backend = "mp"
shm_size = "64gb"
entrypoint = ["vllm", "serve"]
docker_image_dir = "dir"
before_serve = ["echo hi", {{ command = "x", on_failure = "warn" }}, {{ script = "drop_caches" }}]
after_stop = [{{ script = "restore_dgx_services" }}]
args = ["--kv-cache-dtype", "fp8"]
build_profile = "r28"
[[extra_mounts]]
alias = "jit"
host = "~/.cache/jit"
container = "/root/.cache/jit"
env = "XDG_CACHE_HOME"
[[extra_mounts]]
repo = "org/draft"
subfolder = "mtp"
container = "draft"
[mods]
commands = ["pip install x", {{ command = "./p.sh", on_failure = "warn" }}]
[env]
KEY = "val"
NUMBER = 1
PORT = {{ from = "port" }}
[build.versions]
TORCH = "2.11"
[composed_model]
mount = "/root/model"
sources = [{{ repo = "a/b" }}, {{ repo = "c/d", glob = "L*.safetensors", exclude = ["L5.safetensors"] }}]
files = [{{ name = "n.json", content = "{{}}" }}]
local_files = [{{ host = "/var/x.safetensors" }}]
[[staging]]
kind = "hub-mirror"
dst = "/mnt/m"
min_free = "10%"
[pins]
model_revision = "{COMMIT}"
image = "{DIGEST}"
[pins.model_files]
"config.json" = "sha256:{"b" * 64}"
"""


def test_recipe_reads_every_field_of_the_launcher_it_follows() -> None:
    recipe = recipe_file(EVERY_FIELD).recipe
    assert [hook.on_failure for hook in recipe.before_serve] == ["abort", "warn", "abort"]
    assert recipe.env["NUMBER"] == "1"
    assert recipe.image == f"img@{DIGEST}"
    assert recipe.revision == COMMIT


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("enigne = 1", "enigne: unknown key"),
        ('deploy = "k8s"', "deploy"),
        ("required_nodes = 9", "required_nodes"),
        ("required_nodes = true", "required_nodes"),
        ('before_serve = [{ on_failure = "warn" }]', "one of command and script"),
        ('extra_mounts = [{ repo = "a/b", host = "/x", container = "c" }]', "repo excludes alias and host"),
        ('extra_mounts = [{ container = "/c" }]', "names no source"),
        ('extra_mounts = [{ host = "/h", container = "c" }]', "no absolute path"),
        ('env = { "A B" = "x" }', "env"),
        ('staging = [{ kind = "hub-mirror", dst = "/m", format = "packed" }]', "format is of sparse-rows"),
        ('pins = { image = "sha256:0" }', "pins.image"),
    ],
)
def test_recipe_names_the_key_at_fault(change: str, fault: str) -> None:
    base = 'engine = "vllm"\nmodel = "m"\n'
    with pytest.raises(UsageError, match=r"recipes/test/recipe\.toml") as caught:
        recipe_file(base + change)
    assert fault in str(caught.value)


def test_value_of_an_environment_variable_is_never_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        recipe_file('engine = "vllm"\nmodel = "m"\n[env]\n"HF TOKEN" = "hf_secret"\n')
    assert "hf_secret" not in str(caught.value)


def test_merge_conflict_is_named_by_its_line() -> None:
    with pytest.raises(UsageError, match="line 3 is a merge-conflict marker"):
        recipe_file('engine = "vllm"\nmodel = "m"\n<<<<<<< HEAD\n')


@pytest.mark.parametrize(
    ("image", "without"),
    [
        (f"img:tag@{DIGEST}", f"img@{DIGEST}"),
        (f"host:5000/a/img@{DIGEST}", f"host:5000/a/img@{DIGEST}"),
        ("host:5000/a/img:tag", "host:5000/a/img:tag"),
    ],
)
def test_digest_needs_no_tag(image: str, without: str) -> None:
    assert without_tag(image) == without


def test_shell_lines_join_what_a_backslash_joins() -> None:
    assert shell_lines("  a \\\n   b\n\n# c\n  d # e\n") == ["a b", "d # e"]


def test_recipe_is_found_by_name_path_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "recipe.toml").write_text(PINNED)
    assert find_recipe("one", [tmp_path / "none", tmp_path]) == folder / "recipe.toml"
    assert RecipeFile.load(folder).name == "one"
    assert find_recipe(str(folder), []) == folder / "recipe.toml"
    with pytest.raises(UsageError, match="recipe 'two': no folder of that name"):
        find_recipe("two", [tmp_path])


def test_config_order_is_given_then_here_then_the_users(tmp_path: Path) -> None:
    user = tmp_path / "user.toml"
    assert find_config(None, tmp_path, user) is None
    user.write_text("")
    assert find_config(None, tmp_path, user) == user
    (tmp_path / "launch.toml").write_text("")
    assert find_config(None, tmp_path, user) == tmp_path / "launch.toml"
    assert find_config(tmp_path / "x", tmp_path, user) == tmp_path / "x"


def test_cluster_sources_are_merged_and_the_main_file_wins(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text(CLUSTERS.partition("[mount_aliases]")[0])
    main = tmp_path / "launch.toml"
    main.write_text(
        'cluster_sources = ["more.toml"]\nssh_user = ""\n'
        '[[clusters]]\nname = "2nodes"\nnodes = [{ name = "z", ssh_ip = "1.1.1.1", rank = 0 }]\n'
    )
    loaded = load_config(main)
    assert [cluster.name for cluster in loaded.config.clusters] == ["2nodes", "4nodes"]
    assert loaded.config.clusters[0].nodes[0].name == "z"
    assert loaded.config.ssh_user == "u"
    assert loaded.origins["clusters.2nodes"] == str(main)
    assert loaded.origins["clusters.4nodes"] == str(tmp_path / "more.toml")
    assert loaded.origins["default_port"] == "default"
    assert set(loaded.digests) == {str(main), str(tmp_path / "more.toml")}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[nccl.x]\n", "no cluster of that name"),
        ('[[clusters]]\nname = "c"\nnodes = [{ name = "n", ssh_ip = "h", rank = 1 }]\n', "ranks are"),
        ('[[clusters]]\nname = "c"\nnodes = [{ name = "n", ssh_ip = "a b", rank = 0 }]\n', "ssh_ip"),
        ("surprise = 1\n", "surprise: unknown key"),
    ],
)
def test_config_names_what_is_at_fault(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=r"launch\.toml") as caught:
        clusters(text)
    assert fault in str(caught.value)


def test_cluster_source_says_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text("default_port = 1\n")
    (tmp_path / "launch.toml").write_text('cluster_sources = ["more.toml"]\n')
    with pytest.raises(UsageError, match="default_port: not a key of a cluster source"):
        load_config(tmp_path / "launch.toml")


def test_hooks_of_every_cluster_come_first() -> None:
    commands = [hook.command or hook.script for hook in clusters().hooks_for("2nodes")]
    assert commands == ["nvidia-smi -lgc 0,2000", "echo two", "drop_caches"]


MESH = 'engine = "mesh"\ndeploy = "tmux"\nmodel = "reference"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[env]\nA = "x\\u0000y"\n', "env: the value of A has 3 characters, expected 100000 at most and no zero"),
        ("[env]\nA = true\n", "env.A: input should be a valid string"),
        ('[env]\nMESH_RUN = "x"\n', "env: has MESH_RUN, which is the launcher's own"),
        (
            '[composed_model]\nmount = "/m"\nsources = [{ repo = "a/b" }]\n'
            'files = [{ name = "n", content = "\\u0000" }]\n',
            "composed_model.files.0.content: string should match pattern",
        ),
    ],
)
def test_what_no_command_can_carry_is_refused(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        recipe_file(MESH + text)
    assert fault in str(raised.value)
    assert recipe_file(MESH + '[env]\nA = ""\nB = "two\\nlines"\n').recipe.env == {"A": "", "B": "two\nlines"}


@pytest.mark.parametrize("name", ["", ".x", "-x", "a b", "a\nb", "ü", "x" * 101])
def test_recipe_whose_containers_could_not_be_called_by_its_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"is no name of a recipe: expected letters, digits"):
        recipe_name(Path("/recipes") / name / "recipe.toml" if name else Path("/recipe.toml"))
    assert recipe_name(Path("/recipes/Qwen3.5-9b_x/recipe.toml")) == "Qwen3.5-9b_x"


def test_byte_order_mark_is_told_as_one() -> None:
    with pytest.raises(UsageError, match="begins with a byte order mark"):
        RecipeFile.of(b"\xef\xbb\xbf" + MESH.encode(), Path("recipes/r/recipe.toml"))


PAIR = '[[clusters]]\nname = "p"\nnodes = [{ name = "a", ssh_ip = "h1", rank = 0 }, '


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (PAIR + '{ name = "b", ssh_ip = "h1", rank = 1 }]\n', "cluster p: two nodes are at h1 port 22"),
        (
            PAIR + '{ name = "b", ssh_ip = "h2", rank = 1 }]\n[[clusters]]\nname = "q"\n'
            'nodes = [{ name = "b", ssh_ip = "h3", rank = 0 }]\n',
            "two nodes are named 'b': h2 port 22 in p, h3 port 22 in q",
        ),
        ('ssh_user = "a\\u0000b"\n', "ssh_user: string should match pattern"),
        ('ssh_user = "-oProxyCommand=x"\n', "ssh_user: string should match pattern"),
    ],
)
def test_node_that_is_two_and_name_that_is_none_are_refused(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        clusters(text)
    assert fault in str(raised.value)
    both = PAIR + '{ name = "b", ssh_ip = "h1", ssh_port = 2222, rank = 1 }]\n'
    again = both.replace('name = "p"', 'name = "q"')  # the same nodes in another cluster
    assert [cluster.name for cluster in clusters(f'ssh_user = "DOM\\\\me"\n{both}{again}').clusters] == ["p", "q"]


@pytest.mark.parametrize(
    ("main", "fault"),
    [("clusters = 5\n", "clusters: input should be a valid list"), ("nccl = 5\n", "nccl: input should be")],
)
def test_main_file_that_is_wrong_is_told_although_sources_would_be_added_to_it(
    tmp_path: Path, main: str, fault: str
) -> None:
    (tmp_path / "launch.toml").write_text(f'cluster_sources = ["more.toml"]\n{main}')
    (tmp_path / "more.toml").write_text('[[clusters]]\nname = ["x"]\nnodes = []\n[nccl.x]\nib_disable = 1\n')
    with pytest.raises(UsageError) as raised:
        load_config(tmp_path / "launch.toml")
    assert fault in str(raised.value)
