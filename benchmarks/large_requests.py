"""A 602 kB request to a trivial model, in comparison with bare grpc.aio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks import client
from benchmarks.call_patterns import STREAM_1, STREAM_4, UNARY_1, UNARY_4, probes
from benchmarks.interleaving import measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import ECHO, GATEWAY, run_bare_grpc, run_synergai
from benchmarks.workloads import large

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = (UNARY_1, UNARY_4, STREAM_1, STREAM_4)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Measure a bare echo and the gateway."""
    workload, models = large(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        gateway = stack.enter_context(run_synergai(folder / "large", models))
        echo = stack.enter_context(run_bare_grpc("echo"))
        probes_to_run = [
            *probes(stack, ECHO, echo, workload, PATTERNS, client.ECHO),
            *probes(stack, GATEWAY, gateway, workload, PATTERNS),
        ]
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    return Section(
        title="Large requests",
        note="602 kB in, one element out; the bare echo returns all of it.",
        rows=[ECHO, GATEWAY],
        columns=[str(pattern) for pattern in PATTERNS],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"median in bare echoes: {pattern}",
                value=measured.ratio("median_ms", (GATEWAY, str(pattern)), (ECHO, str(pattern))),
            )
            for pattern in PATTERNS
        ],
    )
