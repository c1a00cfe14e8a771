"""A 602 kB request to a trivial model, in comparison with bare grpc.aio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks import client
from benchmarks.call_patterns import STREAM_1, STREAM_4, UNARY_1, UNARY_4, probes
from benchmarks.interleaving import measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import DISCARD, ECHO, GATEWAY, SERVE, run_bare_grpc, run_serve, run_synergai
from benchmarks.workloads import large

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = (UNARY_1, UNARY_4, STREAM_1, STREAM_4)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Measure two bare servers and the gateway, with its agent apart and in its process."""
    workload, models = large(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        gateway = stack.enter_context(run_synergai(folder / "large", models))
        serve = stack.enter_context(run_serve(folder / "large-serve", models))
        echo = stack.enter_context(run_bare_grpc("echo"))
        discard = stack.enter_context(run_bare_grpc("discard"))
        probes_to_run = [
            *probes(stack, ECHO, echo, workload, PATTERNS, client.ECHO),
            *probes(stack, DISCARD, discard, workload, PATTERNS, client.ECHO),
            *probes(stack, GATEWAY, gateway, workload, PATTERNS),
            *probes(stack, SERVE, serve.address, workload, PATTERNS),
        ]
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    return Section(
        title="Large requests",
        note=(
            "602 kB in, one element out. What a server adds to the median of a bare server that "
            "discards the request, in medians of a bare echo, which returns all of it."
        ),
        rows=[ECHO, DISCARD, GATEWAY, SERVE],
        columns=[str(pattern) for pattern in PATTERNS],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"{server}: {pattern}",
                value=measured.combine(
                    "median_ms",
                    lambda served, discarded, echoed: (served - discarded) / echoed,
                    *((row, str(pattern)) for row in (server, DISCARD, ECHO)),
                ),
                at_most=2.0,
            )
            for server in (GATEWAY, SERVE)
            for pattern in PATTERNS
        ],
    )
