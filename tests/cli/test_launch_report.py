"""`mesh launch report` and `runs`: what is told of recipes, runs and benches, without a node."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mesh.cli.launch_report import _rendered
from mesh.cli.launch_reports import Told
from mesh.launch.recipe import RecipeFile
from mesh.launch.settings import Setting
from tests.cli.conftest import Mesh
from tests.launch.benches import cell, data, failed, landed, request
from tests.launch.recipes import CLUSTERS, PINNED

NODES = [{"name": "a", "ssh_ip": "10.0.0.1", "rank": 0}, {"name": "b", "ssh_ip": "10.0.0.2", "rank": 1}]
OPENED = {
    "event": "opened", "run": "20300101T000000-aaaaaa", "at_ns": 1_900_000_000 * 10**9, "cluster": "2nodes",
    "recipe": "good", "recipe_sha256": "0" * 64, "port": 30_000, "record": "b3:" + "c" * 64, "deploy": "docker",
    "engine": "vllm", "model": "org/model", "nodes": NODES,
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two recipes in use and one put away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (tmp_path / "launch.toml").write_text(CLUSTERS)
    for name, text in (("good", PINNED), ("bare", PINNED), ("old", PINNED + "archived = true\n")):
        (tmp_path / "recipes" / name).mkdir(parents=True)
        (tmp_path / "recipes" / name / "recipe.toml").write_text(text)
    return tmp_path


def ledger(here: Path, *events: object, recipe: str = "good") -> None:
    path = here / "launches" / recipe / "runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def measured(here: Path, stem: str = "2030-03-17_174640_first", **said: object) -> Path:
    digest = RecipeFile.load(here / "recipes" / "good").digest
    bench = data(cell(request(), failed(1)), cell(request(output_tokens=None)))
    return landed(here / "recipes" / "good" / "reports", stem, bench, **{"recipe_sha256": digest, **said})


class Page(HTMLParser):
    """What a page names outside itself, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [
            value or "" for name, value in attrs if name in ("src", "href") and not str(value).startswith("#")
        ]
        self.outside += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.said += data


def test_report_is_a_table_with_provenance_and_drift(mesh: Mesh, here: Path) -> None:
    measured(here)
    result = mesh("launch", "report")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["recipe", "model", "state", "launches", "bench", "where", "it", "comes", "from"]
    assert [line.split()[0] for line in lines[1:]] == ["bare", "good"]
    assert "img@dddddddddddd·rcp@" in lines[2]
    assert "changed" not in lines[2]
    recipe = here / "recipes" / "good" / "recipe.toml"
    recipe.write_text(recipe.read_text() + "# another word\n")
    assert "(changed)" in mesh("launch", "report", "good").out
    told = mesh("launch", "report", "good", "--json").json["recipes"][0]
    assert told["benches"][0]["recipe_changed_since"] is True
    assert (told["benches"][0]["cells"], told["benches"][0]["cells_failed"]) == (2, 1)
    recipe.write_text('parent_model = "org/base"\n' + recipe.read_text())
    assert "org/model, of org/base" in mesh("launch", "report", "good").out
    assert mesh("launch", "report", "nobody").code == 2


def test_report_of_one_package_shows_its_figures_and_unknown_ones_as_such(mesh: Mesh, here: Path) -> None:
    path = measured(here, drift=["recipe.toml: changed since the launch: args"])
    out = mesh("launch", "report", path).out
    assert "1 of 2 failed: status 503" in out
    assert "not known" in out
    assert "drift: recipe.toml: changed since the launch: args" in out
    markdown = mesh("launch", "report", path, "--format", "md").out
    assert markdown.rstrip("\n") == path.with_name(path.name.replace(".manifest.json", ".md")).read_text().rstrip("\n")
    assert "\\<b\\>GPU\\</b\\>" in markdown
    assert mesh("launch", "report", path, "--json").json["data"]["cells"][0]["requests"][1]["failed"] == "status 503"
    assert mesh("launch", "report", path, "--format", "html").code == 2


