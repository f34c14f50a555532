"""Builds TOPLOC proofs of activations, over and over, for whoever writes to its standard input.

First line in: JSON with `tokens` and `width` (of a hidden state). Then one number of proofs a line. One line out for
each line in: first the versions, then nanoseconds of CPU time for all those.
"""

import json
import sys
import time
from importlib.metadata import version

import torch  # type: ignore[import-not-found]  # lives in another environment
from toploc import build_proofs_bytes  # type: ignore[import-not-found]  # lives in another environment

CHUNK, TOP = 32, 128  # what the package's own documentation uses


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    work = json.loads(sys.stdin.readline())
    shape = (1, work["width"])
    # none of the prompt's: with skip_prefill the first is taken for an output's
    states = [torch.randn(shape, dtype=torch.bfloat16) for _ in range(work["tokens"])]
    print(f"toploc {version('toploc')}, torch {torch.__version__}", flush=True)
    for line in sys.stdin:
        start = time.process_time_ns()
        for _ in range(int(line)):
            proofs = build_proofs_bytes(states, decode_batching_size=CHUNK, topk=TOP, skip_prefill=True)
        print(time.process_time_ns() - start, flush=True)
        assert len(proofs) == work["tokens"] // CHUNK


if __name__ == "__main__":
    main()
