"""The rows of the table, one module each, in the order of the table."""

from bench.measure import Comparison
from bench.rows import (
    audit,
    check_bare,
    check_cwt,
    commitment,
    durable,
    energy,
    gateway_cpu,
    gguf_streams,
    grant,
    replays,
    seal,
    sealed_rate,
    weights,
)

ROWS: tuple[Comparison, ...] = (
    seal.COMPARISON,
    check_bare.COMPARISON,
    check_cwt.COMPARISON,
    audit.COMPARISON,
    grant.COMPARISON,
    weights.COMPARISON,
    durable.COMPARISON,
    *gateway_cpu.BARE,
    gateway_cpu.LEAST,
    *gateway_cpu.LITELLM,
    gateway_cpu.ADDED,
    gateway_cpu.MEMORY,
    gateway_cpu.START,
    *sealed_rate.COMPARISONS,
    energy.PYJOULES,
    energy.ZEUS,
    energy.CODECARBON,
    energy.POLLING,
    *replays.SERVES,
    *replays.PREFILL,
    commitment.COMPARISON,
    gguf_streams.COMPARISON,
)
