"""SSH to nodes, with host keys that were pinned before: the one place that knows asyncssh.

A node whose key is another one is refused, and so is one of which no key is pinned. No agent, no configuration file and
no environment of the operator's has a say in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mesh.errors import HostKeyError, LaunchError, NodeUnreachable, UsageError
from mesh.launch.config import Node

CONNECT_S = 30.0  # a node that loads a model may take its time to let anybody in
SILENCE_S = 60.0
COMMAND_S = 60.0
MAX_SESSIONS = 8  # sshd's own limit is 10 for a connection
MAX_OUTPUT_CHARS = 1 << 20
MAX_LINE_CHARS = 1 << 16
# What is printed before it is not the command's: start-up files of the user's shell greet people.
BEGIN = "mesh-launch-begins"


@dataclass(frozen=True, slots=True)
class Done:
    """A command's end. `status` is None where a signal ended it."""

    status: int | None
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line that it said, for a message."""
        lines = [line for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no word of it"


@dataclass(frozen=True, slots=True)
class Login:
    """`known_hosts` is the text of a file with pinned keys, `silence_s` after how many seconds without a word a node
    counts as unreachable. Raises nothing by itself."""

    user: str
    key: Path
    known_hosts: str
    silence_s: float = SILENCE_S


@dataclass(slots=True)
class Host:
    """A connection to one node. Made by `connect`."""

    node: Node
    connection: Any
    _sessions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SESSIONS))

    async def run(self, command: str, *, timeout_s: float = COMMAND_S) -> Done:
        """Run a command of POSIX sh. Raises NodeUnreachable where the connection goes or the time is over: then nobody
        knows what became of it."""
        import asyncssh

        try:
            async with self._sessions, asyncio.timeout(timeout_s):
                done = await self.connection.run(
                    _for_sh(command), check=False, stdin=asyncssh.DEVNULL, errors="replace"
                )
        except TimeoutError:
            raise NodeUnreachable(f"node {self.node.name}: no end of a command within {timeout_s:g} s") from None
        except (asyncssh.Error, OSError) as e:
            raise NodeUnreachable(f"node {self.node.name}: the connection went: {_reason(e)}") from None
        return self._done(done)

    def _done(self, done: Any) -> Done:
        out, err = _text(done.stdout), _text(done.stderr)
        noise, begun, out = f"\n{out}".partition(f"\n{BEGIN}\n")
        if not begun:
            raise NodeUnreachable(f"node {self.node.name}: {_not_begun(err or noise)}")
        _, told, later = f"\n{err}".partition(f"\n{BEGIN}\n")
        status = done.exit_status if done.exit_signal is None else None
        return Done(status, out[:MAX_OUTPUT_CHARS], (later if told else err)[:MAX_OUTPUT_CHARS])

    async def feed(self, command: str, data: bytes, *, timeout_s: float = COMMAND_S) -> Done:
        """Run a command of POSIX sh that reads `data`. Raises NodeUnreachable."""
        import asyncssh

        try:
            async with self._sessions, asyncio.timeout(timeout_s):
                done = await self.connection.run(_for_sh(command), check=False, input=data, encoding=None)
        except TimeoutError:
            raise NodeUnreachable(f"node {self.node.name}: no end of a command within {timeout_s:g} s") from None
        except (asyncssh.Error, OSError) as e:
            raise NodeUnreachable(f"node {self.node.name}: the connection went: {_reason(e)}") from None
        return self._done(done)

    async def lines(self, command: str) -> AsyncIterator[str]:
        """What a command prints, a line at a time as it comes, errors among it; a line without an end is cut at
        MAX_LINE_CHARS. Whoever stops reading ends the session. Raises NodeUnreachable where the connection goes."""
        import asyncssh

        try:
            async with (
                self._sessions,
                self.connection.create_process(
                    _for_sh(command, errors=False), stdin=asyncssh.DEVNULL, stderr=asyncssh.STDOUT, errors="replace"
                ) as process,
            ):
                rest = noise = ""
                while line := await process.stdout.readline():
                    if line.rstrip("\n") == BEGIN:
                        break
                    noise = line
                else:
                    raise NodeUnreachable(f"node {self.node.name}: {_not_begun(noise)}")
                while chunk := await process.stdout.read(MAX_LINE_CHARS):
                    *whole, rest = (rest + chunk).split("\n")
                    for line in whole:
                        yield line
                    while len(rest) >= MAX_LINE_CHARS:
                        yield rest[:MAX_LINE_CHARS]
                        rest = rest[MAX_LINE_CHARS:]
                if rest:
                    yield rest
        except (asyncssh.Error, OSError) as e:
            raise NodeUnreachable(f"node {self.node.name}: the connection went: {_reason(e)}") from None

    async def open(self, port: int, *, host: str = "127.0.0.1") -> tuple[Any, Any]:
        """A byte stream to a port of the node, through the connection. Raises ConnectionRefusedError where nobody
        listens, NodeUnreachable where the connection is gone."""
        import asyncssh

        try:
            reader, writer = await self.connection.open_connection(host, port, encoding=None)
        except asyncssh.ChannelOpenError as e:
            if self.connection.is_closed():  # no channel opens, and that says nothing of the port
                raise NodeUnreachable(f"node {self.node.name}: the connection went: {_reason(e)}") from None
            raise ConnectionRefusedError(f"{self.node.name} port {port}: {_reason(e)}") from None
        except (asyncssh.Error, OSError) as e:
            raise NodeUnreachable(f"node {self.node.name}: the connection went: {_reason(e)}") from None
        return _Reader(self.node.name, reader), writer

    async def close(self) -> None:
        self.connection.abort()
        with contextlib.suppress(Exception):
            await self.connection.wait_closed()


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of a stream of asyncssh, whose end by a lost connection is the node's."""

    node: str
    reader: Any

    async def read(self, size: int) -> bytes:
        """Nothing at the end. Raises NodeUnreachable where the connection is gone."""
        import asyncssh

        try:
            data: bytes = await self.reader.read(size)
        except (asyncssh.Error, OSError) as e:
            raise NodeUnreachable(f"node {self.node}: the connection went: {_reason(e)}") from None
        return data