def test_page_holds_all_that_it_shows_and_no_markup_of_others(mesh: Mesh, here: Path) -> None:
    measured(here, drift=["<img src=x>"])
    assert mesh("launch", "report", "--out", "report.html").code == 0
    page = Page((here / "report.html").read_text())
    assert page.outside == []
    assert not {"script", "img", "b", "link", "iframe"} & set(page.tags)
    assert "<b>GPU</b>" in page.said
    assert "<img src=x>" in page.said
    assert "1 of 2 failed: status 503" in page.said
    assert mesh("launch", "report", "--out", "report.html").code == 3  # never over one that is there
    markdown = mesh("launch", "report", "--format", "md").out
    assert markdown.startswith("# Launches and benches\n")
    assert "### first, 2030-03-17 17:47:40 UTC" in markdown


def test_damaged_package_is_named_and_the_others_are_shown(mesh: Mesh, here: Path) -> None:
    measured(here)
    broken = measured(here, "2030-03-18_000000_second")
    broken.with_name("2030-03-18_000000_second.json").write_text("{}")
    result = mesh("launch", "report")
    assert result.code == 10
    assert "2030-03-17_174640_first" in result.out
    assert "good: damaged: recipes/good/reports/2030-03-18_000000_second.json: damaged: sha256 is " in result.out
    assert mesh("launch", "report", broken).code == 10
    assert len(mesh("launch", "report", "--json").json["recipes"][1]["damaged"]) == 1


def test_recipe_is_put_away_and_taken_out_again_with_its_comments(mesh: Mesh, here: Path) -> None:
    recipe = here / "recipes" / "good" / "recipe.toml"
    was = "# a word of the owner\n" + PINNED + "[pins]\n"
    recipe.write_text(was)
    assert mesh("launch", "report", "--archive", "good").code == 0
    assert recipe.read_text() == "archived = true\n" + was
    assert [line.split()[0] for line in mesh("launch", "report").out.splitlines()[1:]] == ["bare"]
    assert [line.split()[0] for line in mesh("launch", "report", "--archived").out.splitlines()[1:]] == ["good", "old"]
    assert mesh("launch", "report", "--unarchive", "good", "--json").json == {"recipe": "good", "archived": False}
    assert recipe.read_text() == "archived = false\n" + was
    assert mesh("launch", "report", "--unarchive", "bare").code == 0
    assert (here / "recipes" / "bare" / "recipe.toml").read_text() == PINNED


def test_report_tells_what_became_of_the_launch_of_an_open_run(mesh: Mesh, here: Path) -> None:
    ledger(here, OPENED)
    (told,) = mesh("launch", "report", "good", "--json").json["recipes"]
    assert (told["state"], told["launches"]) == ("open", 1)
    assert told["drift"] == [
        "launch record: no such file or directory",
        "recipe as launched: no such file or directory",
    ]
    kept = here / "launches" / "good" / OPENED["run"]
    kept.mkdir()
    (kept / "recipe.toml").write_text(PINNED)
    (kept / "launch.record").write_bytes(b"damaged")
    drift = mesh("launch", "report", "good", "--json").json["recipes"][0]["drift"]
    assert drift[0].startswith("launch record: ")
    assert drift[1] == "recipe as launched: its bytes are not those that the ledger names"
    opened = {**OPENED, "recipe_sha256": RecipeFile.load(here / "recipes" / "good").digest}
    ledger(here, opened)
    recipe = here / "recipes" / "good" / "recipe.toml"
    recipe.write_text(PINNED.replace('"fp8"', '"auto"') + "shm_size = '1g'\n")
    drift = mesh("launch", "report", "good", "--json").json["recipes"][0]["drift"]
    assert drift[1].startswith("recipe.toml: changed since the launch: args, shm_size (")


def test_runs_are_listed_with_how_each_ended(mesh: Mesh, here: Path) -> None:
    assert "no run was ever launched" in mesh("launch", "runs").out
    old = {**OPENED, "run": "20290101T000000-bbbbbb"}
    closed = {"event": "closed", "run": old["run"], "at_ns": OPENED["at_ns"] + 7265 * 10**9, "how": "stopped",
              "verified": True}  # fmt: skip
    ledger(here, old, {"event": "ready", "run": old["run"]}, closed, OPENED)
    result = mesh("launch", "runs", "--offline")
    assert result.code == 0
    assert (
        "20290101T000000-bbbbbb  closed (stopped, verified)  2030-03-17 17:46:40 UTC  2nodes: a, b  2 h 1 min"
        in result.out
    )
    told = mesh("launch", "runs", "good", "--offline", "--json").json["recipes"][0]
    assert [run["state"] for run in told["runs"]] == ["closed", "open"]
    assert (told["runs"][0]["uptime_s"], told["launches"]) == (7265, 2)
    assert "never launched from here" in mesh("launch", "runs", "bare").err


