"""Measurement of one engine in one configuration, by a process of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from profiler.measuring.messages import DECODER, Measurement, MeasurementFailed, Progress
from profiler.report_pipe import run_with_report_pipe
from synergai.errors import EngineUnusable, InternalError, InvalidInput
from synergai.runtime.settings import encode_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.measuring.messages import MeasurementTask

LOG_FILE: Final = "host.log"


def measure(task: MeasurementTask, report: Callable[[float], None] = lambda _: None) -> Measurement:
    """Measure in a child process, which ends before this returns or raises."""
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
        for line in lines:
            match DECODER.decode(line):
                case Progress(share):
                    report(share)
                case Measurement() as measurement:
                    report(1.0)
                    return measurement
                case MeasurementFailed(reason):
                    session = task.session
                    raise EngineUnusable(
                        f"cannot measure {session.engine} with {session.configuration}: {reason}"
                    )
    raise InternalError(f"the measuring process ended without a result; see {log}")