async def connect(node: Node, login: Login, *, timeout_s: float = CONNECT_S) -> Host:
    """Raises HostKeyError, NodeUnreachable, UsageError for a login that says too little."""
    try:
        import asyncssh
    except ImportError:
        raise UsageError("launching needs the extra: pip install 'servemesh[launch]'") from None
    if not login.user:
        raise UsageError("ssh_user: empty, and nodes are reached by it")
    if login.key == Path():
        raise UsageError("ssh_key_path: empty, and nodes are reached by it")
    pinned = _pinned(node, login.known_hosts)
    try:
        keys = [asyncssh.read_private_key(str(login.key))]
    except (asyncssh.KeyImportError, ValueError, OSError) as e:
        raise UsageError(f"ssh_key_path {login.key}: {_reason(e)}") from None
    try:
        trusted = asyncssh.import_known_hosts(pinned)
        readable = [key for key in pinned_keys(node, pinned) if _is_key(key)]
    except ValueError as e:
        raise UsageError(f"known_hosts: {_reason(e)}") from None
    if not readable:
        raise HostKeyError(f"node {node.name}: what known_hosts has of {_address(node)} is no key that can be read")
    try:
        async with asyncio.timeout(timeout_s):
            connection = await asyncssh.connect(
                node.ssh_ip, node.ssh_port, username=login.user, client_keys=keys, config=None, agent_path=None,
                known_hosts=trusted, keepalive_interval=login.silence_s / 4, keepalive_count_max=3,
            )  # fmt: skip
    except asyncssh.HostKeyNotVerifiable as e:
        raise HostKeyError(
            f"node {node.name}: shows another host key than the pinned one: {_reason(e)}; where that is meant, "
            "`mesh launch keys` pins it anew"
        ) from None
    except asyncssh.PermissionDenied as e:
        raise LaunchError(f"node {node.name}: {login.user} is not let in: {_reason(e)}") from None
    except TimeoutError:
        raise NodeUnreachable(f"node {node.name}: no connection to {_address(node)} within {timeout_s:g} s") from None
    except (asyncssh.Error, OSError) as e:
        raise NodeUnreachable(f"node {node.name}: {_address(node)}: {_reason(e)}") from None
    except ValueError as e:  # of a name that no login has
        raise UsageError(f"ssh_user {login.user!r}: {_reason(e)}") from None
    return Host(node, connection)


