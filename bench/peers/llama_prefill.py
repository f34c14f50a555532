"""llama.cpp taking in a known sequence, over and over, for whoever writes to its standard input: the logits of all
places from `wanted` on are asked for, and nothing is done with them.

First line in: JSON with `path`, `ids`, `wanted`, `width`, `threads`. Then one line for each pass. One line out for each
line in: first the library's version, then nanoseconds of CPU time and on the clock.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ["OMP_WAIT_POLICY"] = "passive"  # before the library is there, whose threads would spin

import xllamacpp

from mesh.engine import gguf_abi
from mesh.engine.gguf_context import Feed
from mesh.engine.gguf_model import Model, ModelSettings


def main() -> None:
    work = json.loads(sys.stdin.readline())
    ids, width = work["ids"], work["width"]
    library = gguf_abi.open_library(Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so"))
    model = Model(library, ModelSettings(
        path=Path(work["path"]), context_tokens=4096, slots=1, kv_type="q8_0", flash_attention=True, n_batch=width,
        n_ubatch=width, threads=work["threads"], batch_threads=work["threads"], use_extra_bufts=True,
    ))  # fmt: skip
    batches = [
        [Feed(ids[i], i, 0, i >= work["wanted"]) for i in range(start, min(start + width, len(ids)))]
        for start in range(0, len(ids), width)
    ]
    print(version("xllamacpp"), flush=True)
    for _ in sys.stdin:
        model.forget(0)
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        for batch in batches:
            model.decode(batch)
        print(time.process_time_ns() - cpu, time.perf_counter_ns() - wall, flush=True)


if __name__ == "__main__":
    main()
