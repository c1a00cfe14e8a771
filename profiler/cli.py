"""``synergai profile``: measure engines on this machine and write the dictionary."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from profiler.report import measurement_record, print_measurements
from profiler.settings import ProfilerSettings
from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import TaskID

    from profiler.measurement import Measurement
    from profiler.modes import ProfiledModes
    from synergai.domain import Session


def profile(settings: ProfilerSettings) -> None:
    """Measure engines on this machine with MLPerf LoadGen and write the dictionary.

    Each engine runs in the agent's engine host under the Single Stream scenario, with each
    thread count and, on a machine with power modes, in each mode. Entries are written as they
    are measured; Ctrl-C keeps the completed ones.
    """
    require("mlperf_loadgen")
    from profiler.modes import ProfiledModes
    from profiler.sessions import sessions_to_measure
    from worker_agent.power.files import Files

    with (
        _interrupted_by(signal.SIGTERM, signal.SIGHUP),
        ProfiledModes(settings.power, settings.modes, Files(settings.root)) as modes,
    ):
        wanted = sessions_to_measure(
            settings.models, settings.engines, settings.threads, modes.modes, settings.cores
        )
        measurements = list(_measure(settings, wanted, modes))
    if settings.as_json:
        print_json([measurement_record(measurement) for measurement in measurements])
        return
    print_measurements(measurements)
    typer.echo(f"dictionary: {settings.dictionary}")


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(epilog="Example: [bold]synergai profile --engines onnx_digits --threads 1,2[/bold]")(
    settings_command(ProfilerSettings, profile)
)


@contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Handle signals as Ctrl-C, so that a lost terminal does not leave a power mode in force."""
    handled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _measure(
    settings: ProfilerSettings, sessions: Sequence[Session], modes: ProfiledModes
) -> Iterator[Measurement]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from profiler.measurement import measure
    from synergai.domain import WorkerClass
    from synergai.profiles.files import add_to_dictionary

    # Fail before measuring if the dictionary cannot be written.
    add_to_dictionary(settings.dictionary, [])
    output = settings.output / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        active_mode = ""
        for session in sessions:
            mode = session.configuration.power_mode
            if mode != active_mode:
                seconds = modes.activate(mode)
                active_mode = mode
                progress.console.print(f"power mode {mode}: active after {seconds:.2f} s")
            name = f"{session.engine}, {session.configuration}"
            task = progress.add_task(name, total=1.0)

            def report(share: float, task: TaskID = task) -> None:
                progress.update(task, completed=share)

            measurement = measure(
                settings.models,
                session,
                WorkerClass(settings.worker_class),
                cores=settings.cores,
                queries=settings.queries,
                min_duration=settings.min_duration,
                output=output / _folder(session),
                root=settings.root,
                report=report,
            )
            if mode:
                modes.check(mode)
            add_to_dictionary(settings.dictionary, [measurement.entry])
            yield measurement


def _folder(session: Session) -> str:
    """Return the folder name for a measurement's log files."""
    configuration = session.configuration
    parts = (session.engine, f"threads{configuration.threads}", configuration.power_mode)
    return "-".join(filter(None, parts))
