"""``synergai loadgen``: benchmark a gateway with MLPerf LoadGen, in a child process."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from profiler.loadgen.loadgen_settings import LoadgenSettings
from profiler.loadgen.outcome import (
    DECODER,
    DETAIL_FILE,
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
    from collections.abc import Callable, Iterator
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
        summary: LoadGen's figures; None in accuracy mode.
        counts: our own counts.
    """

    summary: Summary | None
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
    summary = read_summary(log) if settings.mode == "performance" else None
    return LoadMeasurement(summary, counts, settings.output)


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


_PERCENTILE: Final = re.compile(r"result_([\d.]+)_percentile_latency_ns")
_CONDITIONS: Final = {
    "result_min_duration_met": "Min duration",
    "result_min_queries_met": "Min queries",
    "result_perf_constraints_met": "Performance constraints",
    "early_stopping_met": "Early stopping",
}
"""Names of LoadGen's conditions, by the keys of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """LoadGen's summary of a performance run.

    Latencies are from issue to completion of queries; a Multi Stream query has several
    samples, the Offline query has all of them.

    Attributes:
        validity: ``VALID`` or ``INVALID``.
        unmet: names of LoadGen's unsatisfied conditions; empty if valid.
        qps_with_overhead: Single Stream: queries per second over the whole run.
        qps: Single Stream: inverse of the mean latency.
        samples_per_second: Server and Offline: samples completed per second.
        scheduled_per_second: Server: samples issued per second.
        percentiles_s: latency by percentile, from 50.0 to 99.9.
    """

    scenario: str
    mode: str
    validity: str
    unmet: tuple[str, ...]
    qps_with_overhead: float | None
    qps: float | None
    samples_per_second: float | None
    scheduled_per_second: float | None
    min_s: float
    max_s: float
    mean_s: float
    percentiles_s: dict[float, float]

    @property
    def is_valid(self) -> bool:
        """Whether LoadGen considers the run valid."""
        return self.validity == "VALID"


def read_summary(path: Path) -> Summary:
    """Return what the detail log at `path` says of a performance run."""
    found = read_detail_log(path)
    completed = found.get("result_completed_samples_per_sec")
    try:
        return Summary(
            scenario=found["effective_scenario"],
            mode=found["effective_test_mode"],
            validity=found["result_validity"],
            unmet=tuple(name for key, name in _CONDITIONS.items() if not found.get(key, True)),
            qps_with_overhead=found.get("result_qps_with_loadgen_overhead"),
            qps=found.get("result_qps_without_loadgen_overhead"),
            samples_per_second=found.get("result_samples_per_second", completed),
            scheduled_per_second=found.get("result_scheduled_samples_per_sec"),
            min_s=found["result_min_latency_ns"] / 1e9,
            max_s=found["result_max_latency_ns"] / 1e9,
            mean_s=found["result_mean_latency_ns"] / 1e9,
            percentiles_s={
                float(match[1]): found[key] / 1e9
                for key in found
                if (match := _PERCENTILE.fullmatch(key))
            },
        )
    except (KeyError, TypeError):
        raise incomplete_log(path) from None


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
        "loadgen": measurement.summary,
        "logs": str(measurement.logs),
    }


_ADVICE: Final = {
    "Min duration": "LoadGen ran out of queries; raise --queries, or in Offline --rate",
    "Min queries": "raise --min-duration",
    "Performance constraints": "too many queries were late; lower --rate, or raise --qos-ms",
    "Early stopping": "too few queries for the percentile, or too many late ones; raise --queries",
}
"""What to do about a condition of LoadGen's that a run does not satisfy."""


def _print_measurement(settings: LoadgenSettings, measurement: LoadMeasurement) -> None:
    summary, counts = measurement.summary, measurement.counts
    facts: list[tuple[str, str | Text]] = [
        ("engine", settings.engine),
        ("scenario", settings.scenario),
        ("inputs", counts.inputs),
        ("samples", f"{counts.queries:,} in {format_seconds(counts.seconds)}"),
        *(_loadgen_figures(summary) if summary is not None else ()),
        ("violations", _violations_text(settings, measurement)),
        ("goodput", f"{format_rate(counts.goodput)} samples/s"),
        ("logs", str(measurement.logs)),
    ]
    if counts.first_failure:
        facts.append(("first failure", Text(counts.first_failure, "red")))
    if counts.measure:
        facts.append((counts.measure, f"{counts.accuracy:.2%} of {counts.evaluated:,}"))
    print_facts(facts)
    if summary is not None:
        typer.echo(f"Result is : {summary.validity}")
        for condition in summary.unmet:
            advice = _ADVICE.get(condition, "see the logs")
            typer.echo(f"  {condition} is not satisfied: {advice}")


def _loadgen_figures(summary: Summary) -> Iterator[tuple[str, str]]:
    if summary.qps is not None and summary.qps_with_overhead is not None:
        overhead = f"{format_rate(summary.qps_with_overhead)} with LoadGen's overhead"
        yield "QPS", f"{format_rate(summary.qps)} ({overhead})"
    if summary.samples_per_second is not None:
        yield "LoadGen", f"{format_rate(summary.samples_per_second)} samples/s"
    yield "mean", format_seconds(summary.mean_s)
    for percentile in (50.0, 90.0, 99.0):
        if percentile in summary.percentiles_s:
            yield f"p{percentile:g}", format_seconds(summary.percentiles_s[percentile])


def _violations_text(settings: LoadgenSettings, measurement: LoadMeasurement) -> Text:
    counts = measurement.counts
    text = f"{counts.violations:,} of {counts.queries:,}"
    text += "; no QoS was given" if settings.qos_ms is None else f" beyond {settings.qos_ms:g} ms"
    ended = {"rejected": counts.rejected, "expired": counts.expired, "failed": counts.failed}
    if details := ", ".join(f"{count:,} {how}" for how, count in ended.items() if count):
        text += f" ({details})"
    return Text(text, "red" if counts.violations else "green")
