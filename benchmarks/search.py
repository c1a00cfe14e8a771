"""Strategies of the configuration search, on simulated fleets.

Run with ``python -m benchmarks.search``: one table of all strategies on the reconstructed profile
of the thesis and on synthetic fleets, the default one on other families of surfaces, and an engine
that is new in a profiled fleet. ``--write docs/experiments.md`` replaces the tables there.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.baselines import STRATEGIES
from benchmarks.report import DocumentBlock, table
from benchmarks.simulated_fleets import (
    PLAN,
    Measurements,
    SimulatedFleet,
    reconstructed_fleet,
    reconstructed_profile,
    synthetic_fleet,
)
from benchmarks.surfaces import FAMILIES, HELD_OUT
from benchmarks.surfaces import draw as draw_surface
from profiler.measuring.search.space import Trial
from profiler.measuring.search.state import DEFAULT_BUDGET, Search
from profiler.reports.characterisation.fleet_profile import front
from profiler.simulator.simulation import scheduling_settings, simulate, summarize
from profiler.simulator.workload import EXPERIMENTS, Profile, draw
from synergai.domain import WorkerClass
from synergai.profiles.dictionary import PREDICTED, ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from profiler.measuring.search.belief import Prediction
    from profiler.measuring.search.space import Row, TrialResult

REPORTED_ON: Final = range(8)
"""Seeds of the synthetic fleets. The search was tuned on those from 100 to 105, and on the surfaces
with these seeds."""
NOISE_SEEDS: Final = range(10)
SURFACE_SEEDS: Final = range(200, 212)
EXPERIMENT_SEEDS: Final = range(1000, 1030)
_FRONT: Final = {"objective": "front"}
_QPS: Final = {"objective": "qps"}
_DICTIONARIES: Final = 5
"""Dictionaries per method with which jobs are scheduled, in turn."""
_KNOWN_SHARE: Final = 1 / 3
"""Share of the other engines' points that are known when a new engine is searched."""


class Method(NamedTuple):
    """A strategy with options, within a budget."""

    strategy: str
    options: dict[str, str]
    budget: float = DEFAULT_BUDGET

    @property
    def name(self) -> str:
        """Name for the tables."""
        return " ".join((self.strategy, *self.options.values()))


