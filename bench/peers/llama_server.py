"""A bare llama-server with the settings of a GGUF engine: `llama_server.py MODEL SLOTS` prints its address and serves
until its standard input ends."""

import sys

import xllamacpp as llama

params = llama.CommonParams()
params.model.path = sys.argv[1]
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_parallel = int(sys.argv[2])
params.n_ctx, params.n_batch, params.n_ubatch = 4096 * params.n_parallel, 512, 64
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.cache_type_k = params.cache_type_v = llama.ggml_type.GGML_TYPE_Q8_0
params.warmup = False
server = llama.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
