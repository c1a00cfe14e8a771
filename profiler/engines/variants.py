"""``synergai engines variants`` and ``front``: makes variants of an engine, and compares them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from synergai.cli.options import DEFAULT_DICTIONARY, DEFAULT_MODELS, Dictionary, Models
from synergai.cli.output import format_percent, format_rate, print_table
from synergai.domain import Origin
from synergai.profiles.dictionary import common_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import Configuration, EngineName, Variant, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry


app: Final = typer.Typer()


@app.command(epilog="Example: [bold]synergai engines variants onnx_digits[/bold]")
def variants(
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="An engine, or NAME/N.")],
    models: Models = DEFAULT_MODELS,
) -> None:
    """Make an 8-bit variant of each ONNX model of an engine.

    The integers are calibrated on the engine's samples. Each variant is loaded as an agent does,
    and its accuracy is measured if the samples have labels. The engine stays usable; agents find
    the new variants.
    """
    from profiler.engines.check import check_variant
    from profiler.zoo.variants import make_variants

    console = Console(stderr=True)
    definition = make_variants(
        models,
        name,
        check_variant,
        lambda text: console.print(text, markup=False, highlight=False),
    )
    print_table(
        ("variant", "size", "accuracy", "origin"),
        (
            (
                each.name,
                decimal(each.file.stat().st_size),
                format_percent(each.accuracy) or "unknown",
                "" if each.accuracy is None else each.origin.value,
            )
            for each in definition.variants
        ),
    )
    without = tuple(each.name for each in definition.variants if each.accuracy is None)
    if note := accuracy_note(definition.name, without, [each.name for each in definition.variants]):
        typer.echo(note)


def accuracy_note(engine: str, without: Sequence[str], variants: Sequence[str]) -> str:
    """Return what follows from variants `without` accuracy; empty if nothing does."""
    if not without or len(variants) < 2:
        return ""
    if len(without) == len(variants):
        rule = f"{variants[0]} answers while it can be in time, and another one only if it is named"
    else:
        rule = "such a variant answers only if it is named"
    return (
        f"{engine}: no accuracy of {', '.join(without)} in engine.toml. Until it is measured, "
        f"{rule}, or the fastest and no other one is in time. To measure it, add 'labels' "
        "to samples.npz and run 'synergai profile'."
    )


@app.command(epilog="Example: [bold]synergai engines front resnet50[/bold]")
def front(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="An engine with variants.")],
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    worker_class: Annotated[str | None, typer.Option(help="Only this worker class.")] = None,
    models: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Model directory, for accuracies that are not measured."),
    ] = DEFAULT_MODELS,
) -> None:
    """Show accuracy and throughput of an engine's variants, and which of them are worth having.

    There is a front for each worker class and configuration. A variant is dominated if another one
    is at least as fast and as accurate; differences below their standard error are ignored.
    """
    from profiler.dictionary.files import load_dictionary
    from synergai.errors import NotFound
    from synergai.names import validate_engine

    name = validate_engine(engine)
    entries = [
        entry
        for entry in load_dictionary(dictionary)
        if entry.engine == name and worker_class in (None, entry.worker_class)
    ]
    measure = f"'synergai profile --engines {name}'"
    if not entries:
        of = f"engine {name!r}" + (f" on {worker_class}" if worker_class else "")
        raise NotFound(f"{dictionary} has no entry of {of}; measure it with {measure}")
    fronts = variant_fronts(entries, _declared(models, name))
    if not fronts:
        raise NotFound(
            f"the entries of engine {name!r} in {dictionary} have no variants; make some with "
            f"'synergai engines variants {name}', and measure them with {measure}"
        )
    for number, each in enumerate(fronts):
        typer.echo(f"{'' if not number else chr(10)}{each.worker_class}, {each.configuration}")
        _print_front(each)


def _declared(models: Path, name: str) -> dict[str, Variant]:
    """Return what the engine's folder says of its variants; nothing without the engine."""
    from synergai.domain import Variant
    from synergai.errors import NotFound
    from synergai.models.directory import ModelDirectory

    try:
        definition = ModelDirectory(models).get(name)
    except NotFound:
        return {}
    return {
        each.name: Variant(name=each.name, accuracy=each.accuracy or 0.0, origin=each.origin)
        for each in definition.variants
    }


def _print_front(front: VariantFront) -> None:
    best = max((point for point in front.points if point.accuracy), default=None, key=_accuracy)
    print_table(
        ("variant", "QPS", "accuracy", "samples", "origin", "speed", "loss", ""),
        (_row(point, best) for point in front.points),
    )


def _row(point: FrontPoint, best: FrontPoint | None) -> tuple[str | Text, ...]:
    # Variants that differ by less than their errors are equally fast.
    qps = f"{format_rate(point.qps)} ± {point.qps_error:.1%}"
    if point.accuracy is None or point.origin is None or best is None or best.accuracy is None:
        remark = Text("measured on other samples" if point.on_other_samples else "", "yellow")
        return point.variant, qps, "unknown", "", "", "", "", remark
    error = "" if point.accuracy_error is None else f" ± {point.accuracy_error:.2%}"
    loss = (best.accuracy - point.accuracy) * 100
    remark = (
        Text(f"dominated by {point.dominated_by}", "dim")
        if point.dominated_by
        else Text("on the front", "green")
    )
    return (
        point.variant,
        qps,
        f"{point.accuracy:.2%}{error}",
        f"{point.samples:,}" if point.samples else "",
        point.origin.value,
        f"{point.qps / best.qps:.2f}x",
        f"{loss:.2f} points",
        remark,
    )


