"""``synergai profile``: measure engines on this machine and write the dictionary."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import typer

from profiler.measuring.profiler_settings import ProfilerSettings
from synergai.cli.commands import settings_command
from synergai.cli.output import print_json
from synergai.profiles.dictionary import BUILT_IN, LOADGEN, to_record
from synergai.runtime.paths import default_dictionary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from profiler.dictionary.origins import EngineOrigins
    from profiler.measuring.messages import Measurement


NOT_INSTALLED: Final = (
    "MLPerf LoadGen is not installed: the built-in timer measures the latencies, and the entries "
    "say so"
)


def used_by(dictionary: Path) -> str:
    """Return which commands plan with a dictionary, for people."""
    if dictionary == default_dictionary():
        return "used by 'synergai serve' and 'synergai gateway' without --state and --dictionary"
    return f"used by 'synergai serve --dictionary {dictionary}' and 'synergai gateway' likewise"


def profile(settings: ProfilerSettings) -> None:
    """Measure engines on this machine and write the dictionary.

    Each engine runs in the agent's engine host under the Single Stream scenario, with each
    thread count and execution provider and, on a machine with power modes, in each mode. Entries
    are written as they are measured; Ctrl-C keeps the completed ones, and --measure missing
    continues.

    With --search, only those configurations are measured that are needed to find the fastest one
    of each engine and the most efficient ones; the others are predicted.

    With --stages, both sides of every third seam of ONNX engines are measured in turns with the
    whole engine, which predicts all of their stages.

    MLPerf LoadGen issues and times the queries one at a time; where it is not installed, as on
    boards, the built-in timer does.

    Run it on an idle machine. A measurement during which other processes took more than 5 % of
    the machine's CPU time is labelled disturbed.
    """
    timer = choose_timer()

    from profiler.dictionary.files import add_to_dictionary
    from profiler.dictionary.origins import EngineOrigins

    # Fail before measuring if the dictionary cannot be written.
    add_to_dictionary(settings.dictionary, [])
    with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
        measurements, summary = _measure(settings, timer)
    if settings.dry_run:
        return
    if settings.as_json:
        print_json([measurement_record(measurement) for measurement in measurements])
        return
    if measurements:
        print_measurements(measurements, EngineOrigins(settings.models))
    typer.echo(f"dictionary: {settings.dictionary}, {used_by(settings.dictionary)}")
    if summary:
        typer.echo(summary)


def _measure(settings: ProfilerSettings, timer: str) -> tuple[list[Measurement], str]:
    """Measure what the settings say; return the measurements, and what to say at the end."""
    from profiler.dictionary.origins import EngineOrigins
    from profiler.measuring.commands import ListedCommand, SearchCommand, StagesCommand
    from profiler.measuring.conditions import top_mhz
    from profiler.measuring.generators import Machine
    from profiler.measuring.measurer import Measurer, ProfiledModes
    from worker_agent.power.files import MachineFiles

    files = MachineFiles(settings.root)
    with ProfiledModes(settings.power, settings.modes, files) as modes:
        origins = EngineOrigins(settings.models)
        measurer = Measurer(
            settings,
            modes,
            {choice.name: choice for choice in settings.providers},
            origins,
            settings.output / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
            timer,
            _say,
        )
        machine = Machine(
            modes.modes, settings.providers, settings.cores, top_mhz(files), modes.refused
        )
        listed = StagesCommand if settings.stages else ListedCommand
        kind = SearchCommand if settings.search else listed
        command = kind(settings, machine, origins, measurer)
        return command.run(), command.summary


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Examples: [bold]synergai profile --engines onnx_digits --threads 1,2[/bold], "
    "[bold]synergai profile --search[/bold]"
)(settings_command(ProfilerSettings, profile))


def choose_timer() -> str:
    """Return what times queries one at a time here, and say so if it is not LoadGen."""
    if find_spec("mlperf_loadgen") is not None:
        return LOADGEN
    _say(NOT_INSTALLED)
    return BUILT_IN


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


def _say(text: str) -> None:
    typer.echo(text, err=True)


def measurement_record(measurement: Measurement) -> dict[str, object]:
    """Return a measurement as a JSON object; `joules` is the energy per query."""
    return {
        **to_record(measurement.entry),
        "joules": measurement.entry.joules,
        "background": measurement.background,
        "single_stream": measurement.single_stream,
        "logs": measurement.logs,
    }


def print_measurements(measurements: Sequence[Measurement], origins: EngineOrigins) -> None:
    """Print the entries, and why LoadGen calls the latencies of some invalid."""
    from profiler.dictionary.cli import print_entries

    print_entries([measurement.entry for measurement in measurements], origins)
    for each in measurements:
        if reason := each.single_stream.invalid_because:
            typer.echo(f"{each.name}: the latencies are invalid for LoadGen: {reason}")
