"""A port for a server that is another program and is told its port as a number: kept for it while it loads, and from
one start of it to the next."""

from __future__ import annotations

import socket
import sys
from typing import Self


class KeptPort:
    """A port of `host` that was free, bound and not listened on until `close`. Raises OSError.

    A server that sets SO_REUSEADDR, as vLLM and nearly all others do, can listen on it all the same: Linux lets
    sockets share an address that set this, as long as no more than one of them listens. Whoever asks the kernel for any
    port gets another, and so does every connection that goes out: vLLM takes its port many seconds after it was chosen,
    in which a busy machine hands out thousands. Other systems let nobody share it, and there it is not kept."""

    def __init__(self, host: str) -> None:
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, 0))
            self.number: int = self._socket.getsockname()[1]
        except BaseException:
            self.close()
            raise
        if sys.platform != "linux":
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()
