"""``synergai loadgen``: benchmark a gateway with MLPerf LoadGen, in a child process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.text import Text

from profiler.loadgen.loadgen_settings import LoadgenSettings
from profiler.loadgen.outcome import (
    DECODER,
    DETAIL_FILE,
    SUMMARY_FILE,
    LoadProgress,
    RunCounts,
    RunFailed,
    incomplete_log,
    raise_on_failures,
    read_detail_log,
)
from profiler.report_pipe import run_with_report_pipe
from synergai.cli.commands import require, settings_command
from synergai.cli.output import format_rate, format_seconds, print_facts, print_json, to_jsonable
from synergai.errors import InternalError, InvalidInput, SynergaiError
from synergai.runtime.settings import encode_config
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def loadgen(settings: LoadgenSettings) -> None:
    """Benchmark a gateway with MLPerf LoadGen, in any of its four scenarios.

    LoadGen's log files are kept in the output folder. In addition to its figures, violations are
    queries that failed or exceeded the QoS, and goodput is the rate of all others. Latency is
    measured from a query's issue; in Offline, which issues all queries at once, from its sending.

    The exit code is 1 if a query failed for any reason other than rejection or expiry.
    """
    require("mlperf_loadgen")
    measurement = _run_with_progress(settings)
    if settings.as_json:
        print_json(_to_record(settings, measurement))
    else:
        _print_measurement(settings, measurement)
    counts = measurement.counts
    raise_on_failures(counts.failed, counts.queries, counts.first_failure)


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Example: [bold]synergai loadgen onnx_mobilenet_op11 --queries 500 --qos-ms 50[/bold]"
)(settings_command(LoadgenSettings, loadgen))


def _run_with_progress(settings: LoadgenSettings) -> LoadMeasurement:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(settings.engine, total=1.0)

        def report(run: LoadProgress) -> None:
            by_time = run.seconds / settings.min_duration if settings.min_duration else 1.0
            share = min(1.0, by_time, run.queries / settings.queries)
            text = f"{settings.engine}, {counted(run.queries, 'query')}"
            progress.update(task, completed=share, description=text)

        measurement = measure(settings, report)
        progress.update(task, completed=1.0)
    return measurement


PROCESS_LOG: Final = "process.log"


@dataclass(frozen=True, slots=True)
class LoadMeasurement:
    """Results of a completed run.

    Attributes:
        figures: the results in LoadGen's log; None in accuracy mode.
        counts: our own counts.
    """

    figures: dict[str, Any] | None
    counts: RunCounts
    logs: Path


def measure(settings: LoadgenSettings, report: Callable[[LoadProgress], None]) -> LoadMeasurement:
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot create {settings.output}: {error.strerror}") from None
    log = settings.output / DETAIL_FILE
    log.unlink(missing_ok=True)  # must not be mistaken for this run's
    counts = _run(settings, report)
    figures = read_results(log) if settings.mode == "performance" else None
    return LoadMeasurement(figures, counts, settings.output)


def _run(settings: LoadgenSettings, report: Callable[[LoadProgress], None]) -> RunCounts:
    command = [sys.executable, "-m", "profiler.loadgen.run", encode_config(settings)]
    with run_with_report_pipe(command, settings.output / PROCESS_LOG) as lines:
        for line in lines:
            match DECODER.decode(line):
                case LoadProgress() as progress:
                    report(progress)
                case RunFailed(reason):
                    raise SynergaiError(reason)
                case RunCounts() as counts:
                    return counts
    raise InternalError(f"LoadGen ended without a result; see {settings.output / PROCESS_LOG}")


_PARAMETERS: Final = f"{'=' * 48}\nTest Parameters Used"
"""Heading of what follows the figures in LoadGen's summary."""


def read_results(path: Path) -> dict[str, Any]:
    """Return the results of a performance run in LoadGen's detail log, by its keys."""
    found = {key: value for key, value in read_detail_log(path).items() if key.startswith("result")}
    if "result_validity" not in found:
        raise incomplete_log(path)
    return found


def read_summary(path: Path) -> str:
    """Return the figures of LoadGen's summary, without the parameters that it lists as well."""
    try:
        return path.read_text("utf-8", "replace").partition(_PARAMETERS)[0].strip()
    except OSError as error:
        raise incomplete_log(path) from error


def _to_record(settings: LoadgenSettings, measurement: LoadMeasurement) -> dict[str, object]:
    counts = measurement.counts
    return {
        "engine": settings.engine,
        "target": settings.target,
        "scenario": settings.scenario,
        "mode": settings.mode,
        "qos_ms": settings.qos_ms,
        **to_jsonable(counts),
        "violations": counts.violations,
        "goodput": counts.goodput,
        "loadgen": measurement.figures,
        "logs": str(measurement.logs),
    }


def _print_measurement(settings: LoadgenSettings, measurement: LoadMeasurement) -> None:
    counts = measurement.counts
    facts: list[tuple[str, str | Text]] = [
        ("engine", settings.engine),
        ("scenario", settings.scenario),
        ("inputs", counts.inputs),
        ("samples", f"{counts.queries:,} in {format_seconds(counts.seconds)}"),
        ("violations", _violations_text(settings, measurement)),
        ("goodput", f"{format_rate(counts.goodput)} samples/s"),
        ("logs", str(measurement.logs)),
    ]
    if counts.first_failure:
        facts.append(("first failure", Text(counts.first_failure, "red")))
    if counts.measure:
        facts.append((counts.measure, f"{counts.accuracy:.2%} of {counts.evaluated:,}"))
    print_facts(facts)
    if measurement.figures is not None:
        typer.echo(read_summary(measurement.logs / SUMMARY_FILE))


def _violations_text(settings: LoadgenSettings, measurement: LoadMeasurement) -> Text:
    counts = measurement.counts
    text = f"{counts.violations:,} of {counts.queries:,}"
    text += "; no QoS was given" if settings.qos_ms is None else f" beyond {settings.qos_ms:g} ms"
    ended = {"rejected": counts.rejected, "expired": counts.expired, "failed": counts.failed}
    if details := ", ".join(f"{count:,} {how}" for how, count in ended.items() if count):
        text += f" ({details})"
    return Text(text, "red" if counts.violations else "green")
