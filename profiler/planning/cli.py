"""``synergai plan``: whether to split an engine over workers, and where."""

from __future__ import annotations

from pathlib import Path  # typer reads the annotations of commands
from typing import Annotated, Final

import typer

from synergai.cli.options import (
    DEFAULT_DICTIONARY,
    DEFAULT_MODELS,
    AsJson,
    Dictionary,
    Models,
    parse_duration,
)
from synergai.cli.output import print_json
from synergai.core.routes.deployment import Objective  # noqa: TC001 - typer reads it
from synergai.core.routes.links import GATEWAY
from synergai.errors import InvalidInput, InvalidSettings

app: Final = typer.Typer(rich_markup_mode="rich")

_Fleet = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Workers and links, in TOML. Default: one worker of each class in the dictionary.",
    ),
]
_Planners = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Planner of routes; repeat it to compare some. Default: optimal."
    ),
]


@app.command(
    epilog="Example: [bold]synergai plan onnx_resnet50_op11 --queries 500 --fleet fleet.toml[/bold]"
)
def plan(
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="An engine, or NAME/N.")],
    queries: Annotated[
        int, typer.Option(min=1, max=10**9, metavar="INTEGER", help="Queries to run.")
    ] = 1,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time in which they have to end, such as 200ms."),
    ] = None,
    fleet: _Fleet = None,
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    models: Models = DEFAULT_MODELS,
    planner: _Planners = None,
    objective: Annotated[
        Objective, typer.Option(help="What the plan is to have the best of.")
    ] = "throughput",
    source: Annotated[
        str, typer.Option(metavar="WORKER", help="Where queries arise, and results return to.")
    ] = GATEWAY,
    as_json: AsJson = False,
) -> None:
    """Plan where an engine runs: whole on a worker, as replicas, or in stages.

    The times come from the dictionary, for engines and stages that are loaded. Exits with 1 if
    the deadline is missed.
    """
    from profiler.dictionary.files import load_dictionary
    from profiler.planning.options import OPTIMAL
    from profiler.planning.plan_case import Case, read_fleet
    from profiler.planning.plan_output import PlanAnswer, print_answer, record
    from synergai.core.routes.planner import ROUTE_PLANNERS

    planners = planner or [OPTIMAL]
    try:
        for each in planners:
            ROUTE_PLANNERS.check(each)
    except InvalidInput as error:
        raise InvalidSettings(f"--planner: {error}") from None
    deadline_s = None if deadline is None else parse_duration(deadline, "--deadline")
    if deadline_s is not None and not deadline_s > 0:
        raise InvalidSettings(f"--deadline: it must be positive, not {deadline_s:g} s")
    given = None if fleet is None else read_fleet(fleet)
    case = Case(name, models, load_dictionary(dictionary), given, source, queries)
    answer = PlanAnswer(case, case.weigh(planners), deadline_s, objective)
    if as_json:
        print_json(record(answer))
    else:
        print_answer(answer)
    if answer.slack_s is not None and answer.slack_s < 0:
        raise typer.Exit(1)
