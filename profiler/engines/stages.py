"""``synergai engines cuts``, ``split`` and ``exits``: where an engine can be cut, and stages."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path  # noqa: TC003  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.filesize import decimal

from synergai.cli.options import DEFAULT_DICTIONARY, DEFAULT_MODELS, AsJson, Dictionary, Models
from synergai.cli.output import format_percent, format_seconds, print_json, print_table, to_jsonable
from synergai.domain import WorkerClass
from synergai.runtime.paths import default_worker_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.cutting.cuts import Cut
    from profiler.cutting.stages import CutEngine, MadeExit
    from profiler.dictionary.stages import StageTime, StageTimes


app: Final = typer.Typer()

_Name = Annotated[str, typer.Argument(metavar="ENGINE", help="An ONNX engine, or NAME/N.")]


@app.command(epilog="Example: [bold]synergai engines cuts onnx_mobilenet_op11 --seams[/bold]")
def cuts(
    name: _Name,
    models: Models = DEFAULT_MODELS,
    seams: Annotated[
        bool, typer.Option("--seams", help="Only cuts behind an activation or a pool.")
    ] = False,
    worker_class: Annotated[
        str, typer.Option(metavar="NAME", help="Show the times of this worker class.")
    ] = default_worker_class(),
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    as_json: AsJson = False,
) -> None:
    """List the tensors at which an engine can be cut into stages.

    These are the tensors through which all data flows. The work before a cut is an estimate from
    the shapes of the operators. Behind an activation or a pool, a cut is a seam: no runtime
    computes the operators on both sides as one. At an exact seam, which one operator reads, the
    stages are expected to compute the same bits as the whole engine.

    The times of both sides come from the dictionary. Where they were not measured, they are
    predictions, marked by ~.
    """
    from profiler.cutting.stages import cut_engine

    engine = cut_engine(models, name)
    times = _times(engine, models, dictionary, WorkerClass(worker_class))
    found = [cut for cut in engine.cuts if cut.seam or not seams]
    end = len(engine.cuts) + 1
    sides = [
        [times.of(0, cut.position), times.of(cut.position, end)] if times else [] for cut in found
    ]
    if as_json:
        print_json(list(map(_record, found, sides)))
        return
    columns = ("cut", "tensor", "shape", "size", "work before")
    timed = () if times is None else ("time before", "time behind")
    print_table(
        (*columns, *timed, "weights before", "weights behind", "seam"),
        map(_row, found, sides),
        optional=("shape", "weights behind"),
    )
    if times is None:
        typer.echo(
            f"no times of class {worker_class}: 'synergai profile --stages --engines {name}' "
            "measures them there"
        )


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
    from profiler.cutting.stages import cut_engine, split_engine
    from profiler.engines.check import StagedChecks

    checks = StagedChecks()
    engine = cut_engine(models, name)
    for definition in split_engine(engine, models, at, checks, replace=replace):
        typer.echo(f"{definition.name}: {definition.file}")
        typer.echo(checks.result(definition.name))


def _times(
    engine: CutEngine, models: Path, dictionary: Path, worker_class: WorkerClass
) -> StageTimes | None:
    """Return the times of an engine's stages on a worker class; None if there are none."""
    from profiler.dictionary.files import load_dictionary
    from profiler.dictionary.origins import present_entries
    from profiler.dictionary.stages import stage_times

    if dictionary == DEFAULT_DICTIONARY and not dictionary.exists():
        return None
    entries, _ = present_entries(load_dictionary(dictionary), models, engine.definition)
    works = [cut.work for cut in engine.cuts]
    return stage_times(entries, engine.definition.name, worker_class, works)


def _row(cut: Cut, sides: Sequence[StageTime]) -> tuple[str, ...]:
    return (
        str(cut.position),
        cut.tensor,
        f"{cut.datatype} {list(cut.shape)}",
        decimal(cut.size_bytes),
        f"{cut.work:.1%}",
        *(f"{'' if side.measured else '~'}{format_seconds(side.seconds)}" for side in sides),
        decimal(cut.weights_before),
        decimal(cut.weights_after),
        "exact" if cut.exact else "yes" if cut.seam else "",
    )


def _record(cut: Cut, sides: Sequence[StageTime]) -> dict[str, Any]:
    times = [side._asdict() for side in sides]
    return {**to_jsonable(cut), **dict(zip(("head", "tail"), times, strict=False))}


_Loss = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of right answers that may be lost among the queries that leave at an exit.",
    ),
]


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
    loss: _Loss = 0.01,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace stages of the same name.")
    ] = False,
) -> None:
    """Make stages of an engine at whose ends sure queries leave with their answer.

    Each exit is a linear classifier, a head, on the pooled tensor of a cut. The heads are trained
    on every other labelled sample of the engine, and the others calibrate the thresholds: a query
    leaves if its likeliest class is probable enough. The engine itself stays as it is.
    """
    from profiler.cutting.stages import cut_engine, make_exits
    from profiler.engines.check import StagedChecks, run_samples

    checks = StagedChecks()
    engine = cut_engine(models, name)
    stages, made = make_exits(engine, models, at, run_samples, checks, loss=loss, replace=replace)
    for stage in stages:
        typer.echo(f"{stage.name}: {stage.file}")
        typer.echo(checks.result(stage.name))
    print_table(
        ("exit", "work before", "head alone", "threshold", "of those here leave", "accuracy"),
        map(_exit_row, made),
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


def _exit_row(made: MadeExit) -> tuple[str, ...]:
    return (
        made.cut.tensor,
        f"{made.cut.work:.1%}",
        f"{made.alone:.1%}",
        f"{made.exit.threshold:.4f}",
        f"{made.exit.rate:.1%}",
        f"{made.exit.accuracy:.1%}",
    )
