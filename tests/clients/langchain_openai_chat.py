"""LangChain's OpenAI chat model, unchanged: invoke, stream, tools and structured output, both ways."""

import asyncio
import json
import sys
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

told = json.load(sys.stdin)
model = ChatOpenAI(
    model=told["model"], base_url=told["base_url"], api_key="none", max_retries=0, temperature=0, max_tokens=60
)
HELLO = told["hello"][0]["content"]


class Colour(BaseModel):
    """A colour."""

    name: Literal["red", "green", "blue"]
    warm: bool


@tool
def Weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return "fine"


def conversation() -> list:
    read = []
    for message in told["conversation"]:
        match message["role"]:
            case "user":
                read.append(HumanMessage(message["content"]))
            case "assistant":
                (call,) = message["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                made = {"name": call["function"]["name"], "args": arguments, "id": call["id"]}
                read.append(AIMessage("", tool_calls=[made]))
            case "tool":
                read.append(ToolMessage(message["content"], tool_call_id=message["tool_call_id"]))
    return read


def cities(message: AIMessage) -> list:
    return [call["args"]["city"] for call in message.tool_calls]


strict = model.bind_tools([Weather], strict=True)
once = model.bind_tools([Weather], parallel_tool_calls=False)
forced = model.bind_tools([Weather], tool_choice="Weather")
by_schema = model.with_structured_output(Colour, method="json_schema")
by_tool = model.with_structured_output(Colour, method="function_calling")


def joined(chunks: list) -> AIMessage:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def sync() -> dict:
    answer = model.invoke(HELLO)
    return {
        "plain": answer.content,
        "said": "".join(chunk.content for chunk in model.stream(HELLO)),
        "usage": answer.usage_metadata,
        "chosen": cities(strict.invoke(conversation())),
        "streamed": cities(joined(list(strict.stream(conversation())))),
        "once": cities(once.invoke(conversation())),
        "forced": cities(forced.invoke(HELLO)),
        "colours": [one.invoke("Name a colour.").model_dump() for one in (by_schema, by_tool)],
    }


async def both_ways() -> dict:
    answer = await model.ainvoke(HELLO)
    return {
        "plain": answer.content,
        "said": "".join([chunk.content async for chunk in model.astream(HELLO)]),
        "usage": answer.usage_metadata,
        "chosen": cities(await strict.ainvoke(conversation())),
        "streamed": cities(joined([chunk async for chunk in strict.astream(conversation())])),
        "once": cities(await once.ainvoke(conversation())),
        "forced": cities(await forced.ainvoke(HELLO)),
        "colours": [(await one.ainvoke("Name a colour.")).model_dump() for one in (by_schema, by_tool)],
    }


print(json.dumps({"sync": sync(), "async": asyncio.run(both_ways())}))
