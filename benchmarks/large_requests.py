"""Gateway overhead of a 602 kB request to a trivial model."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING

from benchmarks.call_patterns import STREAM_1, STREAM_4, UNARY_1, UNARY_4, probes
from benchmarks.interleaving import measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import AGENT, GATEWAY, run_synergai
from benchmarks.workloads import large

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = (UNARY_1, UNARY_4, STREAM_1, STREAM_4)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Measure agent and gateway."""
    workload, models = large(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        servers = stack.enter_context(run_synergai(folder / "large", models))
        probes_to_run = [
            *probes(stack, AGENT, servers.agent, workload, PATTERNS),
            *probes(stack, GATEWAY, servers.gateway, workload, PATTERNS),
        ]
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    return Section(
        title="Large requests",
        note="602 kB in, one element out.",
        rows=[AGENT, GATEWAY],
        columns=[str(pattern) for pattern in PATTERNS],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"gateway overhead: {pattern}",
                value=measured.combine(
                    "median_ms", operator.sub, (GATEWAY, str(pattern)), (AGENT, str(pattern))
                ),
                unit=" ms",
                at_most=1.0,
            )
            for pattern in PATTERNS
        ],
    )
