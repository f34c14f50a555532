"""The `llm` tool with its Neuralwatt plugin, pointed at another server: what it keeps of its answers."""

import asyncio
import json
import sys

import llm_neuralwatt
import sqlite_utils
from llm.logs import LogStore
from llm.migrations import migrate

told = json.load(sys.stdin)
where = {"model_name": told["model"], "api_base": told["base_url"]}


def logged() -> list:
    """The answers as the tool's own log has them."""
    database = sqlite_utils.Database(memory=True)
    migrate(database)
    model = llm_neuralwatt.NeuralWattChat("neuralwatt/here", **where)
    answers = []
    for stream in (False, True):
        response = model.prompt("hello", stream=stream, key="none")
        text = response.text()
        response.log_to_db(database)
        answers.append({"text": text, **LogStore(database).turn_response_json(response.id)})
    return answers


async def asynchronous() -> dict:
    model = llm_neuralwatt.NeuralWattAsyncChat("neuralwatt/here-async", **where)
    response = model.prompt("hello", stream=True, key="none")
    text = await response.text()
    return {"text": text, **response.response_json}


plain, streamed = logged()
print(json.dumps({"plain": plain, "streamed": streamed, "async": asyncio.run(asynchronous())}))
