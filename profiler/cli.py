"""``synergai profile``: measure engines on this machine and write the dictionary."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from profiler.settings import ProfilerSettings
from synergai.commands import require, settings_command
from synergai.dictionary_records import to_record
from synergai.output import print_json, print_table, rate, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import TaskID

    from profiler.measurement import Measurement
    from synergai.domain import Session


def profile(settings: ProfilerSettings) -> None:
    """Measure engines on this machine with MLPerf LoadGen and write the dictionary.

    Each engine and thread count runs in the agent's own engine host under the Single Stream
    scenario. An entry is written as soon as it is measured; Ctrl-C keeps those that are.
    """
    require("mlperf_loadgen")
    measurements = list(_measure(settings, _sessions(settings)))
    if settings.as_json:
        print_json([_record(measurement) for measurement in measurements])
        return
    columns = ("engine", "threads", "QPS", "T_pre", "p50", "p90", "p99", "LoadGen")
    print_table(columns, map(_row, measurements))
    typer.echo(f"dictionary: {settings.dictionary}")


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(epilog="Example: [bold]synergai profile --engines onnx_digits --threads 1,2[/bold]")(
    settings_command(ProfilerSettings, profile)
)


def _sessions(settings: ProfilerSettings) -> list[Session]:
    """What to measure, in order: known before the first minute is spent."""
    from engines.model_directory import ModelDirectory
    from synergai.domain import Configuration, EngineName, Session
    from synergai.errors import EngineUnusable, NotFound

    directory = ModelDirectory(settings.models)
    if settings.engines:
        chosen = [directory.get(name) for name in dict.fromkeys(settings.engines)]
        for definition in chosen:
            if definition.fault:
                raise EngineUnusable(f"engine {definition.name!r}: {definition.fault}")
    else:
        chosen = [definition for definition in directory.engines() if not definition.fault]
    if not chosen:
        raise NotFound(
            f"{settings.models} has no usable engine; 'synergai engines list' says why, and "
            "'synergai engines build' makes some"
        )
    return [
        Session(EngineName(definition.name), Configuration(threads))
        for definition in chosen
        for threads in dict.fromkeys(settings.threads)
    ]


def _measure(settings: ProfilerSettings, sessions: Sequence[Session]) -> Iterator[Measurement]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from profiler.measurement import measure
    from synergai.dictionary_forms import add_to_dictionary
    from synergai.domain import WorkerClass

    # A dictionary that cannot be written is better known before than after.
    add_to_dictionary(settings.dictionary, [])
    output = settings.output / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for session in sessions:
            name = f"{session.engine}, {session.configuration}"
            task = progress.add_task(name, total=1.0)

            def report(share: float, task: TaskID = task) -> None:
                progress.update(task, completed=share)

            measurement = measure(
                settings.models,
                session,
                WorkerClass(settings.worker_class),
                queries=settings.queries,
                min_duration=settings.min_duration,
                output=output / f"{session.engine}-threads{session.configuration.threads}",
                report=report,
            )
            add_to_dictionary(settings.dictionary, [measurement.entry])
            yield measurement


def _record(measurement: Measurement) -> dict[str, object]:
    return {
        **to_record(measurement.entry),
        "loadgen": measurement.single_stream,
        "logs": str(measurement.logs),
    }


def _row(measurement: Measurement) -> tuple[str, ...]:
    entry = measurement.entry
    return (
        entry.engine,
        str(entry.configuration.threads),
        rate(entry.qps),
        seconds(entry.t_pre_s),
        seconds(entry.latency_p50_s),
        seconds(entry.latency_p90_s),
        seconds(entry.latency_p99_s),
        measurement.single_stream.validity,
    )
