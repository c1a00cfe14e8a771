"""A measurement in its own process: ``python -m profiler.measuring.measuring_process``.

LoadGen keeps its state per process, so every run gets one. LoadGen, or the built-in timer, drives
an engine host in MLPerf's Single Stream scenario, one query at a time. Then the host runs ranges of
queries as a worker runs jobs. Their rate becomes the profiled QPS, because the estimator predicts
jobs with it: the QPS of queries one at a time includes the overhead of issuing each query from
outside the host, which is negligible for a large model but several times the latency of a small
one.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import stdev
from typing import TYPE_CHECKING, Final, NamedTuple

from profiler.measuring.conditions import DISTURBED_SHARE, BackgroundLoad, ConditionsMonitor
from profiler.measuring.host_client import HostClient
from profiler.measuring.messages import Measurement, MeasurementFailed, MeasurementTask, Message
from profiler.measuring.single_stream import SingleStreamResult, run_loadgen, time_queries
from profiler.report_pipe import send_report
from synergai.errors import SynergaiError
from synergai.profiles.dictionary import BUILT_IN, DISTURBED, MEASURED, ProfileEntry
from synergai.runtime.resources import die_with_parent, usable_cpus
from synergai.runtime.settings import decode_config
from worker_agent.power.files import MachineFiles
from worker_agent.power.telemetry import MEASURE_PERIOD_S, PowerMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PROBE_QUERIES: Final = 5
SERVICE_ROUND_S: Final = 0.25
MIN_SERVICE_S: Final = 1.0
FALLEN: Final = 0.9
"""Share of the highest rate below which a larger batch is slower, not only measured so."""
ACCURACY_CHUNK: Final = 100
"""Samples that run as one range."""
ACCURACY_S: Final = 60.0
"""About the longest time to measure an accuracy for, before anything is skipped."""


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Extent of a measurement.

    Attributes:
        queries: minimum number of queries one at a time.
        fastest_s: lowest latency of the probe queries.
        max_batch: largest batch size to measure.
        labelled: number of samples to measure the accuracy on, if that does not take too long; 0
            if they have no labels.
    """

    queries: int
    min_duration_s: float
    per_query_s: float
    fastest_s: float
    max_batch: int = 1
    labelled: int = 0

    @classmethod
    def probe(
        cls,
        host: HostClient,
        queries: int,
        min_duration_s: float,
        max_batch: int,
        *,
        accuracy: bool = True,
    ) -> MeasurementPlan:
        """Run a few queries to estimate their latency."""
        taken, labelled = [], 0
        for index in range(PROBE_QUERIES):
            started = time.monotonic()
            labelled += host.run_samples(index).tally.labelled
            taken.append(time.monotonic() - started)
        per_query_s = sum(taken) / len(taken)
        samples = host.ready.samples if accuracy and labelled else 0
        return cls(queries, min_duration_s, per_query_s, min(taken), max_batch, samples)

    @property
    def service_s(self) -> float:
        """Duration of the ranges of each batch size in seconds."""
        return max(MIN_SERVICE_S, self.min_duration_s / 2)


