"""Output of measurements as a table or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import typer
from rich.text import Text

from synergai.cli.output import (
    format_accuracy,
    format_joules,
    format_rate,
    format_seconds,
    format_watts,
    print_table,
)
from synergai.profiles.dictionary import to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from profiler.measuring.measurement import Measurement
    from synergai.profiles.dictionary import ProfileEntry


def measurement_record(measurement: Measurement) -> dict[str, object]:
    """Return a measurement as a JSON object; `joules` is the energy per query."""
    return {
        **to_record(measurement.entry),
        "joules": measurement.entry.joules,
        "background": measurement.background,
        "fallback_share": measurement.fallback_share,
        "first_load_s": measurement.first_load_s,
        "single_stream": measurement.single_stream,
        "logs": str(measurement.logs),
    }


def disturbance_text(measurement: Measurement) -> str:
    """Return how much of the machine other processes took during a measurement."""
    return (
        f"{_name(measurement)}: disturbed, other processes took "
        f"{measurement.background:.1%} of the machine's CPU time"
    )


def print_measurements(measurements: Sequence[Measurement]) -> None:
    """Print a table of measurements, with columns for what not all of them have."""
    entries = [measurement.entry for measurement in measurements]
    shown = [
        column
        for column in _COLUMNS
        if column.is_shown is None or any(map(column.is_shown, entries))
    ]
    print_table(
        [column.name for column in shown],
        ([column.text(measurement) for column in shown] for measurement in measurements),
    )
    for remark in (provider_text, _invalid_text):
        for text in filter(None, map(remark, measurements)):
            typer.echo(text)


def provider_text(measurement: Measurement) -> str:
    """Return a remark about the execution provider of a measurement; empty if there is none."""
    texts = []
    if measurement.fallback_share:
        texts.append(f"{measurement.fallback_share:.0%} of the nodes fall back to another provider")
    if measurement.first_load_s is not None:
        texts.append(
            f"T_pre {format_seconds(measurement.entry.t_pre_s)} with a filled cache, "
            f"{format_seconds(measurement.first_load_s)} before"
        )
    return f"{_name(measurement)}: {'; '.join(texts)}" if texts else ""


def _invalid_text(measurement: Measurement) -> str:
    """Return why LoadGen calls the latencies of a measurement invalid; empty if it does not."""
    reason = measurement.single_stream.invalid_because
    return (
        f"{_name(measurement)}: the latencies are invalid for LoadGen: {reason}" if reason else ""
    )


def _name(measurement: Measurement) -> str:
    return f"{measurement.entry.engine}, {measurement.entry.configuration}"


class _Column(NamedTuple):
    """A column of the table.

    Attributes:
        is_shown: whether an entry has something to show in it; None for all.
    """

    name: str
    text: Callable[[Measurement], str | Text]
    is_shown: Callable[[ProfileEntry], object] | None = None


def _others(measurement: Measurement) -> Text:
    return Text(f"{measurement.background:.1%}", "red" if measurement.is_disturbed else "")


def _in_batches(measurement: Measurement) -> str:
    """Return the highest rate in batches, and their size."""
    rates = measurement.entry.batch_qps
    if not rates:
        return ""
    best = max(rates)
    return f"{format_rate(best)} of {2 ** (rates.index(best) + 1)}"


_COLUMNS: Final = (
    _Column("engine", lambda each: each.entry.engine),
    _Column(
        "variant",
        lambda each: each.entry.configuration.variant,
        lambda entry: entry.configuration.variant,
    ),
    _Column("threads", lambda each: str(each.entry.configuration.threads or "")),
    _Column(
        "mode",
        lambda each: each.entry.configuration.power_mode,
        lambda entry: entry.configuration.power_mode,
    ),
    _Column(
        "provider",
        lambda each: each.entry.configuration.execution_provider or "CPU",
        lambda entry: entry.configuration.execution_provider,
    ),
    _Column("QPS", lambda each: format_rate(each.entry.qps)),
    _Column("in batches", _in_batches, lambda entry: entry.batch_qps),
    _Column(
        "accuracy",
        lambda each: format_accuracy(each.entry),
        lambda entry: entry.accuracy_samples,
    ),
    _Column("T_pre", lambda each: format_seconds(each.entry.t_pre_s)),
    _Column("p50", lambda each: format_seconds(each.entry.latency_p50_s)),
    _Column("p90", lambda each: format_seconds(each.entry.latency_p90_s)),
    _Column("p99", lambda each: format_seconds(each.entry.latency_p99_s)),
    _Column("power", lambda each: format_watts(each.entry.watts), lambda entry: entry.watts),
    _Column("per query", lambda each: format_joules(each.entry.joules), lambda entry: entry.watts),
    _Column("timer", lambda each: f"{each.entry.timer} {each.single_stream.validity}".strip()),
    _Column("others", _others),
)
