"""``synergai load``: send a trace of requests, or search for the highest sustainable rate."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from profiler.loadgen.loadgen_settings import LoadSettings
from profiler.loadgen.outcome import raise_on_failures
from synergai.cli.commands import require, settings_command
from synergai.cli.output import (
    format_rate,
    format_seconds,
    print_facts,
    print_json,
    print_table,
    to_jsonable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from profiler.loadgen.traces.request_log import RunSummary, VariantFigures
    from profiler.loadgen.traces.run import RateTrial, SearchResult, TraceRun


_STATUS_INTERVAL_S: Final = 0.5


def load(settings: LoadSettings) -> None:
    """Send requests at the times of a trace, independently of responses (open loop).

    Latency is measured from a request's scheduled time. A violation is a late, expired, rejected
    or failed request; goodput is the rate of all others. A run is invalid if this machine could
    not send requests on time.

    The exit code is 1 if a request failed for any reason other than rejection or expiry. A search
    stops when the gateway becomes unreachable.
    """
    require("numpy")
    if settings.find_goodput:
        _search(settings)
    else:
        _run(settings)


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Example: [bold]synergai load onnx_digits --rate 200 --deadline-ms 50[/bold], or "
    "[bold]--find-goodput[/bold] with it"
)(settings_command(LoadSettings, load))


def _run(settings: LoadSettings) -> None:
    result = _run_trace(settings)
    if settings.as_json:
        print_json(_to_record(settings, result))
    else:
        _print_run(settings, result)
    figures = result.figures
    raise_on_failures(figures.failed, figures.requests, figures.first_failure)


def _run_trace(settings: LoadSettings) -> TraceRun:
    import uvloop

    from profiler.loadgen.traces.run import run_trace

    total = math.ceil(settings.curve().total)
    with _status_line() as show:
        return uvloop.run(run_trace(settings, lambda sent: show(f"{sent:,} of {total:,} requests")))


def _search(settings: LoadSettings) -> None:
    import uvloop

    from profiler.loadgen.traces.run import search_goodput

    with _status_line() as show:

        def report(trial: RateTrial) -> None:
            show(f"{format_rate(trial.rate)} requests/s: {trial.attainment:.2%} in time")

        found = uvloop.run(search_goodput(settings, report))
    if settings.as_json:
        print_json({"engine": settings.engine, "target": settings.target, **to_jsonable(found)})
    else:
        _print_search(settings, found)
    raise_on_failures(
        sum(trial.failed for trial in found.trials),
        sum(trial.requests for trial in found.trials),
        next((trial.first_failure for trial in found.trials if trial.failed), ""),
    )


@contextmanager
def _status_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a progress text on the terminal, if there is one.

    A rich progress bar is so slow to draw that requests would be sent late.
    """
    terminal = sys.stderr.isatty()
    shown_at = -math.inf

    def show(text: str) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if terminal and now - shown_at > _STATUS_INTERVAL_S:
            shown_at = now
            typer.echo(f"\r\x1b[K{text}", err=True, nl=False)

    try:
        yield show
    finally:
        if terminal and shown_at > -math.inf:
            typer.echo("\r\x1b[K", err=True, nl=False)


def _to_record(settings: LoadSettings, result: TraceRun) -> dict[str, object]:
    from profiler.loadgen.traces.request_log import by_second

    figures = result.figures
    return {
        "engine": settings.engine,
        "target": settings.target,
        "trace": settings.trace,
        "deadline_ms": settings.deadline_ms,
        "inputs": result.origin,
        "valid": figures.send_delay.is_valid,
        **to_jsonable(figures),
        "violations": figures.violations,
        "attainment": figures.attainment,
        "variants": None if result.variants is None else to_jsonable(result.variants),
        "by_second": by_second(result.log),
    }


