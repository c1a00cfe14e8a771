"""``synergai profile``: measure engines on this machine and write the dictionary."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from profiler.measuring.measurement_output import measurement_record, print_measurements
from profiler.measuring.profiler_settings import ProfilerSettings
from synergai.cli.commands import settings_command
from synergai.cli.output import print_json
from synergai.domain import WorkerClass
from synergai.profiles.dictionary import BUILT_IN, LOADGEN
from synergai.runtime.paths import default_dictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    the machine's CPU time is labelled disturbed, and can be repeated.
    """
    timer = choose_timer()
    import asyncio
    import tempfile

    from profiler.measuring.commands import ListedCommand, SearchCommand, StagesCommand
    from profiler.measuring.conditions import top_mhz
    from profiler.measuring.exclusive import check_not_serving, only_profiler
    from profiler.measuring.generators import Machine
    from profiler.measuring.measurer import Measurer
    from profiler.measuring.modes import ProfiledModes
    from profiler.measuring.sessions import find_engines
    from synergai.models.origins import EngineOrigins
    from synergai.profiles.files import add_to_dictionary
    from worker_agent.hosts.provider_offers import Runtimes, find_offers
    from worker_agent.power.files import MachineFiles

    if settings.engines:
        # Before a worker has to be stopped for it.
        find_engines(settings.models, settings.engines)
    # Fail before measuring if the dictionary cannot be written.
    add_to_dictionary(settings.dictionary, [])
    files = MachineFiles(settings.root)
    worker_class = WorkerClass(settings.worker_class)
    with (
        _interrupted_by(signal.SIGTERM, signal.SIGHUP),
        only_profiler(worker_class, settings.root),
        # What is compiled for the measurements only.
        tempfile.TemporaryDirectory(prefix="synergai-profile-") as cache,
    ):
        if not (settings.while_serving or settings.dry_run):
            check_not_serving()
        with ProfiledModes(settings.power, settings.modes, files) as modes:
            offers = asyncio.run(find_offers(settings.providers, Runtimes(), Path(cache)))
            for refusal in offers.refusals:
                _say(f"not measured with {refusal.choice}: {refusal.reason}")
            origins = EngineOrigins(settings.models)
            measurer = Measurer(
                settings,
                modes,
                # Devices of one provider are alike; the first one stands for all.
                {choice.name: choice for choice in reversed(offers.choices)},
                origins,
                settings.output / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
                timer,
                _say,
            )
            machine = Machine(modes.modes, offers, settings.cores, top_mhz(files), modes.refused)
            listed = StagesCommand if settings.stages else ListedCommand
            kind = SearchCommand if settings.search else listed
            command = kind(settings, machine, origins, measurer)
            measurements = command.run()
    if settings.dry_run:
        return
    if settings.as_json:
        print_json([measurement_record(measurement) for measurement in measurements])
        return
    if measurements:
        print_measurements(measurements)
    typer.echo(f"dictionary: {settings.dictionary}, {used_by(settings.dictionary)}")
    if command.summary:
        typer.echo(command.summary)


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
