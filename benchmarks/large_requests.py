"""What the gateway adds to a request of 602 kB whose answer costs hardly any arithmetic."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING

from benchmarks.call_patterns import STREAM_1, STREAM_4, UNARY_1, UNARY_4, probes
from benchmarks.interleaving import in_turns
from benchmarks.report import Comparison, Section
from benchmarks.servers import AGENT, GATEWAY, ours
from benchmarks.workloads import large

if TYPE_CHECKING:
    from pathlib import Path

WAYS = (UNARY_1, UNARY_4, STREAM_1, STREAM_4)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Agent and gateway in turns."""
    workload, models = large(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        own = stack.enter_context(ours(folder / "large", models))
        asked = [
            *probes(stack, AGENT, own.agent, workload, WAYS),
            *probes(stack, GATEWAY, own.gateway, workload, WAYS),
        ]
        measured = await in_turns(asked, seconds, rounds)
    return Section(
        title="Large requests",
        note="602 kB in, one element out.",
        rows=[AGENT, GATEWAY],
        columns=[str(way) for way in WAYS],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"what the gateway adds to the agent: {way}",
                value=measured.combined(
                    "median_ms", operator.sub, (GATEWAY, str(way)), (AGENT, str(way))
                ),
                unit=" ms",
                at_most=1.0,
            )
            for way in WAYS
        ],
    )
