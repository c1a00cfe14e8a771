"""Effect of batching: requests and jobs with and without batches, on the CPU and an accelerator.

The accelerator is emulated: a batch takes 2.5 ms, and 0.25 ms per row. Two engines share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.call_patterns import STREAM_1, STREAM_16, CallPattern, probes
from benchmarks.client import Client, Figure
from benchmarks.interleaving import Probe, measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import PLAIN, THREADS, JobProbe, run_plain_onnx, run_synergai
from benchmarks.workloads import LAYERS, WIDTH, accelerated, layers
from profiler.dictionary.files import add_to_dictionary
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.errors import SynergaiError
from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.workloads import Workload

MAX_BATCH: Final = 8
UNBATCHED, BATCHED = "unbatched", f"batches of up to {MAX_BATCH}"
PATTERNS = (STREAM_1, STREAM_16)
JOB: Final = "job"
FIRST_ROW_S, ROW_S, ROWS = 0.00275, 0.00025, 32
"""Of the accelerator: seconds for a row alone and for each further one; rows per batch."""
LOOP: Final = ROWS / (FIRST_ROW_S + (ROWS - 1) * ROW_S)
ACCELERATOR, SHARED = "accelerator", "accelerator, two engines"
STREAM_32: Final = CallPattern("stream", ROWS)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Measure both engines through the gateway."""
    workloads = {UNBATCHED: layers(), BATCHED: layers(MAX_BATCH)}
    models = folder / "layers"
    for workload in workloads.values():
        workload.build(models)
    dictionary = _profile(list(workloads.values()), models, folder)
    async with contextlib.AsyncExitStack() as stack:
        gateway = stack.enter_context(
            run_synergai(folder / "batching", models, dictionary=dictionary)
        )
        probes_to_run = [
            probe
            for row, workload in workloads.items()
            for probe in probes(stack, row, gateway, workload, PATTERNS)
        ]
        plain = await stack.enter_async_context(
            run_plain_onnx(workloads[BATCHED].engine, models, MAX_BATCH)
        )
        job = JobProbe(gateway, workloads[BATCHED].engine)
        probes_to_run += [
            Probe(row=PLAIN, column=JOB, measure=plain.measure),
            Probe(row=BATCHED, column=JOB, measure=job.measure),
            *_accelerator_probes(stack, folder),
        ]
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    return Section(
        title="Batches",
        note=f"{LAYERS} dense layers of {WIDTH} x {WIDTH} on one thread, profiled beforehand; "
        f"plain ONNX Runtime computes batches of {MAX_BATCH} in a loop. The accelerator is "
        f"emulated, and computes batches of {ROWS} at {LOOP:,.0f}/s.",
        rows=[PLAIN, *workloads, ACCELERATOR, SHARED],
        columns=[*map(str, (*PATTERNS, STREAM_32)), JOB],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"throughput, batched relative to unbatched: {pattern}",
                value=measured.ratio(
                    "per_second", (BATCHED, str(pattern)), (UNBATCHED, str(pattern))
                ),
            )
            for pattern in PATTERNS
        ]
        + [
            Comparison(
                text="rate of a job, relative to plain ONNX Runtime",
                value=measured.ratio("per_second", (BATCHED, JOB), (PLAIN, JOB)),
                at_least=0.9,
            ),
            Comparison(
                text=f"rate of a job on the accelerator, relative to {LOOP:,.0f}/s",
                value=measured.combine("per_second", lambda rate: rate / LOOP, (ACCELERATOR, JOB)),
                at_least=0.9,
            ),
            Comparison(
                text="rate of two engines that share the accelerator, relative to one alone",
                value=measured.ratio(
                    "per_second", (SHARED, str(STREAM_32)), (ACCELERATOR, str(STREAM_32))
                ),
                at_least=0.9,
            ),
        ],
    )


def _accelerator_probes(stack: contextlib.AsyncExitStack, folder: Path) -> list[Probe]:
    """Start a worker with two engines on an emulated accelerator, and return what to measure."""
    models, dictionary = folder / "accelerated", folder / "accelerated.db"
    workloads = [accelerated(name, FIRST_ROW_S, ROW_S, ROWS) for name in ("first", "second")]
    sizes = [1 << power for power in range(1, ROWS.bit_length())]
    for workload in workloads:
        workload.build(models)
        entry = ProfileEntry(
            engine=EngineName(workload.engine),
            worker_class=WorkerClass("local"),
            configuration=Configuration(THREADS),
            qps=1 / FIRST_ROW_S,
            batch_qps=tuple(size / (FIRST_ROW_S + (size - 1) * ROW_S) for size in sizes),
        )
        add_to_dictionary(dictionary, [entry])
    # With one core, the engines take turns.
    gateway = stack.enter_context(
        run_synergai(folder / "accelerator", models, pinned=True, dictionary=dictionary)
    )
    clients = [Client(gateway, workload) for workload in workloads]
    for client in clients:
        stack.push_async_callback(client.close)

    async def measure_both(seconds: float) -> Figure:
        one, other = await asyncio.gather(*(each.stream(ROWS, seconds) for each in clients))
        return Figure(max(one.median_ms, other.median_ms), one.per_second + other.per_second)

    alone = partial(clients[0].stream, ROWS)
    return [
        Probe(row=ACCELERATOR, column=str(STREAM_32), measure=alone),
        Probe(row=SHARED, column=str(STREAM_32), measure=measure_both),
        Probe(row=ACCELERATOR, column=JOB, measure=JobProbe(gateway, workloads[0].engine).measure),
    ]


def _profile(workloads: Sequence[Workload], models: Path, folder: Path) -> Path:
    """Profile these engines; the gateway only allows batches for profiled engines.

    Returns:
        The path of the configuration dictionary.

    Raises:
        SynergaiError: the profiler failed; the message has its error output.
    """
    dictionary = folder / "layers.db"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "synergai", "profile", "--models", str(models)),
            *("--engines", ",".join(workload.engine for workload in workloads)),
            *("--worker-class", "local", "--threads", str(THREADS), "--power", "none"),
            *("--min-duration", "0.5", "--output", str(folder / "profile")),
            *("--dictionary", str(dictionary)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SynergaiError(f"profiling failed: {done.stderr.strip()}")
    return dictionary