def _print_run(settings: LoadSettings, result: TraceRun) -> None:
    figures = result.figures
    answered = figures.met + figures.late
    facts: list[tuple[str, str | Text]] = [
        ("engine", settings.engine),
        ("inputs", result.origin),
        ("requests", f"{figures.requests:,} in {format_seconds(figures.seconds)}"),
        ("offered", f"{format_rate(figures.offered)} requests/s"),
        ("goodput", f"{format_rate(figures.goodput)} requests/s"),
        *_variant_facts(result.variants, settings.min_accuracy),
        ("violations", _violations_text(figures, settings.deadline_ms)),
        ("expired", f"{figures.expired:,}"),
        ("rejected", _rejected_text(figures)),
        ("failed", f"{figures.failed:,}"),
        ("answered", f"{answered:,}, {figures.late:,} of them late"),
        *((f"p{p:g}", format_seconds(value)) for p, value in figures.latency_s.items()),
        ("slowest", format_seconds(figures.max_s)),
        ("sent late", _punctuality_text(settings, figures)),
    ]
    if figures.first_failure:
        facts.append(("first failure", Text(figures.first_failure, "red")))
    print_facts(facts)
    valid = figures.send_delay.is_valid
    typer.echo(f"The run is {'valid' if valid else 'INVALID: this machine sent requests late'}")


def _variant_facts(figures: VariantFigures | None, floor: float) -> list[tuple[str, str | Text]]:
    """Return the facts of an engine with variants; none of another one."""
    if figures is None:
        return []
    total = sum(figures.answers.values())
    shares = ", ".join(f"{name} {count / total:.1%}" for name, count in figures.answers.items())
    accuracy = f"{figures.effective_accuracy:.2%}, late and missing answers as 0"
    if unknown := figures.answers.keys() - figures.accuracies.keys():
        accuracy += f", and as that of {', '.join(sorted(unknown))} is not known"
    facts: list[tuple[str, str | Text]] = [("effective accuracy", accuracy), ("variants", shares)]
    if floor:
        style = "red" if figures.floor_violations else ""
        facts.append(("below the floor", Text(f"{figures.floor_violations:,}", style)))
    return facts


def _violations_text(figures: RunSummary, deadline_ms: float | None) -> Text:
    text = f"{figures.violations:,} of {figures.requests:,}"
    if deadline_ms is not None:
        text += f" not answered within {deadline_ms:g} ms"
    return Text(text, "red" if figures.violations else "green")


def _rejected_text(figures: RunSummary) -> str:
    if not figures.rejected:
        return "0"
    return f"{figures.rejected:,}, within {format_seconds(figures.rejection_s[99.0])} at p99"


def _punctuality_text(settings: LoadSettings, figures: RunSummary) -> Text:
    found = figures.send_delay
    most = format_seconds(found.max_s)
    text = f"{found.late:,} by more than {settings.late_ms:g} ms, at most {most}"
    return Text(text, "" if found.is_valid else "red")


def _print_search(settings: LoadSettings, found: SearchResult) -> None:
    print_table(
        ("requests/s", "in time", "goodput", "verdict"),
        [
            (
                format_rate(trial.rate),
                f"{trial.attainment:.2%}",
                format_rate(trial.goodput),
                _verdict_text(trial, settings.attainment),
            )
            for trial in found.trials
        ],
    )
    goal = f"{100 * settings.attainment:.4g}% of the requests within {settings.deadline_ms:g} ms"
    if not found.rate:
        typer.echo(f"In most trials at each tested rate, fewer than {goal}")
    elif math.isfinite(found.above):
        typer.echo(
            f"{format_rate(found.rate)} requests/s: {goal}; "
            f"no more than {format_rate(found.above)} requests/s"
        )
    else:
        typer.echo(f"{format_rate(found.rate)} requests/s or more: {goal}")
    if found.limited_by_generator and found.rate:
        typer.echo("Higher rates cannot be tested from this machine: it sent requests late")
    elif found.limited_by_generator:
        typer.echo("This machine sent requests late: repeat the search while it is less busy")


def _verdict_text(trial: RateTrial, attainment: float) -> Text:
    if trial.attainment >= attainment:
        return Text("met", "green")
    return Text("missed", "red") if trial.is_valid else Text("inconclusive: sent late", "yellow")
