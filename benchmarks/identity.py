"""Gateway overhead: a one-element identity model in comparison with bare grpc.aio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks import client
from benchmarks.call_patterns import STREAM_1, STREAM_16, UNARY_1, UNARY_16, probes
from benchmarks.interleaving import measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import (
    ECHO,
    GATEWAY,
    GRPCIO,
    PINNED,
    SERVE,
    run_bare_grpc,
    run_serve,
    run_synergai,
)
from benchmarks.workloads import identity

if TYPE_CHECKING:
    from pathlib import Path

PROXY = "bare proxy and echo"
PATTERNS = (UNARY_1, UNARY_16, STREAM_1, STREAM_16)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Measure echo, proxy and gateway."""
    workload, models = identity(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        default = stack.enter_context(run_synergai(folder / "identity", models))
        pinned = stack.enter_context(run_synergai(folder / "identity-pinned", models, pinned=True))
        one = stack.enter_context(run_serve(folder / "identity-serve", models))
        grpcio = stack.enter_context(
            run_serve(folder / "identity-grpcio", models, "--grpc-server", "grpcio")
        )
        echo = stack.enter_context(run_bare_grpc("echo"))
        proxy = stack.enter_context(run_bare_grpc("proxy", echo))
        servers = [
            (ECHO, echo, client.ECHO),
            (PROXY, proxy, client.ECHO),
            (GATEWAY, default, client.TRITON),
            (SERVE, one.address, client.TRITON),
            (GRPCIO, grpcio.address, client.TRITON),
            (PINNED, pinned, client.TRITON),
        ]
        probes_to_run = [
            probe
            for row, address, dialect in servers
            for probe in probes(stack, row, address, workload, PATTERNS, dialect)
        ]
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    return Section(
        title="Gateway overhead",
        note="A one-element identity model, which leaves only the transport.",
        rows=[ECHO, PROXY, GATEWAY, SERVE, GRPCIO, PINNED],
        columns=[str(pattern) for pattern in PATTERNS],
        measured=measured,
        comparisons=[
            *(
                Comparison(
                    text=f"overhead over the bare proxy in bare unary echo times: {pattern}",
                    value=measured.combine(
                        "median_ms",
                        lambda gateway, proxy, echo: (gateway - proxy) / echo,
                        (GATEWAY, str(pattern)),
                        (PROXY, str(pattern)),
                        (ECHO, str(UNARY_1)),
                    ),
                )
                for pattern in (UNARY_1, STREAM_1)
            ),
            *(
                Comparison(
                    text=f"throughput relative to the bare proxy: {pattern}",
                    value=measured.ratio(
                        "per_second", (GATEWAY, str(pattern)), (PROXY, str(pattern))
                    ),
                )
                for pattern in (UNARY_16, STREAM_16)
            ),
            *(
                Comparison(
                    text=f"throughput, one process relative to two: {pattern}",
                    value=measured.ratio(
                        "per_second", (SERVE, str(pattern)), (GATEWAY, str(pattern))
                    ),
                )
                for pattern in (UNARY_16, STREAM_16)
            ),
            *(
                Comparison(
                    text=f"throughput, native server relative to grpcio: {pattern}",
                    value=measured.ratio(
                        "per_second", (SERVE, str(pattern)), (GRPCIO, str(pattern))
                    ),
                )
                for pattern in PATTERNS
            ),
            *(
                Comparison(
                    text=f"throughput, pinned relative to unpinned: {pattern}",
                    value=measured.ratio(
                        "per_second", (PINNED, str(pattern)), (GATEWAY, str(pattern))
                    ),
                )
                for pattern in (UNARY_16, STREAM_16)
            ),
        ],
    )