class SampleRanges(NamedTuple):
    """Ranges of queries that ran.

    Attributes:
        seconds: their total duration.
        error: standard error of the logarithm of their rate.
    """

    queries: int
    seconds: float
    error: float

    @property
    def qps(self) -> float:
        return self.queries / self.seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report on the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", help="a `MeasurementTask`, as JSON")
    parser.add_argument("--report", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--parent", type=int, required=True, help="process id of the profiler")
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    # A terminal's Ctrl-C reaches the whole process group; the profiler ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send = partial(send_report, options.report)
    task = decode_config(options.task, MeasurementTask)
    try:
        with HostClient(
            task.models, task.session, cores=task.cores, provider=task.provider
        ) as host:
            measurement = _measure(host, task, options.parent, send)
    except SynergaiError as error:
        send(MeasurementFailed(str(error)))
        return 1
    send(measurement)
    return 0


def _measure(
    host: HostClient, task: MeasurementTask, parent: int, send: Callable[[Message], object]
) -> Measurement:
    ready, origin = host.ready, task.origin
    max_batch = min(ready.max_batch, task.max_batch)
    plan = MeasurementPlan.probe(
        host, task.queries, task.min_duration_s, max_batch, accuracy=origin.accuracy is None
    )
    files = MachineFiles(task.root)
    with (
        BackgroundLoad([os.getpid(), host.pid, parent]) as background,
        ConditionsMonitor(files) as monitor,
    ):
        times = run_single_stream(host, plan, task.timer, task.output, send)
        with PowerMeter(files, period_s=MEASURE_PERIOD_S) as power:
            ranges = measure_ranges(host, plan)
        batch_qps = measure_batches(host, plan, ranges.qps)
    labelled, correct = measure_accuracy(host, plan, ranges.seconds / ranges.queries)
    accuracy, samples = origin.accuracy or (0.0, 0)
    if labelled:
        accuracy, samples = correct / labelled, labelled
    conditions = monitor.conditions
    entry = ProfileEntry(
        engine=task.session.engine,
        worker_class=task.worker_class,
        configuration=task.session.configuration,
        qps=ranges.qps,
        backend_start_s=ready.backend_start_s,
        model_load_s=ready.model_load_s,
        data_preparation_s=ready.data_preparation_s,
        latency_p50_s=times.latency_p50_s,
        latency_p90_s=times.latency_p90_s,
        latency_p99_s=times.latency_p99_s,
        watts=power.mean_watts,
        queries=times.queries,
        label=DISTURBED if background.share > DISTURBED_SHARE else MEASURED,
        batch_qps=tuple(batch_qps),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        error=ranges.error,
        repeats=1,
        idle_watts=origin.idle_watts,
        clock_mhz=conditions.clock_mhz,
        lowest_clock_mhz=conditions.lowest_clock_mhz,
        temperature_c=conditions.temperature_c,
        throttled=conditions.throttled,
        cpus=usable_cpus(task.cores),
        background=background.share,
        digest=origin.digest,
        runtime=origin.runtime,
        agent=origin.agent,
        timer=task.timer,
        accuracy=accuracy,
        accuracy_samples=samples,
        samples_digest=origin.samples_digest if samples else "",
    )
    return Measurement(
        entry=entry,
        single_stream=times,
        logs=str(task.output),
        background=background.share,
    )


def run_single_stream(
    host: HostClient,
    plan: MeasurementPlan,
    timer: str,
    output: Path,
    send: Callable[[Message], object],
) -> SingleStreamResult:
    """Time queries on `host` one at a time; `send` tells the profiler of a failure."""
    samples = host.ready.samples  # all are in the host's memory

    def issue(index: int) -> None:
        try:
            host.run_samples(index)
        except SynergaiError as error:
            # LoadGen cannot be stopped otherwise.
            send(MeasurementFailed(str(error)))
            os._exit(1)

    if timer == BUILT_IN:
        return time_queries(
            issue,
            samples=samples,
            queries=plan.queries,
            min_duration_s=plan.min_duration_s,
        )
    return run_loadgen(
        issue,
        samples=samples,
        queries=plan.queries,
        min_duration_s=plan.min_duration_s,
        fastest_s=plan.fastest_s,
        output=output,
    )


def batch_sizes(max_batch: int) -> list[int]:
    """Return the batch sizes to measure, beyond single queries."""
    return [1 << power for power in range(1, max_batch.bit_length())]


def measure_batches(
    host: HostClient,
    plan: MeasurementPlan,
    single_qps: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[float]:
    """Return the rates in batches of 2, 4, 8, … queries, up to the first at which they fall.

    Larger batches take longer and gain nothing; they could lack memory, too.
    """
    rates: list[float] = []
    best = single_qps
    for size in batch_sizes(plan.max_batch):
        rates.append(measure_ranges(host, plan, size, clock).qps)
        if rates[-1] < FALLEN * best:
            break
        best = max(best, rates[-1])
    return rates


def measure_ranges(
    host: HostClient,
    plan: MeasurementPlan,
    batch: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> SampleRanges:
    """Run ranges of queries as a job does, in batches."""
    queries, seconds = 0, 0.0
    rates = []
    per_query_s = plan.per_query_s
    while seconds < plan.service_s:
        count = batch * max(1, round(SERVICE_ROUND_S / (batch * per_query_s)))
        started = clock()
        host.run_samples(queries, count, batch)
        now = clock()
        queries += count
        seconds += now - started
        rates.append(count / max(now - started, 1e-9))
        per_query_s = seconds / queries
    return SampleRanges(queries, seconds, standard_error(rates))


def measure_accuracy(
    host: HostClient, plan: MeasurementPlan, per_query_s: float
) -> tuple[int, int]:
    """Run the labelled samples once, or as many of them as time permits, evenly spread.

    They run one at a time, as in jobs, so that the answers are the same. Return how many had
    labels, and how many answers were correct.

    Args:
        per_query_s: time per query in ranges.
    """
    samples, count = plan.labelled, ACCURACY_CHUNK
    firsts: Sequence[int] = range(0, samples, count)
    if samples * per_query_s > ACCURACY_S:
        affordable, count = max(1, int(ACCURACY_S / per_query_s)), 1
        firsts = [index * samples // affordable for index in range(affordable)]
    labelled = correct = 0
    for first in firsts:
        tally = host.run_samples(first, min(count, samples - first)).tally
        labelled += tally.labelled
        correct += tally.correct
    return labelled, correct


def standard_error(rates: Sequence[float]) -> float:
    """Return the standard error of the logarithm of the mean of rates; 0 of fewer than two."""
    if len(rates) < 2:
        return 0.0
    return stdev(map(math.log, rates)) / math.sqrt(len(rates))


if __name__ == "__main__":
    sys.exit(main())
