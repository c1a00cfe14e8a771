"""``synergai engines variants``: makes variants of an engine, and says what accuracy they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal

from synergai.cli.options import DEFAULT_MODELS, Models
from synergai.cli.output import format_percent, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence


app: Final = typer.Typer()


@app.command(epilog="Example: [bold]synergai engines variants onnx_digits[/bold]")
def variants(
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="An engine, or NAME/N.")],
    models: Models = DEFAULT_MODELS,
) -> None:
    """Make an 8-bit variant of each ONNX model of an engine.

    The integers are calibrated on the engine's samples. Each variant is run on them, and its
    accuracy is measured if they have labels. The engine stays usable; agents find the new variants.
    """
    from profiler.zoo.variants import make_variants

    console = Console(stderr=True)
    definition = make_variants(
        models,
        name,
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
