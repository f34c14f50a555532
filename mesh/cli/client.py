"""The little HTTP that `mesh chat` needs: JSON requests, and answers that come as server-sent events."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from mesh.errors import NotFound, Refused, UsageError

# The gateway sends a comment into a silent stream far more often than this.
TIMEOUT_S = 120
MAX_ANSWER_BYTES = 1 << 28
MAX_LINE_BYTES = 1 << 27  # one event may hold a disclosure
_NO_HEADER = "the API key holds characters that no header can carry"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's address, and the credential to present there."""

    url: str
    api_key: str | None = None

    def get(self, path: str, *, accept: str = "application/json") -> bytes:
        """Raises as `_opened` does."""
        with self._opened("GET", path, None, accept) as response:
            return response.read(MAX_ANSWER_BYTES)

    def get_json(self, path: str) -> Any:
        return _json(self.get(path), path)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a streamed answer as they come. Raises Refused or OSError where the stream reports an error,
        or ends without `[DONE]`."""
        with self._opened("POST", path, body, "text/event-stream") as response:
            while line := response.readline(MAX_LINE_BYTES):
                field, _, value = line.decode(errors="replace").partition(":")
                if field != "data":
                    continue
                if value.strip() == "[DONE]":
                    return
                event = _json(value.encode(), path)
                if not isinstance(event, dict):
                    raise ConnectionError(f"{self.url}: sent an event that is not an object")
                if "error" in event:
                    raise _refusal(event, self.url, 0)
                yield event
        raise ConnectionError(f"{self.url}: the answer ended before it was sealed")

    @contextmanager
    def _opened(
        self, method: str, path: str, body: Mapping[str, Any] | None, accept: str
    ) -> Iterator[http.client.HTTPResponse]:
        """A response with status 2xx. Raises Refused for a 4xx, OSError for all else that goes wrong."""
        connection, base = _connection(self.url)
        headers = {"Accept": accept, "Content-Type": "application/json"}
        if self.api_key:
            if not self.api_key.isprintable():  # a line break, say; the error of http.client would show the key
                raise UsageError(_NO_HEADER)
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection.request(method, base + path, None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
            if response.status >= 300:
                told = response.read(1 << 20)
                raise _refusal(_json_or_none(told), self.url, response.status)
            yield response
        except http.client.HTTPException as e:
            raise ConnectionError(f"{self.url}: {type(e).__name__}: {e}") from None
        except UnicodeEncodeError:
            raise UsageError(_NO_HEADER) from None
        except OSError as e:
            if e.errno is None and type(e) is ConnectionError:  # raised here, in words already
                raise
            # without the errno, and as no BrokenPipeError: that would look like a closed stdout
            raise ConnectionError(f"{self.url}: {(e.strerror or str(e)).lower()}") from None
        finally:
            connection.close()


def quoted(name: str) -> str:
    return quote(name, safe=":")


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as the resolver will: a name like `a..b` is none
    except ValueError as e:
        raise UsageError(f"--url {url}: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url}: expected http://HOST:PORT")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    base = parts.path.rstrip("/").removesuffix("/v1")  # OpenAI's clients want the /v1, so people paste it
    return kind(parts.hostname, port, timeout=TIMEOUT_S), base


def _refusal(told: Any, url: str, status: int) -> Exception:
    """An error body as an exception: what the request was at fault for, or what the gateway could not do."""
    error = told.get("error") if isinstance(told, dict) else None
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or f"status {status}")[:2000]
    code = str(error.get("code") or error.get("type") or "refused")[:200]
    if status == 404:
        return NotFound(f"{url}: {message}", code=code)
    if 400 <= status < 500:
        return Refused(f"{url}: {message}", code=code)
    return ConnectionError(f"{url}: {message} ({code})")


def _json(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ConnectionError(f"{what}: the answer is not JSON") from None


def _json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
