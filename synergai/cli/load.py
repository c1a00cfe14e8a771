"""``synergai load``: send a trace of requests, or search the rate that is still served well."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from synergai.cli.commands import require, settings_command
from synergai.cli.output import plain, print_facts, print_json, print_table, rate, seconds
from synergai.loadgen.outcome import raise_on_failures
from synergai.loadgen.traces.settings import LoadSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from synergai.loadgen.traces.request_log import RunSummary
    from synergai.loadgen.traces.run import TraceRun
    from synergai.loadgen.traces.search import SearchResult, Trial


_SAY_S: Final = 0.5


def load(settings: LoadSettings) -> None:
    """Send requests when a trace says, whatever became of those before: an open loop.

    Latency counts from the instant at which a request was to be sent. A violation is a request
    that was not answered in time: late, expired, rejected or failed; goodput is the rate of all
    others. If this machine could not keep to the trace the run is invalid, and says so.

    The exit code is 1 if any request failed for another reason than that it was rejected or
    expired. A search ends at once if the gateway cannot be asked any more.
    """
    require("hdrh")
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
    if settings.plot is not None:
        require("matplotlib")
    result = _driven(settings)
    if settings.plot is not None:
        from synergai.loadgen.traces.plot import plot_run

        plot_run(result.log, settings.engine, settings.plot)
    if settings.as_json:
        print_json(_record(settings, result))
    else:
        _print(settings, result)
    figures = result.figures
    raise_on_failures(figures.failed, figures.requests, figures.first_failure)


def _driven(settings: LoadSettings) -> TraceRun:
    import uvloop

    from synergai.loadgen.traces.run import run_trace

    total = math.ceil(settings.curve().total)
    with _line() as say:
        return uvloop.run(run_trace(settings, lambda sent: say(f"{sent:,} of {total:,} requests")))


def _search(settings: LoadSettings) -> None:
    import uvloop

    from synergai.loadgen.traces.run import search_goodput

    with _line() as say:

        def report(trial: Trial) -> None:
            say(f"{rate(trial.rate)} requests/s: {trial.attainment:.2%} in time")

        found = uvloop.run(search_goodput(settings, report))
    if settings.as_json:
        print_json({"engine": settings.engine, "target": settings.target, **plain(found)})
    else:
        _print_search(settings, found)
    raise_on_failures(
        sum(trial.failed for trial in found.trials),
        sum(trial.requests for trial in found.trials),
        next((trial.first_failure for trial in found.trials if trial.failed), ""),
    )


@contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    """A line on a terminal that tells how far it is.

    Not one of rich's bars: drawing one takes so long that requests would be sent late.
    """
    terminal = sys.stderr.isatty()
    said_at = -math.inf

    def say(text: str) -> None:
        nonlocal said_at
        now = time.monotonic()
        if terminal and now - said_at > _SAY_S:
            said_at = now
            typer.echo(f"\r\x1b[K{text}", err=True, nl=False)

    try:
        yield say
    finally:
        if terminal and said_at > -math.inf:
            typer.echo("\r\x1b[K", err=True, nl=False)


def _record(settings: LoadSettings, result: TraceRun) -> dict[str, object]:
    from synergai.loadgen.traces.request_log import by_second

    figures = result.figures
    return {
        "engine": settings.engine,
        "target": settings.target,
        "trace": settings.trace,
        "deadline_ms": settings.deadline_ms,
        "inputs": result.origin,
        "valid": figures.send_delay.is_valid,
        **plain(figures),
        "violations": figures.violations,
        "attainment": figures.attainment,
        "by_second": by_second(result.log),
    }


def _print(settings: LoadSettings, result: TraceRun) -> None:
    figures = result.figures
    answered = figures.met + figures.late
    facts: list[tuple[str, str | Text]] = [
        ("engine", settings.engine),
        ("inputs", result.origin),
        ("requests", f"{figures.requests:,} in {seconds(figures.seconds)}"),
        ("offered", f"{rate(figures.offered)} requests/s"),
        ("goodput", f"{rate(figures.goodput)} requests/s"),
        ("violations", _violations(figures, settings.deadline_ms)),
        ("expired", f"{figures.expired:,}"),
        ("rejected", _rejected(figures)),
        ("failed", f"{figures.failed:,}"),
        ("answered", f"{answered:,}, of which {figures.late:,} late"),
        *((f"p{p:g}", seconds(value)) for p, value in figures.latency_s.items()),
        ("slowest", seconds(figures.max_s)),
        ("sent late", _punctuality(settings, figures)),
    ]
    if figures.first_failure:
        facts.append(("first failure", Text(figures.first_failure, "red")))
    print_facts(facts)
    valid = figures.send_delay.is_valid
    typer.echo(f"The run is {'valid' if valid else 'INVALID: this machine could not keep up'}")


def _violations(figures: RunSummary, deadline_ms: float | None) -> Text:
    text = f"{figures.violations:,} of {figures.requests:,}"
    if deadline_ms is not None:
        text += f" not answered within {deadline_ms:g} ms"
    return Text(text, "red" if figures.violations else "green")


def _rejected(figures: RunSummary) -> str:
    if not figures.rejected:
        return "0"
    return f"{figures.rejected:,}, within {seconds(figures.rejection_s[99.0])} at p99"


def _punctuality(settings: LoadSettings, figures: RunSummary) -> Text:
    found = figures.send_delay
    text = f"{found.late:,} by more than {settings.late_ms:g} ms, at most {seconds(found.max_s)}"
    return Text(text, "" if found.is_valid else "red")


def _print_search(settings: LoadSettings, found: SearchResult) -> None:
    print_table(
        ("requests/s", "in time", "goodput", "verdict"),
        [
            (
                rate(trial.rate),
                f"{trial.attainment:.2%}",
                rate(trial.goodput),
                _verdict(trial, settings.attainment),
            )
            for trial in found.trials
        ],
    )
    goal = f"{100 * settings.attainment:.4g}% of the requests within {settings.deadline_ms:g} ms"
    if not found.rate:
        typer.echo(f"No rate was found at which {goal} are answered")
    elif math.isfinite(found.above):
        typer.echo(
            f"{rate(found.rate)} requests/s: {goal}; no more than {rate(found.above)} requests/s"
        )
    else:
        typer.echo(f"{rate(found.rate)} requests/s or more: {goal}")
    if found.limited_by_generator:
        typer.echo("Higher rates cannot be tried from here: this machine sent requests late")


def _verdict(trial: Trial, attainment: float) -> Text:
    if trial.attainment >= attainment:
        return Text("met", "green")
    return Text("missed", "red") if trial.is_valid else Text("sent late, says nothing", "yellow")
