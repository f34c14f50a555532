"""The `openai` SDK as its readers use it, unchanged: the streaming helper, tools and structured output, both ways."""

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

told = json.load(sys.stdin)
ASK = {"model": told["model"], "temperature": 0, "max_tokens": 60}


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    warm: bool


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]


TOOLS = [openai.pydantic_function_tool(Weather)]
COLOUR = [{"role": "user", "content": "Name a colour as JSON."}]
STRICT = {"messages": told["conversation"], "tools": TOOLS}
FORCED = {"messages": COLOUR, "tools": TOOLS, "tool_choice": "required"}


def calls(completion: openai.types.chat.ParsedChatCompletion) -> list:
    made = completion.choices[0].message.tool_calls or []
    assert all(isinstance(one.function.parsed_arguments, Weather) for one in made)
    return [one.function.parsed_arguments.city for one in made]


def sync() -> dict:
    with openai.OpenAI(base_url=told["base_url"], api_key="none", max_retries=0) as client:
        chat = client.chat.completions
        with chat.stream(**ASK, messages=told["hello"]) as helper:
            said = "".join(event.delta for event in helper if event.type == "content.delta")
            assert said == helper.get_final_completion().choices[0].message.content
        with chat.stream(**ASK, **STRICT) as helper:
            for _ in helper:
                pass
            streamed = calls(helper.get_final_completion())
        parsed = chat.parse(**ASK, messages=COLOUR, response_format=Colour).choices[0].message.parsed
        return {
            "said": said,
            "plain": chat.create(**ASK, messages=told["hello"]).choices[0].message.content,
            "colour": parsed.model_dump(),
            "streamed": streamed,
            "chosen": calls(chat.parse(**ASK, **STRICT)),
            "forced": calls(chat.parse(**ASK, **FORCED)),
        }


async def both_ways() -> dict:
    async with openai.AsyncOpenAI(base_url=told["base_url"], api_key="none", max_retries=0) as client:
        chat = client.chat.completions
        async with chat.stream(**ASK, messages=told["hello"]) as helper:
            said = "".join([event.delta async for event in helper if event.type == "content.delta"])
            assert said == (await helper.get_final_completion()).choices[0].message.content
        async with chat.stream(**ASK, messages=COLOUR, response_format=Colour) as helper:
            async for _ in helper:
                pass
            parsed = (await helper.get_final_completion()).choices[0].message.parsed
        async with chat.stream(**ASK, **STRICT) as helper:
            async for _ in helper:
                pass
            streamed = calls(await helper.get_final_completion())
        return {
            "said": said,
            "plain": (await chat.create(**ASK, messages=told["hello"])).choices[0].message.content,
            "colour": parsed.model_dump(),
            "streamed": streamed,
            "chosen": calls(await chat.parse(**ASK, **STRICT)),
            "forced": calls(await chat.parse(**ASK, **FORCED)),
        }


print(json.dumps({"sync": sync(), "async": asyncio.run(both_ways())}))
