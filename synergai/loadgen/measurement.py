"""Runs LoadGen in a process of its own, and brings its figures together with ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import InternalError, InvalidInput, SynergaiError
from synergai.loadgen.messages import MESSAGES, RunCounts, RunFailed, RunProgress
from synergai.loadgen.summary import SUMMARY_FILE, Summary, read_summary
from synergai.runtime.report_pipe import run_with_report_pipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from synergai.loadgen.settings import LoadgenSettings

PROCESS_LOG: Final = "process.log"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A finished run.

    Attributes:
        summary: LoadGen's own figures; None in accuracy mode, where it has none.
        counted: ours beside them.
        logs: the folder with LoadGen's log files.
    """

    summary: Summary | None
    counted: RunCounts
    logs: Path


def measure(settings: LoadgenSettings, report: Callable[[RunProgress], None]) -> Measurement:
    """Run LoadGen against the gateway.

    Args:
        settings: of the run.
        report: told now and then how far it is.

    Raises:
        InvalidInput: the folder for the log files cannot be made.
        SynergaiError: the gateway could not be asked, or stopped answering.
        InternalFault: the run ended without a result.
    """
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{settings.output} cannot be made: {error.strerror}") from None
    summary_file = settings.output / SUMMARY_FILE
    summary_file.unlink(missing_ok=True)  # an older run's would pass for this one's
    counted = _run(settings, report)
    summary = read_summary(summary_file) if settings.mode == "performance" else None
    return Measurement(summary, counted, settings.output)


def _run(settings: LoadgenSettings, report: Callable[[RunProgress], None]) -> RunCounts:
    command = [sys.executable, "-m", "synergai.loadgen.run", settings.packed()]
    with run_with_report_pipe(command, settings.output / PROCESS_LOG) as lines:
        for line in lines:
            match MESSAGES.decode(line):
                case RunProgress() as progress:
                    report(progress)
                case RunFailed(reason):
                    raise SynergaiError(reason)
                case RunCounts() as counted:
                    return counted
    raise InternalError(f"LoadGen ended without a result; see {settings.output / PROCESS_LOG}")
