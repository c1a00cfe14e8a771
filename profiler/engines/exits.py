"""``synergai engines exits``: stages of an engine with early exits."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final

import typer

from profiler.engines.self_check import StagedChecks
from synergai.cli.options import DEFAULT_MODELS, AsJson, Models
from synergai.cli.output import format_percent, print_json, print_table, to_jsonable

if TYPE_CHECKING:
    from profiler.cutting.exits import MadeExit

app: Final = typer.Typer()


@app.command(
    epilog="Example: [bold]synergai engines exits digits_mobilenet --at Conv2d_2_pointwise/Relu6 "
    "--at Conv2d_5_pointwise/Relu6[/bold]"
)
def exits(
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="An ONNX classifier, or NAME/N.")],
    at: Annotated[
        list[str],
        typer.Option(
            "--at",
            metavar="TENSOR",
            help="Where to cut, with an exit; repeat it in the order of the data flow.",
        ),
    ],
    models: Models = DEFAULT_MODELS,
    loss: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of right answers that may be lost among the queries that leave at an exit.",
        ),
    ] = 0.01,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace stages of the same name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make stages of an engine at whose ends sure queries leave with their answer.

    Each exit is a linear classifier, a head, on the pooled tensor of a cut. The heads are trained
    on every other labelled sample of the engine, and the others calibrate the thresholds: a query
    leaves if its likeliest class is probable enough. The engine itself stays as it is.
    """
    from profiler.cutting.exits import make_exits
    from profiler.cutting.stages import cut_engine
    from profiler.engines.check import run_samples

    checks = StagedChecks()
    engine = cut_engine(models, name)
    stages, made = make_exits(engine, models, at, run_samples, checks, loss=loss, replace=replace)
    results = {stage.name: checks.remember(stage) for stage in stages}
    if as_json:
        print_json(
            {"stages": [each.name for each in stages], "exits": [_record(each) for each in made]}
        )
        return
    for stage in stages:
        typer.echo(f"{stage.name}: {stage.file}")
        typer.echo(results[stage.name])
    print_table(
        ("exit", "work before", "head alone", "threshold", "of those here leave", "accuracy"),
        map(_row, made),
    )
    # The work behind an exit counts for those who get there.
    works = [0.0, *(each.cut.work for each in made), 1.0]
    reached = [1.0, *(each.reach * (1 - each.exit.rate) for each in made)]
    steps = zip(reached, pairwise(works), strict=True)
    work = sum(share * (end - begin) for share, (begin, end) in steps)
    typer.echo(
        f"without exits {format_percent(made[0].exit.whole_accuracy)} of the samples are right; "
        f"with all of them, {format_percent(work)} of the work is left"
    )


def _row(made: MadeExit) -> tuple[str, ...]:
    return (
        made.cut.tensor,
        f"{made.cut.work:.1%}",
        f"{made.alone:.1%}",
        f"{made.exit.threshold:.4f}",
        f"{made.exit.rate:.1%}",
        f"{made.exit.accuracy:.1%}",
    )


def _record(made: MadeExit) -> dict[str, object]:
    return {
        "tensor": made.cut.tensor,
        "work_before": made.cut.work,
        "head_accuracy": made.alone,
        "reach": made.reach,
        **to_jsonable(made.exit),
    }
