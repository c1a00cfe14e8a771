"""Measurements one after another, each in its power mode."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.dictionary.origins import agent_version
from profiler.measuring.measurement import MeasurementOrigin, measure
from profiler.measuring.messages import MeasurementTask
from synergai.domain import MAX_BATCH, Session, WorkerClass
from synergai.errors import EngineUnusable, InternalError, Unavailable
from worker_agent.power.controller import SwitchFailed
from worker_agent.power.files import MachineFiles
from worker_agent.power.telemetry import MeanPower

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from profiler.dictionary.origins import EngineOrigins
    from profiler.measuring.measurement import Measurement
    from profiler.measuring.modes import ProfiledModes
    from profiler.measuring.profiler_settings import ProfilerSettings
    from worker_agent.providers.choice import ProviderChoice

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
        report: Callable[[float], None] = lambda _: None,
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
            accuracy = self._accuracies.get(answering)
            task = MeasurementTask(
                models=self._settings.models,
                session=session,
                cores=tuple(self._settings.cores),
                provider=self.provider(session.configuration.execution_provider),
                queries=queries,
                min_duration_s=min_duration,
                max_batch=max_batch,
                accuracy=accuracy is None,
                output=self._output / _folder(session),
                timer=self._timer,
                root=self._settings.root,
            )
            measurement = measure(
                task,
                WorkerClass(self._settings.worker_class),
                MeasurementOrigin(
                    digest=origin.digest,
                    runtime=origin.runtime,
                    agent=agent_version(),
                    idle_watts=self._idle_watts,
                    samples_digest=self._origins.samples_of(session.engine),
                    accuracy=accuracy,
                ),
                report,
            )
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
        with MeanPower(MachineFiles(self._settings.root)) as power:
            if power.is_measured:
                time.sleep(IDLE_S)
        self._idle_watts = power.watts
        self._mode = mode


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
