"""Where splits pay between an edge and a cloud worker: ``python -m benchmarks.splits``.

Queries arise at the edge worker. It is 1 to 8 times as slow as the cloud worker, over a link of 5
to 1000 Mbit/s and 5 ms, and inputs are sent as 32-bit floats, bytes or JPEG. In each cell of this
grid, the plan is compared with all routes, and with the whole engine on either worker or both.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from benchmarks.drawn_routes import MBIT
from benchmarks.report import table
from profiler.planning.enumeration import routes
from profiler.planning.plan import RoutePlan, partition, pour
from profiler.simulator.pipelines.measured_chains import measured_chains
from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import RouteProblem, RouteWorker

if TYPE_CHECKING:
    from profiler.simulator.pipelines.measured_chains import MeasuredChain

SLOWNESS: Final = (1, 2, 4, 8)
MBIT_S: Final = (5, 10, 20, 50, 100, 200, 500, 1000)
LATENCY_S: Final = 0.005
QUERIES: Final = (1, 100)
# Bytes per value of a picture. A JPEG of 224 x 224 pixels has about 40 kB.
FORMS: Final = {"32-bit floats": 4.0, "bytes": 1.0, "JPEG": 40_000 / (224 * 224 * 3)}
BYTES_PER_VALUE: Final = {"onnx_mobilenet_op11": 4, "onnx_resnet50_op11": 4, "onnx_ssd_op11": 1}
"""What the inputs of an engine have."""


class Cell(NamedTuple):
    """What a cell of the grid has shown.

    Attributes:
        gain: share of the time that the fastest split saves, negative if it is slower.
        plan_splits: whether the plan splits the engine.
        excess: time of the plan over the least time, less 1.
    """

    gain: float
    plan_splits: bool
    excess: float

    @property
    def is_right(self) -> bool:
        """Whether the plan splits the engine where that is faster, and only there."""
        return self.plan_splits == (self.gain > 0) and self.excess < 1e-9


def main() -> None:
    rows = []
    for measured, queries, form in product(measured_chains().values(), QUERIES, FORMS):
        cells = [
            cell(problem_of(measured, slowness, mbit_s, form, queries))
            for slowness, mbit_s in product(SLOWNESS, MBIT_S)
        ]
        gains = [f"{each.gain:.1%}" for each in sorted(cells, reverse=True) if each.gain > 0]
        wrong = sum(not each.is_right for each in cells)
        figures = (len(cells), len(gains), wrong)
        extent = " to ".join(dict.fromkeys((gains[-1], gains[0]))) if gains else ""
        rows.append([measured.chain.engine, str(queries), form, *map(str, figures), extent])
    header = ["engine", "queries", "inputs", "cells", "a split wins", "wrong plans", "it saves"]
    print(table(header, rows))


def problem_of(
    measured: MeasuredChain, slowness: float, mbit_s: float, form: str, queries: int
) -> RouteProblem:
    chain, seconds = measured
    values = chain.sizes[0] / BYTES_PER_VALUE[chain.engine]
    return RouteProblem(
        chain=replace(chain, sizes=(round(values * FORMS[form]), *chain.sizes[1:])),
        workers=tuple(
            RouteWorker(name, tuple(tuple(factor * each for each in row) for row in seconds))
            for name, factor in (("edge", slowness), ("cloud", 1))
        ),
        links=Links(
            dict.fromkeys((("edge", "cloud"), ("cloud", "edge")), Link(mbit_s * MBIT, LATENCY_S)),
            default=Link(1e9),
        ),
        source="edge",
        queries=queries,
    )


def cell(problem: RouteProblem) -> Cell:
    """Compare the plan of a problem with all that can be done."""
    whole_s = RoutePlan(pour(problem, list(routes(problem, 1)))).seconds
    split_s = min(
        problem.times(route).seconds(problem.queries)
        for route in routes(problem)
        if len(route.legs) > 1
    )
    plan = partition(problem)
    if plan is None:
        raise AssertionError("both workers hold the engine")
    return Cell(1 - split_s / whole_s, plan.is_split, plan.seconds / min(whole_s, split_s) - 1)


if __name__ == "__main__":
    main()
