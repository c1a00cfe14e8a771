"""Serving overhead of a real model: MobileNet in a plain loop, by requests, and as a job."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from benchmarks.call_patterns import STREAM_3, UNARY_1, probes
from benchmarks.interleaving import Probe, measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import (
    GATEWAY,
    PINNED,
    PLAIN,
    SERVE,
    JobProbe,
    run_plain_onnx,
    run_serve,
    run_synergai,
)
from benchmarks.workloads import mobilenet

if TYPE_CHECKING:
    from pathlib import Path

NO_REQUESTS = "no requests"
"""Column of measurements that send no tensors."""


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Measure a plain loop, gateway, and a job of samples."""
    workload, models = mobilenet(), folder / "models"
    workload.build(models)
    async with contextlib.AsyncExitStack() as stack:
        gateway = stack.enter_context(run_synergai(folder / "mobilenet", models))
        pinned = stack.enter_context(run_synergai(folder / "mobilenet-pinned", models, pinned=True))
        one = stack.enter_context(run_serve(folder / "mobilenet-serve", models))
        plain = await stack.enter_async_context(run_plain_onnx(workload.engine, models))
        probes_to_run = [
            Probe(row=PLAIN, column=NO_REQUESTS, measure=plain.measure),
            *probes(stack, GATEWAY, gateway, workload, (UNARY_1, STREAM_3)),
            *probes(stack, SERVE, one.address, workload, (UNARY_1, STREAM_3)),
            *probes(stack, PINNED, pinned, workload, (UNARY_1, STREAM_3)),
            Probe(
                row=GATEWAY,
                column=NO_REQUESTS,
                measure=JobProbe(gateway, workload.engine).measure,
            ),
        ]
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    baseline = (PLAIN, NO_REQUESTS)
    return Section(
        title="MobileNet",
        note="MobileNet v1 in FP32 on one thread; a request has 602 kB. Without requests: a "
        "plain loop around ONNX Runtime, and a job on samples stored at the worker.",
        rows=[PLAIN, GATEWAY, SERVE, PINNED],
        columns=[NO_REQUESTS, str(UNARY_1), str(STREAM_3)],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"throughput relative to plain ONNX Runtime: {column}",
                value=measured.ratio("per_second", (GATEWAY, column), baseline),
                at_least=0.98,
            )
            for column in (str(STREAM_3), NO_REQUESTS)
        ],
    )
