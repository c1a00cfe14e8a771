"""``synergai loadgen``: load a gateway with MLPerf LoadGen, and say what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from loadgen.settings import LoadgenSettings
from synergai.commands import require, settings_command
from synergai.output import print_facts, print_json, rate, seconds

if TYPE_CHECKING:
    from loadgen.measurement import Measurement
    from loadgen.messages import Progressed


def loadgen(settings: LoadgenSettings) -> None:
    """Load a gateway with MLPerf LoadGen: one query at a time, the next when it is answered.

    LoadGen's log files stay in the output folder. Beside its figures stand our own: violations
    are queries that failed or took longer than the QoS, goodput is the rate of all others.
    """
    require("mlperf_loadgen")
    measurement = _measure(settings)
    if settings.as_json:
        print_json(_record(settings, measurement))
    else:
        _print(settings, measurement)


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Example: [bold]synergai loadgen onnx_mobilenet_op11 --queries 500 --qos-ms 50[/bold]"
)(settings_command(LoadgenSettings, loadgen))


def _measure(settings: LoadgenSettings) -> Measurement:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from loadgen.measurement import measure

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(settings.engine, total=1.0)

        def report(so_far: Progressed) -> None:
            by_time = so_far.seconds / settings.min_duration if settings.min_duration else 1.0
            share = min(1.0, by_time, so_far.queries / settings.queries)
            text = f"{settings.engine}, {so_far.queries:,} queries"
            progress.update(task, completed=share, description=text)

        measurement = measure(settings, report)
        progress.update(task, completed=1.0)
    return measurement


def _record(settings: LoadgenSettings, measurement: Measurement) -> dict[str, object]:
    counted = measurement.counted
    return {
        "engine": settings.engine,
        "target": settings.target,
        "inputs": counted.inputs,
        "queries": counted.queries,
        "qos_ms": settings.qos_ms,
        "violations": counted.violations,
        "failed": counted.failed,
        "late": counted.late,
        "first_failure": counted.first_failure,
        "goodput": counted.goodput,
        "loadgen": measurement.summary,
        "logs": str(measurement.logs),
    }


def _print(settings: LoadgenSettings, measurement: Measurement) -> None:
    summary, counted = measurement.summary, measurement.counted
    percentiles = summary.percentiles_s
    facts: list[tuple[str, str | Text]] = [
        ("engine", settings.engine),
        ("inputs", counted.inputs),
        ("queries", f"{counted.queries:,} in {seconds(counted.seconds)}"),
        ("QPS", f"{rate(summary.qps)} ({rate(summary.qps_with_overhead)} with LoadGen's overhead)"),
        ("mean", seconds(summary.mean_s)),
        *((f"p{p:g}", seconds(percentiles[p])) for p in (50.0, 90.0, 99.0) if p in percentiles),
        ("violations", _violations(settings, measurement)),
        ("goodput", f"{rate(counted.goodput)} queries/s"),
        ("logs", str(measurement.logs)),
    ]
    if counted.first_failure:
        facts.append(("first failure", Text(counted.first_failure, "red")))
    print_facts(facts)
    typer.echo(f"Result is : {summary.validity}")
    for condition in summary.unmet:
        typer.echo(f"  {condition} is not satisfied")


def _violations(settings: LoadgenSettings, measurement: Measurement) -> Text:
    counted = measurement.counted
    if settings.qos_ms is None:
        return Text(f"{counted.failed:,} failed; no QoS was given")
    text = f"{counted.violations:,} of {counted.queries:,} beyond {settings.qos_ms:g} ms"
    if counted.failed:
        text += f", of which {counted.failed:,} failed"
    return Text(text, "red" if counted.violations else "green")
