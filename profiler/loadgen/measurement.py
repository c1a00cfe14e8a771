"""A LoadGen run in a child process, and its results."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from profiler.loadgen.messages import MESSAGE_CODEC, LoadProgress, RunCounts, RunFailed
from profiler.loadgen.summary import SUMMARY_FILE, Summary, read_summary
from profiler.report_pipe import run_with_report_pipe
from synergai.errors import InternalError, InvalidInput, SynergaiError
from synergai.runtime.reexec import encode_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from profiler.loadgen.loadgen_settings import LoadgenSettings

PROCESS_LOG: Final = "process.log"


@dataclass(frozen=True, slots=True)
class LoadMeasurement:
    """Results of a completed run.

    Attributes:
        summary: LoadGen's figures; None in accuracy mode.
        counts: our own counts.
    """

    summary: Summary | None
    counts: RunCounts
    logs: Path


def measure(settings: LoadgenSettings, report: Callable[[LoadProgress], None]) -> LoadMeasurement:
    """Run LoadGen against the gateway."""
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot create {settings.output}: {error.strerror}") from None
    summary_file = settings.output / SUMMARY_FILE
    summary_file.unlink(missing_ok=True)  # must not be mistaken for this run's
    counts = _run(settings, report)
    summary = read_summary(summary_file) if settings.mode == "performance" else None
    return LoadMeasurement(summary, counts, settings.output)


def _run(settings: LoadgenSettings, report: Callable[[LoadProgress], None]) -> RunCounts:
    command = [sys.executable, "-m", "profiler.loadgen.run", encode_config(settings)]
    with run_with_report_pipe(command, settings.output / PROCESS_LOG) as lines:
        for line in lines:
            match MESSAGE_CODEC.decode(line):
                case LoadProgress() as progress:
                    report(progress)
                case RunFailed(reason):
                    raise SynergaiError(reason)
                case RunCounts() as counts:
                    return counts
    raise InternalError(f"LoadGen ended without a result; see {settings.output / PROCESS_LOG}")
