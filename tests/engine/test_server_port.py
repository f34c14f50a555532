"""A port that is kept for a server of our own."""

from __future__ import annotations

import socket
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from mesh.engine.server_port import KeptPort

HOST = "127.0.0.1"
SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
print("up", flush=True)
server.serve_forever()
"""


def taken(port: int, host: str = HOST) -> bool:
    """Whether nobody can have it who does not share."""
    with socket.socket() as other:
        try:
            other.bind((host, port))
        except OSError:
            return True
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server share it")
def test_kept_port_is_the_servers_at_each_start_and_nobody_elses_between() -> None:
    with KeptPort(HOST) as port:
        for _ in range(2):
            assert taken(port.number)
            assert taken(port.number, "")
            with subprocess.Popen(
                [sys.executable, "-I", "-c", SERVER, str(port.number)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            ) as server:  # fmt: skip
                assert server.stdout is not None
                assert server.stdout.readline() == "up\n"
                client = HTTPConnection(HOST, port.number, timeout=60)
                client.request("HEAD", "/")
                assert client.getresponse().status == 200
                client.close()
                server.kill()


# Nine of the ten ports that this kernel hands out are left, and no tenth comes, neither to who asks for any nor to a
# connection that goes out.
ALL_BUT_ONE = """
import socket
from mesh.engine.server_port import KeptPort
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40009")
port = KeptPort("127.0.0.1")
listener = socket.socket()
listener.bind(("127.0.0.1", 30000))
listener.listen(16)

def bound(host, reuse):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    one.bind((host, 0))
    return one

def connected():
    return socket.create_connection(("127.0.0.1", 30000))

for get in (lambda: bound("127.0.0.1", 0), lambda: bound("", 0), lambda: bound("127.0.0.1", 1), connected):
    had = []
    try:
        while True:
            had.append(get())
    except OSError:
        print(len(had), port.number in [one.getsockname()[1] for one in had])
    for one in had:
        one.close()
"""


def test_kernel_hands_out_every_port_but_the_kept_one() -> None:
    alone = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "-"]
    try:
        able = subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("this machine gives nobody a network of his own")
    told = subprocess.run([*alone, sys.executable, "-c", ALL_BUT_ONE], capture_output=True, text=True, check=False)
    assert told.stdout.splitlines() == ["9 False"] * 4, told.stderr
