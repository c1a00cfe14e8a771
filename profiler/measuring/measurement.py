"""Measurement of one engine in one configuration.

An entry's QPS is measured on ranges of queries, as a worker runs jobs, because the estimator
predicts jobs with it. The QPS of queries one at a time includes the overhead of issuing each query
from outside the host, which is negligible for a large model but several times the latency of a
small one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from profiler.measuring.conditions import DISTURBED_SHARE
from profiler.measuring.messages import DECODER, Measured, MeasurementFailed, Progress
from profiler.report_pipe import run_with_report_pipe
from synergai.errors import EngineUnusable, InternalError, InvalidInput
from synergai.profiles.dictionary import DISTURBED, MEASURED, ProfileEntry
from synergai.runtime.settings import encode_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

    from profiler.measuring.messages import MeasurementTask
    from profiler.measuring.single_stream import SingleStreamResult
    from synergai.domain import Session, WorkerClass

LOG_FILE: Final = "host.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A profile entry with the result of queries one at a time.

    Attributes:
        background: share of the machine's CPU time that other processes took, 0 to 1.
        fallback_share: share of the model's nodes that its execution provider does not run, 0 to 1;
            None if it is not known, or runs on the CPU anyway.
        first_load_s: seconds to load it when its execution provider had it to compile; None if that
            keeps no compiled models.
    """

    entry: ProfileEntry
    single_stream: SingleStreamResult
    logs: Path
    background: float
    fallback_share: float | None = None
    first_load_s: float | None = None

    @property
    def name(self) -> str:
        """The engine and its configuration."""
        return f"{self.entry.engine}, {self.entry.configuration}"

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes took so much CPU time that the figures are too low."""
        return self.entry.label == DISTURBED


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementOrigin:
    """The origin of the figures of an entry.

    Attributes:
        digest: SHA-256 of the model file.
        agent: version of SynergAI.
        idle_watts: power of the idle machine in the same power mode.
        samples_digest: SHA-256 of the sample set; empty if there is none.
        accuracy: accuracy that is known already, with its number of samples; None to measure it.
    """

    digest: str = ""
    runtime: str = ""
    agent: str = ""
    idle_watts: float = 0.0
    samples_digest: str = ""
    accuracy: tuple[float, int] | None = None


def measure(
    task: MeasurementTask,
    worker_class: WorkerClass,
    origin: MeasurementOrigin | None = None,
    report: Callable[[float], None] = lambda _: None,
) -> Measurement:
    """Measure in a child process, which ends before this returns or raises.

    Args:
        origin: what the entry records in addition to the figures; None for nothing.
    """
    command = (
        *(sys.executable, "-m", "profiler.measuring.measuring_process", encode_config(task)),
        *("--parent", str(os.getpid())),
    )
    output, log = task.output, task.output / LOG_FILE
    try:
        output.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise InvalidInput(f"cannot write to {output}: {error.strerror}") from error
    with run_with_report_pipe(command, log) as lines:  # the engine host dies with the process
        measured = _follow(lines, task.session, report, log)
    return Measurement(
        entry=_entry(task, worker_class, measured, origin or MeasurementOrigin()),
        single_stream=measured.single_stream,
        logs=output,
        background=measured.background,
        fallback_share=measured.fallback_share,
        first_load_s=measured.first_load_s,
    )


def _follow(
    lines: IO[bytes], session: Session, report: Callable[[float], None], log: Path
) -> Measured:
    """Read the process's messages up to its results."""
    for line in lines:
        match DECODER.decode(line):
            case Progress(share):
                report(share)
            case Measured() as measured:
                report(1.0)
                return measured
            case MeasurementFailed(reason):
                raise EngineUnusable(
                    f"cannot measure {session.engine} with {session.configuration}: {reason}"
                )
    raise InternalError(f"the measuring process ended without a result; see {log}")


def _entry(
    task: MeasurementTask,
    worker_class: WorkerClass,
    measured: Measured,
    origin: MeasurementOrigin,
) -> ProfileEntry:
    times, conditions = measured.single_stream, measured.conditions
    accuracy, samples = origin.accuracy or (0.0, 0)
    if measured.labelled:
        accuracy, samples = measured.correct / measured.labelled, measured.labelled
    return ProfileEntry(
        engine=task.session.engine,
        worker_class=worker_class,
        configuration=task.session.configuration,
        qps=measured.service_queries / measured.service_s,
        backend_start_s=measured.backend_start_s,
        model_load_s=measured.model_load_s,
        data_preparation_s=measured.data_preparation_s,
        latency_p50_s=times.latency_p50_s,
        latency_p90_s=times.latency_p90_s,
        latency_p99_s=times.latency_p99_s,
        watts=measured.watts,
        queries=times.queries,
        label=DISTURBED if measured.background > DISTURBED_SHARE else MEASURED,
        batch_qps=tuple(measured.batch_qps),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        error=measured.error,
        repeats=1,
        idle_watts=origin.idle_watts,
        clock_mhz=conditions.clock_mhz,
        lowest_clock_mhz=conditions.lowest_clock_mhz,
        temperature_c=conditions.temperature_c,
        throttled=conditions.throttled,
        cpus=measured.cpus,
        background=min(1.0, measured.background),
        digest=origin.digest,
        runtime=origin.runtime,
        agent=origin.agent,
        timer=task.timer,
        accuracy=accuracy,
        accuracy_samples=samples,
        samples_digest=origin.samples_digest if samples else "",
    )
