"""Effect of batching: the same engine with and without batches."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.call_patterns import STREAM_1, STREAM_16, probes
from benchmarks.interleaving import measure_interleaved
from benchmarks.report import Comparison, Section
from benchmarks.servers import THREADS, run_synergai
from benchmarks.workloads import LAYERS, WIDTH, layers
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.workloads import Workload

MAX_BATCH: Final = 8
UNBATCHED, BATCHED = "unbatched", f"batches of up to {MAX_BATCH}"
PATTERNS = (STREAM_1, STREAM_16)


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
        measured = await measure_interleaved(probes_to_run, seconds, rounds)
    return Section(
        title="Batches",
        note=f"{LAYERS} dense layers of {WIDTH} x {WIDTH} on one thread, profiled beforehand.",
        rows=list(workloads),
        columns=[str(pattern) for pattern in PATTERNS],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"throughput, batched relative to unbatched: {pattern}",
                value=measured.ratio(
                    "per_second", (BATCHED, str(pattern)), (UNBATCHED, str(pattern))
                ),
            )
            for pattern in PATTERNS
        ],
    )


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
            "--while-serving",
            *("--dictionary", str(dictionary)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SynergaiError(f"profiling failed: {done.stderr.strip()}")
    return dictionary
