"""``synergai profile``: measure engines on this machine and write the dictionary."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from profiler.repetition import measure_with_repeats
from profiler.report import disturbance_text, measurement_record, print_measurements
from profiler.settings import ProfilerSettings
from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.progress import TaskID

    from profiler.measurement import Measurement
    from profiler.modes import ProfiledModes
    from synergai.domain import Session
    from synergai.errors import EngineUnusable
    from worker_agent.providers.choice import ProviderChoice


def profile(settings: ProfilerSettings) -> None:
    """Measure engines on this machine with MLPerf LoadGen and write the dictionary.

    Each engine runs in the agent's engine host under the Single Stream scenario, with each
    thread count and execution provider and, on a machine with power modes, in each mode. Entries
    are written as they are measured; Ctrl-C keeps the completed ones.

    Run it on an idle machine. A measurement during which other processes took more than 5 % of
    the machine's CPU time is labelled disturbed, and can be repeated.
    """
    require("mlperf_loadgen")
    import asyncio
    import tempfile

    from profiler.modes import ProfiledModes
    from profiler.sessions import sessions_to_measure
    from synergai.profiles.files import add_to_dictionary
    from worker_agent.hosts.provider_offers import InstalledRuntimes, find_offers
    from worker_agent.power.files import Files

    # Fail before measuring if the dictionary cannot be written.
    add_to_dictionary(settings.dictionary, [])

    def keep(measurement: Measurement) -> None:
        kept = add_to_dictionary(
            settings.dictionary,
            [measurement.entry],
            keep_undisturbed=not settings.accept_disturbed,
        )
        for entry in kept:
            typer.echo(
                f"{entry.engine}, {entry.configuration}: the undisturbed entry of "
                f"{entry.measured_at or 'unknown date'} stays; --accept-disturbed replaces it",
                err=True,
            )

    def skip(error: EngineUnusable) -> None:
        typer.echo(str(error), err=True)

    with (
        _interrupted_by(signal.SIGTERM, signal.SIGHUP),
        # What is compiled for the measurements only.
        tempfile.TemporaryDirectory(prefix="synergai-profile-") as cache,
        ProfiledModes(settings.power, settings.modes, Files(settings.root)) as modes,
    ):
        offers = asyncio.run(find_offers(settings.providers, InstalledRuntimes(), Path(cache)))
        for refusal in offers.refusals:
            typer.echo(f"not measured with {refusal.choice}: {refusal.reason}", err=True)
        wanted = sessions_to_measure(
            settings.models,
            settings.engines,
            settings.threads,
            modes.modes,
            settings.cores,
            offers,
        )
        # Devices of one provider are alike; the first one stands for all.
        providers = {choice.name: choice for choice in reversed(offers.choices)}
        measurements = measure_with_repeats(
            partial(_measure, settings, modes, providers),
            wanted,
            # By default, all engines are measured that can be.
            required=bool(settings.engines) or len(wanted) == 1,
            repeats=settings.repeat_disturbed or 0,
            offer=partial(offer_to_repeat, settings),
            keep=keep,
            skip=skip,
        )
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


def offer_to_repeat(settings: ProfilerSettings, disturbed: Sequence[Measurement]) -> bool:
    """Report the disturbed measurements; return whether a person at the terminal repeats them."""
    for measurement in disturbed:
        typer.echo(disturbance_text(measurement), err=True)
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if settings.repeat_disturbed is not None or not terminal:
        typer.echo("Repeat on an idle machine, or with --repeat-disturbed N.", err=True)
        return False
    try:
        return typer.confirm(f"Repeat {len(disturbed)} disturbed measurements?", err=True)
    except typer.Abort:
        return False


def _measure(
    settings: ProfilerSettings,
    modes: ProfiledModes,
    providers: Mapping[str, ProviderChoice],
    sessions: Sequence[Session],
) -> Iterator[Measurement | EngineUnusable]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from profiler.measurement import measure
    from synergai.domain import WorkerClass
    from synergai.errors import EngineUnusable

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

            try:
                measurement = measure(
                    settings.models,
                    session,
                    WorkerClass(settings.worker_class),
                    cores=settings.cores,
                    provider=providers.get(session.configuration.execution_provider),
                    queries=settings.queries,
                    min_duration=settings.min_duration,
                    output=output / _folder(session),
                    root=settings.root,
                    report=report,
                )
            except EngineUnusable as error:
                progress.remove_task(task)
                yield error
                continue
            if mode:
                modes.check(mode)
            yield measurement


def _folder(session: Session) -> str:
    """Return the folder name for a measurement's log files."""
    configuration = session.configuration
    parts = (
        session.engine.replace("/", "-v"),
        f"threads{configuration.threads}",
        configuration.power_mode,
        configuration.execution_provider,
    )
    return "-".join(filter(None, parts))
