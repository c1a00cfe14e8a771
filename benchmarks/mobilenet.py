"""What serving costs a real model: MobileNet, plain, asked with tensors, and as a job."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks.call_patterns import STREAM_3, UNARY_1, probes
from benchmarks.interleaving import Probe, in_turns
from benchmarks.report import Comparison, Section
from benchmarks.servers import AGENT, APART, GATEWAY, PLAIN, Job, ours, plain
from benchmarks.workloads import photograph

if TYPE_CHECKING:
    from pathlib import Path

NO_REQUESTS = "no requests"
"""Column of what runs the model without being sent tensors."""


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """A plain loop, agent, gateway, and a job of samples in turns."""
    workload, models = photograph(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        own = stack.enter_context(ours(folder / "photographs", models))
        apart = stack.enter_context(ours(folder / "photographs-apart", models, apart=True))
        alone = await stack.enter_async_context(plain(workload.engine, models))
        asked = [
            Probe(row=PLAIN, column=NO_REQUESTS, measure=alone.measure),
            *probes(stack, AGENT, own.agent, workload, (UNARY_1, STREAM_3)),
            *probes(stack, GATEWAY, own.gateway, workload, (UNARY_1, STREAM_3)),
            *probes(stack, APART, apart.gateway, workload, (UNARY_1, STREAM_3)),
            Probe(
                row=GATEWAY,
                column=NO_REQUESTS,
                measure=Job(own.gateway, workload.engine).measure,
            ),
        ]
        measured = await in_turns(asked, seconds, rounds)
    baseline = (PLAIN, NO_REQUESTS)
    return Section(
        title="A real model",
        note="MobileNet v1 in FP32 on one thread; a request carries 602 kB. Without requests: a "
        "plain loop around ONNX Runtime, and a job of samples that are on the worker.",
        rows=[PLAIN, AGENT, GATEWAY, APART],
        columns=[NO_REQUESTS, str(UNARY_1), str(STREAM_3)],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"queries per second of plain ONNX Runtime: {column}",
                value=measured.ratio("per_second", (GATEWAY, column), baseline),
                at_least=0.98,
            )
            for column in (str(STREAM_3), NO_REQUESTS)
        ],
    )
