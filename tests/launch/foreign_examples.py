"""Recipes in the forms of others, made up for these tests."""

from __future__ import annotations

EUGR = r"""
recipe_version: "1"
name: Example
description: an example
model: org/example
container: vllm-node
cluster_only: true
mods: []
defaults:
  port: 8000
  host: 0.0.0.0
  tensor_parallel: 2
  gpu_memory_utilization: 0.8
  unread: 1
env:
  VLLM_MARLIN_USE_ATOMIC_ADD: 1
  EMPTY:
command: |
  # a comment
  vllm serve org/example \
    --host {host} --port {port} \
    --gpu-memory-utilization {gpu_memory_utilization} \
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}' \
    -tp {tensor_parallel}
"""

SPARKRUN = """
recipe_version: "2"
model: org/example
runtime: sglang
container: registry.example/sglang:v1
min_nodes: 2
max_nodes: 2
metadata:
  description: an example
executor_config:
  shm_size: 64gb
  user: root
defaults:
  port: 8000
  tensor_parallel: 2
env: {}
command: |
  sglang serve --model-path {model} --tp {tensor_parallel} --port {port}
pre_exec:
  - echo before
"""

VLLM = """
meta: {title: Example, date_added: 2026-01-01}
model:
  model_id: org/example
  min_vllm_version: "0.30.0"
  base_args: ["--trust-remote-code"]
  base_env: {VLLM_A: 1}
  docker_image: {nvidia: vllm/vllm-openai:v1, amd: vllm/vllm-openai-rocm:v1}
features:
  tools: {description: d, args: ["--enable-auto-tool-choice"]}
  spec: {args: ["--speculative-config", "{}"]}
opt_in_features: [spec]
variants:
  default: {precision: fp8}
  fp4: {model_id: org/example-fp4, extra_args: ["--kv-cache-dtype", "fp8"], extra_env: {VLLM_A: 2}}
compatible_strategies: [single_node_tp]
hardware_overrides:
  amd: {extra_args: ["--attention-backend", "X"]}
strategy_overrides:
  single_node_tp: {tp: 8}
guide: words
surprise: {deep: [{er: 1}]}
"""

STATEFUL = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: two}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: engine
        image: docker.io/org/sglang:latest
        command: [/bin/bash, -c]
        args:
        - |
          python3 -m sglang.launch_server \\
          --model /models \\
          --dist-init-addr head:5000 \\
          --tensor-parallel-size 16 \\
          --nnodes 2 \\
          --node-rank $POD_INDEX \\
          --host 0.0.0.0 \\
          --port 8000 \\
          --enable-metrics
        resources:
          limits: {nvidia.com/gpu: "8"}
          requests:
---
apiVersion: v1
kind: Service
metadata: {name: rendezvous}
spec: {ports: [{port: 5000, targetPort: 5000}]}
---
apiVersion: v1
kind: Service
metadata: {name: serving}
spec:
  ports:
  - {name: serving, port: 8000, targetPort: 8000}
  - {name: metrics, port: 8080, targetPort: 8080}
"""

COMPOSE = """
services:
  engine:
    image: org/sglang:latest
    environment: {HF_TOKEN: <secret>}
    entrypoint: python3 -m sglang.launch_server
    command:
      --model-path org/example
      --host 0.0.0.0
      --port 30000
    healthcheck:
      test: ["CMD-SHELL", "curl -f http://localhost:30000/health || exit 1"]
"""

COMPOSE_ENV = r"""
services:
  engine:
    image: ${IMAGE:-runtime:stage-c}
    environment:
      DRAFT: "${DRAFT:-5}"
    command:
      - bash
      - -lc
      - >
        export PATH="/opt/bin:$${PATH:-}";
        CONFIG="{\"tokens\":${DRAFT:-5}}";
        exec /opt/bin/vllm serve ${MODEL:-org/old}
        --host ${BIND:-127.0.0.1}
        --max-num-seqs ${SEQS:-6}
        --max-cudagraph-capture-size $$(( ${SEQS:-6} * (${DRAFT:-5} + 1) ))
        --gpu-memory-utilization ${SHARE:-0.80}
        --speculative-config "$${CONFIG}"
        ${HEADLESS:+--headless}
"""

ENV_FILE = """
# an example
MODEL=org/old
BIND=0.0.0.0
SEQS=12
SHARE=0.85
VLLM_ENGINE_READY_TIMEOUT_S=3600
"""

RUNNER = """
recipe_version: "2"
model: org/new
runtime: vllm
container: registry.example/runtime@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
defaults: {host: 0.0.0.0, seqs: 6, share: 0.78}
env: {VLLM_ENGINE_READY_TIMEOUT_S: "3600"}
command: vllm serve {model} --host {host} --max-num-seqs {seqs} --gpu-memory-utilization {share}
"""

# A kind of somebody's own, whose pods stand in a list, with a comment in a script that it brings.
OPERATED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: patches}
data:
  patch.py: |
    # Works around a fault of the
    # registry.example/engine:big-flash image.
    print("patched")
---
apiVersion: example.com/v1
kind: GraphDeployment
metadata: {name: graph}
spec:
  components:
  - name: Frontend
    podTemplate: {spec: {containers: [{name: main, image: "registry.example/frontend:1.4"}]}}
  - name: Worker
    replicas: 1
    podTemplate:
      spec:
        containers:
        - name: main
          image: registry.example/engine:big-flash@sha256:DIGEST
          command: [bash, -lc]
          args: [exec python3 -m somebody.worker --model "$found" --tensor-parallel-size 8]
          resources: {limits: {nvidia.com/gpu: "8"}, requests: }
""".replace("DIGEST", "c" * 64)

# What an engine is installed from, in a form that nobody else has.
PROFILE = """
schema_version: 1
id: engine-nightly
stability: nightly
install:
  method: docker_image
  spec: registry.example/engine:nightly-1acd67a795ebccdf9b9db7697ae9082058301657
notes: "held at nightly-1acd67a7, as patches are made for it"
"""
