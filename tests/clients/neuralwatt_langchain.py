"""LangChain's Neuralwatt chat model and its callback that adds energy up, pointed at another server."""

import json
import sys

from langchain_neuralwatt import ChatNeuralwatt, NeuralwattEnergyCallback

told = json.load(sys.stdin)
model = ChatNeuralwatt(model=told["model"], base_url=told["base_url"], api_key="none", max_retries=0)
tally = NeuralwattEnergyCallback()
answers = [model.invoke("hello", config={"callbacks": [tally]}) for _ in range(2)]
streamed = "".join(chunk.content for chunk in model.stream("hello"))
print(
    json.dumps(
        {
            "texts": [answer.content for answer in answers],
            "metadata": [answer.response_metadata for answer in answers],
            "summary": tally.summary(),
            "streamed": streamed,
        }
    )
)
