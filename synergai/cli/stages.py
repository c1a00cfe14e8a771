"""``synergai engines cuts`` and ``split``: where an engine can be cut, and its stages."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.filesize import decimal

from synergai.cli.commands import check_plot
from synergai.cli.options import DEFAULT_MODELS, AsJson, Models
from synergai.cli.output import print_json, print_table

if TYPE_CHECKING:
    from synergai.models.cutting.cuts import Cut
    from synergai.models.formats.inspect import ModelDescription

app: Final = typer.Typer()

_Name = Annotated[str, typer.Argument(metavar="ENGINE", help="An ONNX engine, or NAME/N.")]


@app.command(epilog="Example: [bold]synergai engines cuts onnx_mobilenet_op11 --seams[/bold]")
def cuts(
    name: _Name,
    models: Models = DEFAULT_MODELS,
    seams: Annotated[
        bool, typer.Option("--seams", help="Only cuts behind an activation or a pool.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw sizes and weights into a PNG file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tensors at which an engine can be cut into stages.

    These are the tensors through which all data flows. The work before a cut is an estimate from
    the shapes of the operators. Behind an activation or a pool, a cut is a seam: no runtime
    computes the operators on both sides as one. At an exact seam, which one operator reads, the
    stages are expected to compute the same bits as the whole engine.
    """
    from synergai.models.cutting.stages import cut_engine

    if plot is not None:
        check_plot(plot)
    found = [cut for cut in cut_engine(models, name).cuts if cut.seam or not seams]
    if plot is not None:
        from synergai.cli.cuts_plot import plot_cuts

        plot_cuts(found, f"Cuts of {name}", plot)
    if as_json:
        print_json(found)
        return
    print_table(
        ("cut", "tensor", "shape", "size", "work before", "weights before", "after", "seam"),
        map(_row, found),
        optional=("shape", "after"),
    )
    if plot is not None:
        typer.echo(f"plot: {plot}")


@app.command(
    epilog="Example: [bold]synergai engines split onnx_mobilenet_op11 "
    "--at Conv2d_6_depthwise/Relu6[/bold]"
)
def split(
    name: _Name,
    at: Annotated[
        list[str],
        typer.Option(
            "--at", metavar="TENSOR", help="Where to cut; repeat it in the order of the data flow."
        ),
    ],
    models: Models = DEFAULT_MODELS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace stages of the same name.")
    ] = False,
) -> None:
    """Make stages of an engine: engines that each compute the part between two cuts.

    A stage is called NAME.s0-12, by the numbers of its cuts. It is profiled, pushed and loaded like
    any engine, but is not listed to clients. Each one is loaded once, as an agent does, before all
    of them are added.
    """
    from synergai.cli.self_check import StagedCheck
    from synergai.models.cutting.stages import cut_engine, split_engine

    checks: dict[str, StagedCheck] = {}

    def check(directory: Path, stage: str, description: ModelDescription) -> None:
        checks[stage] = StagedCheck(enabled=True)
        checks[stage](directory, stage, description)

    for definition in split_engine(cut_engine(models, name), models, at, check, replace=replace):
        checks[definition.name].remember(definition)
        typer.echo(f"{definition.name}: {definition.file}")
        typer.echo(checks[definition.name].result)


def _row(cut: Cut) -> tuple[str, ...]:
    return (
        str(cut.position),
        cut.tensor,
        f"{cut.datatype} {list(cut.shape)}",
        decimal(cut.size_bytes),
        f"{cut.work:.1%}",
        decimal(cut.weights_before),
        decimal(cut.weights_after),
        "exact" if cut.exact else "yes" if cut.seam else "",
    )
