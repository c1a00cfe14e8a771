"""``synergai plan``: whether to split an engine over workers, and where."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
from matplotlib import colormaps

from profiler.figures import make_figure, plain_ticks, save
from synergai.cli.commands import check_plot
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from profiler.planning.plan import Share
    from profiler.planning.plan_output import PlanAnswer


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
    epilog="Example: [bold]synergai plan onnx_resnet50_op11 --queries 500 --fleet fleet.toml "
    "--explain[/bold]"
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
    explain: Annotated[
        bool, typer.Option("--explain", help="Show all that was considered.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the choice over time into a PNG file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan where an engine runs: whole on a worker, as replicas, or in stages.

    The times come from the dictionary, for engines and stages that are loaded. Exits with 1 if
    the deadline is missed.
    """
    from profiler.planning.options import OPTIMAL
    from profiler.planning.plan_case import Case, read_fleet
    from profiler.planning.plan_output import PlanAnswer, print_answer, record
    from synergai.core.routes.planner import ROUTE_PLANNERS
    from synergai.profiles.files import load_dictionary

    planners = planner or [OPTIMAL]
    try:
        for each in planners:
            ROUTE_PLANNERS.check(each)
    except InvalidInput as error:
        raise InvalidSettings(f"--planner: {error}") from None
    if plot is not None:
        check_plot(plot)
    deadline_s = None if deadline is None else parse_duration(deadline, "--deadline")
    if deadline_s is not None and not deadline_s > 0:
        raise InvalidSettings(f"--deadline: it must be positive, not {deadline_s:g} s")
    given = None if fleet is None else read_fleet(fleet)
    case = Case(name, models, load_dictionary(dictionary), given, source, queries)
    answer = PlanAnswer(case, case.weigh(planners), deadline_s, objective)
    if plot is not None:
        plot_plan(answer, plot)
    if as_json:
        print_json(record(answer))
    else:
        print_answer(answer, explain=explain)
        if plot is not None:
            typer.echo(f"plot: {plot}")
    if answer.slack_s is not None and answer.slack_s < 0:
        raise typer.Exit(1)


_QUERIES: Final = 12
_ROUTES: Final = 8
"""Routes that are drawn; there may be many replicas."""
_LEAST_HOP: Final = 0.02
"""Share of a query's time from which a hop has a row."""
_LEAST_NUMBERED: Final = 0.018
"""Share of the time axis from which a bar has the number of its query."""
_IDLE: Final = "#d3dae1"
_COLOURS: Final = colormaps["viridis"]


class _Bar(NamedTuple):
    """A query that occupies a worker or a link until `free`, and leaves it at `end`; in ms."""

    start: float
    free: float
    end: float


class _Row(NamedTuple):
    """A worker or a link with its queries, by their number."""

    label: str
    is_worker: bool
    bars: dict[int, _Bar]


def plot_plan(answer: PlanAnswer, path: Path) -> None:
    """Write a PNG of a plan."""
    rows = list(_rows(answer.choice.shares[:_ROUTES], answer.case.problem.source))
    figure = make_figure(10.0, 1.7 + 0.42 * len(rows))
    figure.suptitle(answer.reason(), fontsize=10, wrap=True)
    axes = figure.subplots()
    _draw_timeline(axes, rows)
    axes.set_xlim(left=0)
    axes.set_xlabel("time (ms)")
    plain_ticks(axes, "x")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _rows(shares: Sequence[Share], source: str) -> Iterator[_Row]:
    """Yield the links and workers of each route in the order of the data flow."""
    total = sum(share.queries for share in shares)
    counts = [max(1, round(min(_QUERIES, total) * share.queries / total)) for share in shares]
    order = sorted((turn / count, at) for at, count in enumerate(counts) for turn in range(count))
    for number, share in enumerate(shares):
        hosts = [source, *(leg.worker for leg in share.route.legs), source]
        ready = {query: 0.0 for query, (_, at) in enumerate(order) if at == number}
        for position, (start, end) in enumerate(pairwise(hosts)):
            hop = share.times.hops[position]
            bars = _pass(ready, hop.interval_s * 1e3, hop.seconds * 1e3)
            if hop.seconds > _LEAST_HOP * share.times.latency_s:
                yield _Row(f"{start} → {end}", False, bars)
            if position < len(share.times.stages):
                stage = share.times.stages[position] * 1e3
                bars = _pass({query: bar.end for query, bar in bars.items()}, stage, stage)
                yield _Row(end, True, bars)
            ready = {query: bar.end for query, bar in bars.items()}


def _pass(ready: dict[int, float], interval: float, duration: float) -> dict[int, _Bar]:
    """Pass queries through a worker or a link in their order."""
    bars: dict[int, _Bar] = {}
    free = 0.0
    for query, at in ready.items():
        start = max(at, free)
        free = start + interval
        bars[query] = _Bar(start, free, start + duration)
    return bars


def _draw_timeline(axes: Axes, rows: Sequence[_Row]) -> None:
    queries = {query for row in rows for query in row.bars}
    width = max(bar.end for row in rows for bar in row.bars.values())
    for height, row in enumerate(rows):
        bars = list(row.bars.values())
        thickness = 0.7 if row.is_worker else 0.3
        if row.is_worker:
            begin = bars[0].start
            axes.barh(height, bars[-1].free - begin, thickness, begin, color=_IDLE)
        for query, bar in row.bars.items():
            colour = _COLOURS(0.1 + 0.75 * query / len(queries))
            busy = bar.free - bar.start
            axes.hlines(height, bar.start, bar.end, color=colour, linewidth=1)
            axes.barh(height, busy, thickness, bar.start, color=colour)
            # A line between bars without a gap.
            axes.vlines(bar.start, height - thickness / 2, height + thickness / 2, "white", lw=0.6)
            if row.is_worker and busy > _LEAST_NUMBERED * width:
                middle = (bar.start + bar.free) / 2
                axes.text(middle, height, str(query + 1), color="white", ha="center", va="center")
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    first = "one query" if len(queries) == 1 else f"the first {len(queries)} queries"
    waits = "; grey: a worker waits" if any(map(_waits, rows)) else ""
    axes.set_title(f"{first} on workers and links{waits}", fontsize=9, loc="left")


def _waits(row: _Row) -> bool:
    """Return whether a worker waits between its first and its last query."""
    return row.is_worker and any(
        later.start > earlier.free for earlier, later in pairwise(row.bars.values())
    )
