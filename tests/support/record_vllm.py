"""Record the answers of a real vLLM server that the fake one is compared with.

    python -m tests.support.record_vllm URL COUNTING_URL

Both serve one model of 331 ids as `tiny` with a context of 2048 and are idle. The second was started with
`--enable-prompt-tokens-details --api-key k`, the first without flags that change an answer's shape. Written to
tests/engine/recorded/vllm-VERSION.json: what tells one run or machine from another is masked.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.vllm_calls import CALLS, COUNTING, KEY, KEYLESS, events_of, metric_lines, stopped_calls

FOLDER = Path(__file__).parent.parent / "engine" / "recorded"
HEADERS = ("Content-Type", "Transfer-Encoding")
_MASKED: dict[str, Any] = {"id": "masked", "root": "masked", "created": 0}


async def answered(http: aiohttp.ClientSession, url: str, call: tuple[str, str, Any]) -> dict[str, Any]:
    """What a server answers to a call: status, the headers that matter, and the body taken apart."""
    method, path, body = call
    async with http.request(method, url + path, json=body, allow_redirects=False) as response:
        text = await response.text()
        told: dict[str, Any] = {"status": response.status}
        told["headers"] = {name: response.headers[name] for name in HEADERS if name in response.headers}
        if response.content_type == "text/event-stream":
            return told | {"events": events_of(text)}
        if path == "/metrics" and response.status == 200:
            return told | {"metrics": metric_lines(text)}
        return told | {"body": json.loads(text) if text else None}


async def answers(url: str, counting: str) -> dict[str, Any]:
    """Those of a server to all calls, and of a second one that counts what is cached and wants a key."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession() as http, aiohttp.ClientSession(headers=headers) as keyed:
        told = {name: await answered(http, url, call) for name, call in CALLS.items()}
        (choice,) = told["plain"]["body"]["choices"]
        more = stopped_calls(choice["text"], choice["token_ids"])
        told |= {name: await answered(http, url, call) for name, call in more.items()}
        told |= {name: await answered(keyed, counting, call) for name, call in COUNTING.items()}
        told |= {name: await answered(http, counting, call) for name, call in KEYLESS.items()}
    return told


def masked(value: Any) -> Any:
    if isinstance(value, dict):
        # a model's id is its name, and a request's is drawn
        return {
            key: _MASKED[key] if key in _MASKED and not (key == "id" and inner == "tiny") else masked(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [masked(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"^(process_start_time_seconds) .*", r"\1 1.7e+09", value)
    return value


def main() -> None:
    told = asyncio.run(answers(*sys.argv[1:]))
    version = told["version"]["body"]["version"]
    path = FOLDER / f"vllm-{version}.json"
    path.write_text(json.dumps(masked(told), indent=1, ensure_ascii=False) + "\n")
    print(path.name, len(told), "answers")


if __name__ == "__main__":
    main()