def _is_key(text: str) -> bool:
    import asyncssh

    try:
        asyncssh.import_public_key(text)
    except (asyncssh.KeyImportError, ValueError):
        return False
    return True


def pinned_keys(node: Node, text: str) -> list[str]:
    """The keys (`type base64`) that are pinned for a node. Raises HostKeyError where there is none."""
    words = [line.split() for line in _pinned(node, text).splitlines()]
    return [" ".join(line[1:3]) for line in words if not line[0].startswith("@")]


def _pinned(node: Node, text: str) -> str:
    """The lines that pin this node's keys. Without one, asyncssh would have nothing to check: refused before."""
    names = {_address(node), *([node.ssh_ip] if node.ssh_port == 22 else [])}
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    own = [line for line in lines if names & set(_patterns(line))]
    if not any(not line.startswith("@") for line in own):
        raise HostKeyError(
            f"node {node.name}: no host key of {_address(node)} is pinned; `mesh launch keys` collects it"
        )
    return "\n".join(own) + "\n"


def _patterns(line: str) -> list[str]:
    words = line.split()
    at = 1 if words and words[0].startswith("@") else 0
    return words[at].split(",") if len(words) > at else []


def _address(node: Node) -> str:
    return f"[{node.ssh_ip}]:{node.ssh_port}" if node.ssh_port != 22 else node.ssh_ip


async def host_key_line(node: Node, *, timeout_s: float = CONNECT_S) -> str:
    """The line that would pin the key which the node shows now. Whether it is the node's, a person says. Raises
    NodeUnreachable."""
    try:
        import asyncssh
    except ImportError:
        raise UsageError("launching needs the extra: pip install 'servemesh[launch]'") from None
    try:
        async with asyncio.timeout(timeout_s):
            key = await asyncssh.get_server_host_key(node.ssh_ip, node.ssh_port, config=None)
    except (TimeoutError, asyncssh.Error, OSError) as e:
        raise NodeUnreachable(f"node {node.name}: {_address(node)}: {_reason(e)}") from None
    if key is None:
        raise NodeUnreachable(f"node {node.name}: {_address(node)} shows no host key")
    return f"{_address(node)} {key.export_public_key('openssh').decode().strip()}"


class Hosts:
    """Connections to several nodes at once. A node that cannot be reached is kept with the reason."""

    def __init__(self, login: Login, nodes: Iterable[Node]) -> None:
        self._login, self._nodes = login, list(nodes)
        self.up: dict[str, Host] = {}
        self.down: dict[str, LaunchError] = {}

    def of(self, nodes: Iterable[Node]) -> Hosts:
        """The same connections, of these nodes alone. Whoever opened them closes them."""
        some = Hosts(self._login, nodes)
        some.up = {node.name: self.up[node.name] for node in some._nodes if node.name in self.up}
        some.down = {node.name: self.down[node.name] for node in some._nodes if node.name in self.down}
        return some

    async def __aenter__(self) -> Self:
        ends = await asyncio.gather(*(connect(node, self._login) for node in self._nodes), return_exceptions=True)
        for node, end in zip(self._nodes, ends, strict=True):
            if isinstance(end, Host):
                self.up[node.name] = end
            elif isinstance(end, LaunchError):
                self.down[node.name] = end
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, LaunchError):
                await self.__aexit__(None, None, None)
                raise end
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(host.close() for host in self.up.values()))


def _for_sh(command: str, *, errors: bool = True) -> str:
    """As the user's own shell takes it, whatever that is: the command is for sh, and says where it begins."""
    says = f'printf "\\n{BEGIN}\\n"; '  # on a line of its own, after whatever
    begins = says + says.replace(";", " >&2;") if errors else says
    return shlex.join(["exec", "sh", "-c", f'{begins}exec sh -c "$0"', command])


def _not_begun(said: str) -> str:
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no word of it")
    return f"the login shell there ended before it ran anything: {last[:300]}"


def _reason(error: BaseException) -> str:
    text = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).strip().rstrip(".").lower()


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else bytes(value).decode(errors="replace")  # type: ignore[call-overload]
