"""What a hop costs: a one-element identity model, beside bare grpc.aio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks import client
from benchmarks.call_patterns import STREAM_1, STREAM_16, UNARY_1, UNARY_16, probes
from benchmarks.interleaving import in_turns
from benchmarks.report import Comparison, Section
from benchmarks.servers import AGENT, APART, GATEWAY, bare, ours
from benchmarks.workloads import identity

if TYPE_CHECKING:
    from pathlib import Path

ECHO = "bare echo"
PROXY = "bare proxy and echo"
WAYS = (UNARY_1, UNARY_16, STREAM_1, STREAM_16)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Echo, proxy, agent and gateway in turns."""
    workload, models = identity(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        own = stack.enter_context(ours(folder / "identity", models))
        apart = stack.enter_context(ours(folder / "identity-apart", models, apart=True))
        echo = stack.enter_context(bare("echo"))
        proxy = stack.enter_context(bare("proxy", echo))
        servers = [
            (ECHO, echo, client.ECHO),
            (PROXY, proxy, client.ECHO),
            (AGENT, own.agent, client.TRITON),
            (GATEWAY, own.gateway, client.TRITON),
            (APART, apart.gateway, client.TRITON),
        ]
        asked = [
            probe
            for row, address, dialect in servers
            for probe in probes(stack, row, address, workload, WAYS, dialect)
        ]
        measured = await in_turns(asked, seconds, rounds)
    return Section(
        title="A hop",
        note="A one-element identity model: what remains is the way there and back.",
        rows=[ECHO, PROXY, AGENT, GATEWAY, APART],
        columns=[str(way) for way in WAYS],
        measured=measured,
        comparisons=[
            *(
                Comparison(
                    text=f"what the gateway adds to the agent, in bare unary echoes: {way}",
                    value=measured.combined(
                        "median_ms",
                        lambda gateway, agent, echo: (gateway - agent) / echo,
                        (GATEWAY, str(way)),
                        (AGENT, str(way)),
                        (ECHO, str(UNARY_1)),
                    ),
                    at_most=1.0,
                )
                for way in (UNARY_1, STREAM_1)
            ),
            *(
                Comparison(
                    text=f"requests per second of the bare proxy: {way}",
                    value=measured.ratio("per_second", (GATEWAY, str(way)), (PROXY, str(way))),
                )
                for way in (UNARY_16, STREAM_16)
            ),
            *(
                Comparison(
                    text=f"requests per second on cores of their own by those without: {way}",
                    value=measured.ratio("per_second", (APART, str(way)), (GATEWAY, str(way))),
                )
                for way in (UNARY_16, STREAM_16)
            ),
        ],
    )
