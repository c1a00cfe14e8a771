"""Output of measurements as a table or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.text import Text

from synergai.cli.output import (
    format_joules,
    format_rate,
    format_seconds,
    format_watts,
    print_table,
)
from synergai.profiles.records import to_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.measurement import Measurement


def measurement_record(measurement: Measurement) -> dict[str, object]:
    """Return a measurement as a JSON object; `joules` is the energy per query."""
    return {
        **to_record(measurement.entry),
        "joules": measurement.entry.joules,
        "background": measurement.background,
        "elsewhere": measurement.elsewhere,
        "first_load_s": measurement.first_load_s,
        "single_stream": measurement.single_stream,
        "logs": str(measurement.logs),
    }


def disturbance_text(measurement: Measurement) -> str:
    """Return how much of the machine other processes took during a measurement."""
    entry = measurement.entry
    return (
        f"{entry.engine}, {entry.configuration}: disturbed, other processes took "
        f"{measurement.background:.1%} of the machine's CPU time"
    )


def print_measurements(measurements: Sequence[Measurement]) -> None:
    """Print a table of measurements, with columns for what not all of them have."""
    entries = [measurement.entry for measurement in measurements]
    modes = any(entry.configuration.power_mode for entry in entries)
    metered = any(entry.watts for entry in entries)
    provided = any(entry.configuration.execution_provider for entry in entries)
    variants = any(entry.configuration.variant for entry in entries)
    columns = (
        *("engine", *(["variant"] if variants else []), "threads"),
        *(["mode"] if modes else []),
        *(["provider"] if provided else []),
        *("QPS", "T_pre", "p50", "p90", "p99"),
        *(["power", "per query"] if metered else []),
        *("timer", "others"),
    )
    print_table(
        columns,
        (
            _row(each, variants=variants, modes=modes, metered=metered, provided=provided)
            for each in measurements
        ),
    )
    for text in filter(None, map(provider_text, measurements)):
        typer.echo(text)


def provider_text(measurement: Measurement) -> str:
    """Return what is notable about the execution provider of a measurement; empty if nothing is."""
    texts = []
    if measurement.elsewhere:
        texts.append(f"{measurement.elsewhere:.0%} of the nodes run elsewhere")
    if measurement.first_load_s is not None:
        texts.append(
            f"T_pre {format_seconds(measurement.entry.t_pre_s)} with a filled cache, "
            f"{format_seconds(measurement.first_load_s)} before"
        )
    name = f"{measurement.entry.engine}, {measurement.entry.configuration}"
    return f"{name}: {'; '.join(texts)}" if texts else ""


def _row(
    measurement: Measurement, *, variants: bool, modes: bool, metered: bool, provided: bool
) -> tuple[str | Text, ...]:
    entry = measurement.entry
    configuration = entry.configuration
    return (
        *(entry.engine, *([configuration.variant] if variants else [])),
        str(configuration.threads or ""),
        *([configuration.power_mode] if modes else []),
        *([configuration.execution_provider or "CPU"] if provided else []),
        *(format_rate(entry.qps), format_seconds(entry.t_pre_s)),
        *(
            format_seconds(entry.latency_p50_s),
            format_seconds(entry.latency_p90_s),
            format_seconds(entry.latency_p99_s),
        ),
        *([format_watts(entry.watts), format_joules(entry.joules)] if metered else []),
        f"{entry.timer} {measurement.single_stream.validity}".strip(),
        Text(f"{measurement.background:.1%}", "red" if measurement.is_disturbed else ""),
    )