METHODS: Final = (
    Method("exhaustive", {}, math.inf),
    Method("random", {}),
    Method("halving", {}),
    Method("hill-climbing", {}),
    Method("gp", _QPS),
    Method("gp", _FRONT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Quality of one search.

    Attributes:
        share: duration as a share of the exhaustive profile's.
        regrets: by row, 1 - QPS of the chosen configuration / highest QPS.
        front: hypervolume of the front of measured and predicted configurations in QPS and QPS
            per watt, as a share of the true one; mean over rows; NaN without a power meter.
        errors: by prediction, logarithm of its QPS over the true one.
        stated: by prediction, its stated standard error.
    """

    share: float
    regrets: NDArray[np.float64]
    front: float
    errors: NDArray[np.float64]
    stated: NDArray[np.float64]


class _Figures(NamedTuple):
    """What the dictionary says about a point after a search."""

    qps: float
    planned_qps: float
    watts: float


def run_search(
    fleet: SimulatedFleet,
    method: Method,
    seed: int,
    known: Mapping[int, TrialResult] | None = None,
    rows: Sequence[Row] | None = None,
) -> Search:
    """Run a search on a simulated fleet to its end, in all rows or some."""
    seeded = {"seed": str(seed)} if method.strategy in {"random", "halving"} else {}
    strategy = STRATEGIES.create(method.strategy, {**method.options, **seeded})
    points = None if rows is None else [each for row in rows for each in fleet.space.rows[row]]
    search = Search(fleet.space, strategy, PLAN, method.budget, known, points)
    measurements = Measurements(fleet, seed)
    while (trial := search.next()) is not None:
        point = fleet.space.points[trial.point]
        mode = point.configuration.power_mode
        switches = bool(mode) and search.state.modes.get(point.device[0]) != mode
        search.state.tell(trial, measurements.measure(trial, switches=switches))
    return search


def judge(fleet: SimulatedFleet, search: Search, rows: Sequence[Row] | None = None) -> Outcome:
    """Compare what a search found with the truth, in all rows or some."""
    predictions = search.predictions()
    judged = list(fleet.space.rows) if rows is None else list(rows)
    points = [point for row in judged for point in fleet.space.rows[row]]
    regrets, fronts = [], []
    for row in judged:
        known = _dictionary(search, predictions, fleet.space.rows[row])
        true_best = max(float(fleet.qps[point]) for point in fleet.space.rows[row])
        chosen = max(known, key=lambda point: known[point].planned_qps, default=None)
        regrets.append(1.0 if chosen is None else 1 - float(fleet.qps[chosen]) / true_best)
        if fleet.metered:
            whole = _volume(fleet, fleet.space.rows[row])
            fronts.append(_volume(fleet, _front_of(known)) / whole)
    predicted = [point for point in points if point in predictions]
    return Outcome(
        share=search.state.spent_s / fleet.exhaustive_s(points),
        regrets=np.array(regrets),
        front=float(np.mean(fronts)) if fronts else math.nan,
        errors=np.array([math.log(predictions[p].qps / float(fleet.qps[p])) for p in predicted]),
        stated=np.array([predictions[p].error for p in predicted]),
    )


def _dictionary(
    search: Search, predictions: Mapping[int, Prediction], points: Sequence[int]
) -> dict[int, _Figures]:
    """Return what the dictionary has of points after a search."""
    state = search.state
    known = {}
    for point in points:
        if point in state.results:
            qps = state.qps(point)
            known[point] = _Figures(qps, qps, state.watts(point))
        elif point in predictions:
            found = predictions[point]
            known[point] = _Figures(found.qps, found.qps * math.exp(-found.error), found.watts)
    return known


def _front_of(known: Mapping[int, _Figures]) -> list[int]:
    """Return the points on the front according to the dictionary."""
    return front(known, lambda p: (known[p].planned_qps, known[p].planned_qps / known[p].watts))


def hypervolume(points: Sequence[tuple[float, float]]) -> float:
    """Return the area that points dominate, from the origin."""
    area = previous = 0.0
    for first, second in front(points, lambda point: point):
        area += first * (second - previous)
        previous = second
    return area


def _volume(fleet: SimulatedFleet, points: Sequence[int]) -> float:
    return hypervolume(
        [(float(fleet.qps[p]), float(fleet.qps[p] / fleet.watts[p])) for p in points]
    )


# --- tables -----------------------------------------------------------------------------------


def fleets(
    noise_seeds: Sequence[int], fleet_seeds: Sequence[int]
) -> dict[str, list[tuple[SimulatedFleet, int]]]:
    """Return fleets with seeds of their noise, by kind."""
    reconstructed = reconstructed_fleet()
    return {
        "reconstructed": [(reconstructed, seed) for seed in noise_seeds],
        "synthetic": [(synthetic_fleet(seed, slow_setup=True), seed) for seed in fleet_seeds],
    }


def cells(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the figures of several searches as cells of a table."""
    regrets = np.concatenate([each.regrets for each in outcomes])
    errors = np.abs(np.concatenate([each.errors for each in outcomes]))
    stated = np.concatenate([each.stated for each in outcomes])
    return [
        f"{np.mean([each.share for each in outcomes]):.3f}",
        f"{regrets.mean():.4f}",
        f"{np.mean([each.front for each in outcomes]):.3f}",
        f"{np.mean(errors <= 2 * stated):.0%}" if len(errors) else "-",
    ]


COLUMNS: Final = ("time", "mean regret", "front", "within 2 errors")


def strategies_table(kinds: Mapping[str, Sequence[tuple[SimulatedFleet, int]]]) -> str:
    """Return a table of all strategies on all fleets."""
    rows = []
    for kind, members in kinds.items():
        for method in METHODS:
            outcomes = [judge(fleet, run_search(fleet, method, seed)) for fleet, seed in members]
            rows.append([kind, method.name, *cells(outcomes)])
            print(*rows[-1], sep=" | ", flush=True)
    return table(["fleet", "strategy", *COLUMNS], rows)


def surfaces_table(seeds: Sequence[int]) -> str:
    """Return a table of the default strategy, and of exhaustive profiles, on other surfaces."""
    rows = []
    for family in (*FAMILIES, *HELD_OUT):
        drawn = [(draw_surface(family, seed), seed) for seed in seeds]
        full = [judge(fleet, run_search(fleet, METHODS[0], seed)) for fleet, seed in drawn]
        exhaustive = np.mean([each.regrets.mean() for each in full])
        method = Method("gp", _FRONT if family.metered else _QPS)
        outcomes = [judge(fleet, run_search(fleet, method, seed)) for fleet, seed in drawn]
        regrets = np.concatenate([each.regrets for each in outcomes])
        errors = np.abs(np.concatenate([each.errors for each in outcomes]))
        stated = np.concatenate([each.stated for each in outcomes])
        rows.append(
            [
                family.name,
                f"{regrets.mean():.4f}",
                f"{max(each.regrets.mean() for each in outcomes):.4f}",
                f"{exhaustive:.4f}",
                f"{np.mean(errors <= 2 * stated):.0%}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    header = ["surface", "mean regret", "of the worst fleet"]
    header += ["mean regret, exhaustive", "within 2 errors"]
    return table(header, rows)


def new_engine_table(kinds: Mapping[str, Sequence[tuple[SimulatedFleet, int]]]) -> str:
    """Return a table of the search of one unknown engine in a fleet with known ones."""
    rows = []
    for kind, members in kinds.items():
        outcomes, starts = [], []
        for fleet, seed in members:
            engines = sorted({point.engine for point in fleet.space.points})
            new = engines[seed % len(engines)]
            its = [row for row in fleet.space.rows if row[0] == new]
            search = run_search(fleet, Method("gp", _QPS), seed, _known_but(fleet, new, seed), its)
            outcomes.append(judge(fleet, search, its))
            starts.append(len(search.state.new))
        rows.append([kind, f"{np.mean(starts):.1f}", *cells(outcomes)])
        print(*rows[-1], sep=" | ", flush=True)
    return table(["fleet", "starts", *COLUMNS], rows)


def _known_but(fleet: SimulatedFleet, new: str, seed: int) -> dict[int, TrialResult]:
    """Return results of a third of the other engines' points, and of one of each of their rows."""
    random = np.random.default_rng((seed, 5))
    measurements = Measurements(fleet, seed + 1000)
    known = {}
    for row, points in fleet.space.rows.items():
        if row[0] != new:
            count = max(1, round(_KNOWN_SHARE * len(points)))
            for point in random.choice(points, count, replace=False):
                known[int(point)] = measurements.measure(Trial(int(point)), switches=False)
    return known


def scheduling_table(seeds: Sequence[int]) -> str:
    """Return the sum of violations with the exact profile, an exhaustive one and a searched one.

    The last two are measured, with noise.
    """
    fleet = reconstructed_fleet()
    profile = Profile(reconstructed_profile())
    methods = {"exhaustive": METHODS[0], "searched": METHODS[-1]}
    searches = {
        name: [run_search(fleet, method, seed) for seed in range(_DICTIONARIES)]
        for name, method in methods.items()
    }
    rows = []
    for policy in ("malleable", "synergai"):
        settings = scheduling_settings(policy)
        sums = dict.fromkeys(("exact", *methods), 0.0)
        for experiment in EXPERIMENTS.values():
            violations: dict[str, list[int]] = {key: [] for key in sums}
            for seed in seeds:
                workload = draw(profile, experiment, seed, sessions="cold")
                runs = {"exact": simulate(workload, settings)}
                for key, found in searches.items():
                    dictionary = _searched_dictionary(fleet, found[seed % _DICTIONARIES])
                    runs[key] = simulate(workload, settings, dictionary)
                for key, run in runs.items():
                    violations[key].append(summarize(run).violations)
            means = {key: float(np.mean(each)) for key, each in violations.items()}
            sums = {key: sums[key] + means[key] for key in sums}
        rows.append([policy, *(f"{each:.2f}" for each in sums.values())])
        print(*rows[-1], sep=" | ", flush=True)
    header = ["policy", "exact", "exhaustive", "searched"]
    return table(header, rows)


def _searched_dictionary(fleet: SimulatedFleet, search: Search) -> ConfigurationDictionary:
    """Return the entries that a search leaves, measured and predicted."""
    state, predictions = search.state, search.predictions()
    dictionary = ConfigurationDictionary()
    for index, point in enumerate(fleet.space.points):
        worker_class = WorkerClass(point.device[0])
        entry = ProfileEntry(
            engine=point.engine,
            worker_class=worker_class,
            configuration=point.configuration,
            qps=1.0,
            model_load_s=state.costs.setup_s(point.row),
        )
        if index in state.results:
            setup_s = state.results[index][0].setup_s
            dictionary.put(replace(entry, qps=state.qps(index), model_load_s=setup_s))
        elif index in predictions:
            found = predictions[index]
            dictionary.put(replace(entry, qps=found.qps, error=found.error, label=PREDICTED))
    return dictionary


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--fleets", type=int, default=len(REPORTED_ON), help="synthetic fleets")
    parser.add_argument("--noise-seeds", type=int, default=len(NOISE_SEEDS))
    parser.add_argument("--surfaces", type=int, default=len(SURFACE_SEEDS), help="of each family")
    parser.add_argument("--experiments", type=int, default=len(EXPERIMENT_SEEDS), help="seeds")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    arguments = parser.parse_args()
    document = DocumentBlock(arguments.write, "search") if arguments.write else None
    kinds = fleets(NOISE_SEEDS[: arguments.noise_seeds], REPORTED_ON[: arguments.fleets])
    texts = [
        "All strategies:",
        strategies_table(kinds),
        f"Violations of 24 jobs in four experiments, cold, mean of {arguments.experiments} seeds:",
        scheduling_table(EXPERIMENT_SEEDS[: arguments.experiments]),
    ]
    if document is not None:
        document.write("\n\n".join(texts))
    print("The default strategy on surfaces of other families:")
    print(surfaces_table(SURFACE_SEEDS[: arguments.surfaces]))
    print("A new engine, for QPS only, where a third of the others' points was measured:")
    print(new_engine_table(kinds))


if __name__ == "__main__":
    main()
