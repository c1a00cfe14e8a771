"""What it is worth to compute requests together that wait: one engine with batches, one without."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.call_patterns import STREAM_1, STREAM_16, probes
from benchmarks.interleaving import in_turns
from benchmarks.report import Comparison, Section
from benchmarks.servers import THREADS, ours
from benchmarks.workloads import LAYERS, WIDTH, layers
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.workloads import Workload

MAX_BATCH: Final = 8
ALONE, TOGETHER = "each by itself", f"batches of up to {MAX_BATCH}"
WAYS = (STREAM_1, STREAM_16)


async def measure(folder: Path, seconds: float, rounds: int) -> Section:
    """Both engines through the gateway, in turns."""
    workloads = {ALONE: layers(), TOGETHER: layers(MAX_BATCH)}
    models = folder / "layers"
    for workload in workloads.values():
        workload.build(models)
    dictionary = _profiled(list(workloads.values()), models, folder)
    async with contextlib.AsyncExitStack() as stack:
        own = stack.enter_context(ours(folder / "batching", models, dictionary=dictionary))
        asked = [
            probe
            for row, workload in workloads.items()
            for probe in probes(stack, row, own.gateway, workload, WAYS)
        ]
        measured = await in_turns(asked, seconds, rounds)
    return Section(
        title="Batches",
        note=f"{LAYERS} dense layers of {WIDTH} x {WIDTH} on one thread, profiled before.",
        rows=list(workloads),
        columns=[str(way) for way in WAYS],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"requests per second with batches by those without: {way}",
                value=measured.ratio("per_second", (TOGETHER, str(way)), (ALONE, str(way))),
            )
            for way in WAYS
        ],
    )


def _profiled(workloads: Sequence[Workload], models: Path, folder: Path) -> Path:
    """The dictionary of these engines: without one the gateway lets no batches be made.

    Raises:
        SynergaiError: the profiler failed; in its words.
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
        raise SynergaiError(f"the engines were not profiled: {done.stderr.strip()}")
    return dictionary
