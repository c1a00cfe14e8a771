"""Measurements one after another, each in its power mode."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from profiler.dictionary.origins import agent_version
from profiler.measuring.messages import (
    DECODER,
    Measurement,
    MeasurementFailed,
    MeasurementOrigin,
    MeasurementTask,
)
from profiler.report_pipe import run_with_report_pipe
from synergai.domain import MAX_BATCH, Session, WorkerClass
from synergai.errors import EngineUnusable, InternalError, InvalidInput, Unavailable
from synergai.runtime.settings import encode_config
from worker_agent.power.controller import SwitchFailed, find_mode
from worker_agent.power.files import MachineFiles
from worker_agent.power.selection import open_controller
from worker_agent.power.telemetry import MEASURE_PERIOD_S, PowerMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from profiler.dictionary.origins import EngineOrigins
    from profiler.measuring.profiler_settings import ProfilerSettings
    from worker_agent.power.controller import PowerController, PowerMode
    from worker_agent.providers import ProviderChoice


_log = logging.getLogger(__name__)


class ProfiledModes:
    """Switches power modes and restores the original mode on exit; a context manager.

    Args:
        power: name of the controller; ``auto`` selects it by the board.
        wanted: names of the modes to measure in; empty for all that need no reboot.

    Attributes:
        modes: the modes to measure in; empty on a machine without power modes.
        refused: the modes that were not asked for and cannot be switched to.
    """

    def __init__(self, power: str, wanted: Sequence[str], files: MachineFiles) -> None:
        self._power = power
        self._files = files
        self._controller: Final[PowerController] = open_controller(power, files, wanted)
        self._original = ""
        try:
            offered = self._controller.modes()
            # A mode that cannot be switched to is skipped unless named explicitly.
            names = wanted or [mode.name for mode in offered if not mode.refused]
            self.modes: tuple[PowerMode, ...] = tuple(find_mode(offered, name) for name in names)
            self.refused = tuple(mode for mode in offered if mode.refused and not wanted)
            if self.modes:
                self._original = self._controller.read().mode
        except BaseException:
            self._controller.close()
            raise

    def activate(self, mode: str) -> float:
        """Switch to `mode`, wait until the machine has settled, and verify.

        Returns:
            Duration of the switch in seconds.
        """
        return self._controller.switch(mode).seconds

    def check(self, mode: str) -> None:
        """Check that `mode` is still active."""
        reading = self._controller.read()
        if reading.mode != mode:
            now = f"it is now {reading.mode}" if reading.mode else reading.detail
            raise Unavailable(
                f"the power mode changed from {mode} during the measurement ({now}); "
                "stop other programs that switch modes, and measure again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
            self._controller.close()
        except (OSError, SwitchFailed) as error:
            _log.warning("cannot restore the power mode: %s", error)

    def _restore(self) -> None:
        if not self._original:
            return
        known = any(mode.name == self._original for mode in self.modes)
        # A controller opened with wanted modes knows no others.
        controller = self._controller if known else open_controller(self._power, self._files)
        controller.switch(self._original)


_LOG_FILE: Final = "host.log"
IDLE_S: Final = 1.0
"""Duration for which the power of the idle machine is measured, where it can be."""


class Measurer:
    """Measures sessions of this machine.

    Args:
        timer: what times queries one at a time, `LOADGEN` or `BUILT_IN`.
        say: shows a line to people.
    """

    def __init__(
        self,
        settings: ProfilerSettings,
        modes: ProfiledModes,
        providers: Mapping[str, ProviderChoice],
        origins: EngineOrigins,
        output: Path,
        timer: str,
        say: Callable[[str], object],
    ) -> None:
        self._settings = settings
        self._modes = modes
        self._providers = providers
        self._origins = origins
        self._output = output
        self._timer = timer
        self._say = say
        self._mode: str | None = None
        self._idle_watts = 0.0
        # By engine and configuration without threads and mode, which do not change answers.
        self._accuracies: dict[Session, tuple[float, int]] = {}

    def measure(
        self,
        session: Session,
        *,
        queries: int,
        min_duration: float,
        max_batch: int = MAX_BATCH,
    ) -> Measurement:
        """Measure a session, after a switch to its power mode if that is not in force."""
        mode = session.configuration.power_mode
        origin = self._origins.of(session.engine, session.configuration.variant)
        answering = Session(
            session.engine, replace(session.configuration, threads=0, power_mode="")
        )
        name = f"{session.engine} with {session.configuration}"
        try:
            self.activate(mode)
            task = MeasurementTask(
                models=self._settings.models,
                session=session,
                worker_class=WorkerClass(self._settings.worker_class),
                origin=MeasurementOrigin(
                    digest=origin.digest,
                    runtime=origin.runtime,
                    agent=agent_version(),
                    idle_watts=self._idle_watts,
                    samples_digest=self._origins.samples_of(session.engine),
                    accuracy=self._accuracies.get(answering),
                ),
                cores=tuple(self._settings.cores),
                provider=self.provider(session.configuration.execution_provider),
                queries=queries,
                min_duration_s=min_duration,
                max_batch=max_batch,
                output=self._output / _folder(session),
                timer=self._timer,
                root=self._settings.root,
            )
            measurement = measure(task)
            if mode:
                self._modes.check(mode)
        except (InternalError, SwitchFailed, Unavailable) as error:
            # The next one may work: in another mode, or with less memory.
            self._mode = None
            raise EngineUnusable(f"cannot measure {name}: {error}") from error
        entry = measurement.entry
        self._accuracies[answering] = entry.accuracy, entry.accuracy_samples
        return measurement

    def provider(self, name: str) -> ProviderChoice | None:
        """Return the execution provider of a configuration; None for the CPU."""
        return self._providers.get(name)

    def activate(self, mode: str) -> None:
        """Switch to a power mode, if it is not in force; empty for a machine without modes."""
        if mode == self._mode:
            return
        if mode:
            seconds = self._modes.activate(mode)
            self._say(f"power mode {mode}: active after {seconds:.2f} s")
        files = MachineFiles(self._settings.root)
        with PowerMeter(files, period_s=MEASURE_PERIOD_S) as power:
            if power.source:
                time.sleep(IDLE_S)
        self._idle_watts = power.mean_watts
        self._mode = mode


def measure(task: MeasurementTask) -> Measurement:
    """Measure in a child process, which ends before this returns or raises."""
    command = (
        *(sys.executable, "-m", "profiler.measuring.measuring_process", encode_config(task)),
        *("--parent", str(os.getpid())),
    )
    output, log = task.output, task.output / _LOG_FILE
    try:
        output.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise InvalidInput(f"cannot write to {output}: {error.strerror}") from error
    with run_with_report_pipe(command, log) as lines:  # the engine host dies with the process
        for line in lines:
            match DECODER.decode(line):
                case Measurement() as measurement:
                    return measurement
                case MeasurementFailed(reason):
                    session = task.session
                    raise EngineUnusable(
                        f"cannot measure {session.engine} with {session.configuration}: {reason}"
                    )
    raise InternalError(f"the measuring process ended without a result; see {log}")


def _folder(session: Session) -> str:
    """Return the folder name for a measurement's log files."""
    configuration = session.configuration
    parts = (
        session.engine.replace("/", "-v"),
        f"threads{configuration.threads}",
        configuration.power_mode,
        configuration.execution_provider,
        configuration.variant,
    )
    return "-".join(filter(None, parts))
