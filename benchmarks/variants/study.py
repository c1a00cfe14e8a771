"""Rules for the choice of variants compared under changing load, next to bounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.variants.demand import draw_arrivals
from benchmarks.variants.simulation import WARM, Answer, Start, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.variants.demand import Shape, Spacing
    from benchmarks.variants.simulation import Scenario
    from synergai.domain import EngineName

BOUND: Final = "bound"
SCHEDULE_BOUND: Final = "bound on schedules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One rule in one scenario, over all seeds.

    Attributes:
        scenario: the scenario's name.
        shape: how the rate changes.
        rate: requests per second on average, of all engines together.
        rule: name of the rule; `BOUND` for what no rule exceeds, `SCHEDULE_BOUND` for the best
            schedule of one worker that knows all arrivals.
        requests: their number.
        accuracy: mean accuracy relative to the engine's best variant, late requests counting 0.
        effective: mean accuracy, late requests counting 0; None for bounds of several engines.
        violations: share of the requests that were late.
    """

    scenario: str
    shape: str
    rate: float
    rule: str
    requests: int
    accuracy: float
    effective: float | None
    violations: float

    def record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def compare(
    name: str,
    scenario: Scenario,
    shape: Shape,
    rate: float,
    seconds: int,
    seeds: Sequence[int],
    rules: Sequence[str],
    start: Start = WARM,
    spacing: Spacing = "poisson",
) -> Iterator[Figures]:
    """Simulate each rule on the same requests, and compute the bound.

    Args:
        name: name of the scenario.
        scenario: engines and workers.
        shape: how the rate of requests changes.
        rate: requests per second on average, of all engines together.
        seconds: duration of each run.
        seeds: one run for each.
        rules: names of rules.
        start: how each run begins.
        spacing: how requests follow each other.

    Yields:
        The figures of each rule, then those of the bounds.
    """
    runs = {seed: draw_requests(scenario, shape, rate, seconds, seed, spacing) for seed in seeds}
    best = {
        engine: max(accuracy for _, accuracy in front.values())
        for engine, front in scenario.fronts.items()
    }
    total = sum(map(len, runs.values()))
    for rule in rules:
        answers: list[Answer] = []
        for seed, requests in runs.items():
            answers += simulate(scenario, requests, seed, rule=rule, start=start)
        yield Figures(
            scenario=name,
            shape=shape,
            rate=rate,
            rule=rule,
            requests=total,
            accuracy=sum(each.accuracy / best[each.engine] for each in answers) / total,
            effective=sum(each.accuracy for each in answers) / total,
            violations=sum(not each.variant for each in answers) / total,
        )
    yield _bound(scenario, name, shape, rate, list(runs.values()), best)
    if len(scenario.layout) == 1:
        yield _schedule_bound(scenario, name, shape, rate, list(runs.values()))


def draw_requests(
    scenario: Scenario,
    shape: Shape,
    rate: float,
    seconds: int,
    seed: int,
    spacing: Spacing = "poisson",
) -> list[tuple[float, EngineName]]:
    """Return time and engine of each request; all engines have the same mean rate."""
    engines = sorted(scenario.fronts)
    return sorted(
        (at, engine)
        for number, engine in enumerate(engines)
        for at in draw_arrivals(
            shape, rate / len(engines), seconds, seed * len(engines) + number, spacing
        )
    )


def _bound(
    scenario: Scenario,
    name: str,
    shape: Shape,
    rate: float,
    runs: Sequence[Sequence[tuple[float, EngineName]]],
    best: Mapping[EngineName, float],
) -> Figures:
    # Deferred, as the solver is an extra.
    from benchmarks.variants.bounds import accuracy_at_most, relative_accuracy_at_most

    total = sum(map(len, runs))
    effective: float | None = None
    if len(scenario.fronts) == 1:
        (engine,) = scenario.fronts
        bounds = [
            accuracy_at_most(scenario, engine, [at for at, _ in run]) * len(run) for run in runs
        ]
        effective = sum(bounds) / total
        relative = effective / best[engine]
    else:
        relative = sum(relative_accuracy_at_most(scenario, run) * len(run) for run in runs) / total
    return Figures(
        scenario=name,
        shape=shape,
        rate=rate,
        rule=BOUND,
        requests=total,
        accuracy=relative,
        effective=effective,
        violations=0.0,
    )


def _schedule_bound(
    scenario: Scenario,
    name: str,
    shape: Shape,
    rate: float,
    runs: Sequence[Sequence[tuple[float, EngineName]]],
) -> Figures:
    from benchmarks.variants.bounds import schedule_at_most

    total = sum(map(len, runs))
    return Figures(
        scenario=name,
        shape=shape,
        rate=rate,
        rule=SCHEDULE_BOUND,
        requests=total,
        accuracy=sum(schedule_at_most(scenario, run) * len(run) for run in runs) / total,
        effective=None,
        violations=0.0,
    )
