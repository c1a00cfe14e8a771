"""``synergai engines front``: accuracy against throughput of an engine's variants."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from synergai.cli.options import DEFAULT_DICTIONARY, DEFAULT_MODELS, AsJson, Dictionary
from synergai.cli.output import format_rate, print_json, print_table, to_jsonable

if TYPE_CHECKING:
    from profiler.engines.fronts import FrontPoint, VariantFront
    from synergai.domain import Variant

app: Final = typer.Typer()


@app.command(epilog="Example: [bold]synergai engines front resnet50[/bold]")
def front(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="An engine with variants.")],
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    worker_class: Annotated[str | None, typer.Option(help="Only this worker class.")] = None,
    models: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Model directory, for accuracies that are not measured."),
    ] = DEFAULT_MODELS,
    as_json: AsJson = False,
) -> None:
    """Show accuracy and throughput of an engine's variants, and which of them are worth having.

    There is a front for each worker class and configuration. A variant is dominated if another one
    is at least as fast and as accurate; differences below their standard error are ignored.
    """
    from profiler.engines.fronts import variant_fronts
    from synergai.errors import NotFound
    from synergai.profiles.files import load_dictionary
    from synergai.versions import validate_engine

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
    if as_json:
        print_json(
            [
                {
                    **to_jsonable(each),
                    "configuration": str(each.configuration),
                    "points": [
                        {**to_jsonable(point), "on_front": point.on_front} for point in each.points
                    ],
                }
                for each in fronts
            ]
        )
        return
    for number, each in enumerate(fronts):
        typer.echo(f"{'' if not number else chr(10)}{each.worker_class}, {each.configuration}")
        _print(each)


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


def _print(front: VariantFront) -> None:
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


def _accuracy(point: FrontPoint) -> float:
    return point.accuracy or 0.0