# A variant is *dominated* if another one is at least as fast and as accurate. Differences below
# their standard error are ignored: of two variants that cannot be told apart in one figure, the one
# that is better in the other remains.

MIN_QPS_ERROR: Final = 0.01
"""Least standard error of the logarithm of a QPS: runs differ by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A variant on a worker class in a configuration.

    Attributes:
        qps_error: standard error of the logarithm of the throughput.
        accuracy: share of right answers, 0 to 1; None if it is not known.
        accuracy_error: its standard error; None if it is not known.
        samples: number of samples that the accuracy was measured on; 0 if it was not measured here.
        origin: where the accuracy comes from; None if it is not known.
        dominated_by: a variant of the front that makes this one pointless; empty if it is on the
            front, or if its accuracy is not known.
        on_other_samples: whether an accuracy was measured, but on other samples than most
            other variants, so that it does not count.
    """

    variant: str
    qps: float
    qps_error: float
    accuracy: float | None = None
    accuracy_error: float | None = None
    samples: int = 0
    origin: Origin | None = None
    dominated_by: str = ""
    on_other_samples: bool = False

    @property
    def on_front(self) -> bool:
        """Whether no other variant dominates it."""
        return self.accuracy is not None and not self.dominated_by


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFront:
    """The variants of an engine on a worker class in a configuration.

    Attributes:
        points: the variants, the fastest first.
    """

    engine: EngineName
    worker_class: WorkerClass
    configuration: Configuration
    points: tuple[FrontPoint, ...]

    @property
    def front(self) -> list[FrontPoint]:
        """The variants that no other one dominates, the fastest first."""
        return [point for point in self.points if point.on_front]


def variant_fronts(
    entries: Iterable[ProfileEntry], declared: Mapping[str, Variant]
) -> list[VariantFront]:
    """Return the fronts of one engine, sorted by worker class and configuration.

    Args:
        entries: the entries of its variants; those without a variant are left out.
        declared: what the engine's folder says of each variant, for accuracies that were not
            measured.
    """
    rows: dict[tuple[EngineName, WorkerClass], list[ProfileEntry]] = {}
    for entry in entries:
        rows.setdefault((entry.engine, entry.worker_class), []).append(entry)
    samples = {key: common_samples(row) for key, row in rows.items()}
    groups: dict[tuple[EngineName, WorkerClass, Configuration], list[FrontPoint]] = {}
    for entry in (each for row in rows.values() for each in row):
        if entry.configuration.variant:
            key = entry.engine, entry.worker_class, replace(entry.configuration, variant="")
            variant = declared.get(entry.configuration.variant)
            groups.setdefault(key, []).append(
                _point(entry, variant, samples[entry.engine, entry.worker_class])
            )
    return [
        VariantFront(
            engine=engine,
            worker_class=worker_class,
            configuration=configuration,
            points=tuple(_marked(points)),
        )
        for (engine, worker_class, configuration), points in sorted(
            groups.items(), key=lambda item: item[0]
        )
    ]


def _point(entry: ProfileEntry, declared: Variant | None, samples: str) -> FrontPoint:
    name, qps_error = entry.configuration.variant, max(entry.error, MIN_QPS_ERROR)
    if entry.is_accurate_on(samples):
        return FrontPoint(
            variant=name,
            qps=entry.qps,
            qps_error=qps_error,
            accuracy=entry.accuracy,
            accuracy_error=entry.accuracy_error,
            samples=entry.accuracy_samples,
            origin=Origin.MEASURED,
        )
    known = declared is not None and declared.accuracy
    return FrontPoint(
        variant=name,
        qps=entry.qps,
        qps_error=qps_error,
        accuracy=declared.accuracy if declared is not None and known else None,
        origin=declared.origin if declared is not None and known else None,
        on_other_samples=entry.accuracy_samples > 0,
    )


def _marked(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points, the fastest first, with what dominates them."""
    ordered = sorted(points, key=lambda point: (-point.qps, -(point.accuracy or 0), point.variant))
    known = [point for point in ordered if point.accuracy is not None]
    # Only members of the front dominate others: a chain of variants whose neighbours cannot be
    # told apart would otherwise vanish but for its fastest one.
    front: list[FrontPoint] = []
    for point in known:
        if front and not _is_more_accurate(point, max(front, key=_accuracy)):
            continue
        # Those that are not really faster than a more accurate one are pointless.
        front = [each for each in front if _is_faster(each, point)]
        front.append(point)
    return [
        dataclasses.replace(point, dominated_by=_dominator(point, front))
        if point.accuracy is not None and point not in front
        else point
        for point in ordered
    ]


def _dominator(point: FrontPoint, front: Sequence[FrontPoint]) -> str:
    """Return the most accurate variant of the front that is not significantly slower."""
    as_fast = [other for other in front if not _is_faster(point, other)]
    return max(as_fast or front[:1], key=_accuracy).variant


def _is_faster(one: FrontPoint, other: FrontPoint) -> bool:
    difference = math.log(one.qps / other.qps)
    return difference > math.hypot(one.qps_error, other.qps_error)


def _is_more_accurate(one: FrontPoint, other: FrontPoint) -> bool:
    error = math.hypot(one.accuracy_error or 0, other.accuracy_error or 0)
    return _accuracy(one) - _accuracy(other) > error


def _accuracy(point: FrontPoint) -> float:
    return point.accuracy or 0.0