def test_damaged_ledger_line_is_named_by_whoever_needs_it(mesh: Mesh, here: Path) -> None:
    ledger(here, {key: value for key, value in OPENED.items() if key != "port"})
    fault = "recipe good: run 20300101T000000-aaaaaa: damaged in runs.jsonl: port missing"
    for command in ("logs", "bench", "tmux"):
        result = mesh("launch", command, "good", "--dry-run")
        assert (result.code, result.err) == (3, f"mesh launch: {fault}\n")
    told = mesh("launch", "runs", "--json").json["recipes"][0]["runs"][0]
    assert (told["state"], told["why"]) == ("inconclusive", fault)
    ledger(here, {**OPENED, "nodes": "a"})
    assert "nodes is 'a', expected list" in mesh("launch", "logs", "good").err
    (here / "launches" / "good" / "runs.jsonl").write_text("{}\nnot json\n")
    ledger(here, {"run": OPENED["run"]}, {"run": 7}, [], OPENED, {"run": OPENED["run"], "event": 3})
    assert mesh("launch", "logs", "good", "--dry-run").code == 0
    (here / "launches" / "good" / "runs.jsonl").write_text("{}\nnot json\n")
    assert "no line of it opens a run" in mesh("launch", "logs", "good").err


def test_dry_runs_print_the_commands_and_reach_no_node(mesh: Mesh, here: Path) -> None:
    ledger(here, OPENED)
    logs = mesh("launch", "logs", "good", "--node", "b", "--tail", "7", "--dry-run")
    assert logs.out.splitlines()[1] == "# b: log"
    assert "label=mesh.rank=1" in logs.out
    assert 'exec docker logs --tail 7 "$c"' in logs.out
    assert (
        'exec docker logs --tail 7 -f "$c"'
        in mesh("launch", "logs", "good", "--tail", "7", "--follow", "--dry-run").out
    )
    assert mesh("launch", "health", "--dry-run").out.count("MESH_RUN=20300101T000000-aaaaaa") == 2
    assert "deployed by docker" in mesh("launch", "tmux", "good", "--dry-run").err
    steps = mesh("launch", "doctor", "--cluster", "2", "--dry-run", "--json").json["steps"]
    assert {step["node"] for step in steps} == {"a", "b"}
    assert {"fabric address", "ib_hca", "socket_ifname", "find the GID index"} <= {step["what"] for step in steps}
    told = mesh("launch", "bench", "good", "--suite", "depth", "--dry-run", "--json").json
    assert len(told["cells"]) == 4 * 2 * 2
    assert [Path(name).suffix for name in told["files"]] == [".md", ".json", ".log", ".toml", ".json"]
    assert told["cells"][0]["body"]["ignore_eos"] is True


@pytest.mark.parametrize(
    "argv",
    [
        ("logs", "good", "--follow", "--json"),
        ("health", "--watch", "--json"),
        ("bench", "good", "--depths", "0"),
        ("bench", "good", "--depths", "1,x"),
        ("bench", "good", "--label", "a/b"),
        ("report", "--json", "--out", "x"),
        ("exec", "--node", "nobody", "true"),
        ("health", "--cluster", "nothing"),
        ("doctor", "--cluster", "nothing"),
    ],
)
def test_wrong_command_lines_are_told(mesh: Mesh, here: Path, argv: tuple[str, ...]) -> None:
    ledger(here, OPENED)
    assert mesh("launch", *argv).code == 2


@pytest.mark.parametrize("form", ["table", "md", "html"])
def test_settings_in_force_are_shown_with_their_origins_in_every_form(form: str) -> None:
    told = Told(
        "r", None, None, settings=[Setting("max_num_seqs", "12", "x.env: <SEQS>"), Setting("eager", "", "here")]
    )
    shown = _rendered(form, [told], settings=True).decode()
    line = {
        "table": "r: max_num_seqs = 12 (x.env: <SEQS>)",
        "md": r"- max\_num\_seqs = 12 (x.env: \<SEQS\>)",
        "html": "<dt>max_num_seqs</dt><dd>12 (x.env: &lt;SEQS&gt;)</dd>",
    }[form]
    assert line in shown
    assert "on (here)" in shown
    assert ("Settings" in shown) == (form != "table")
