"""Rules for the choice of variants compared under changing load, next to bounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.variants.demand import draw_arrivals
from benchmarks.variants.simulation import WARM, Answer, Scenario, Start, simulate
from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.variants.demand import Shape

_FASHION, _CIFAR10, _CIFAR100 = map(EngineName, ("fashion", "cifar10", "cifar100"))

_FRONTS: Final[Mapping[EngineName, Mapping[str, tuple[float, float]]]] = {
    # Pruned and quantised networks for Fashion-MNIST, slowed down so that the largest takes as long
    # as the thesis's on a Raspberry Pi.
    _FASHION: {
        "p100": (0.2330, 0.8950),
        "p75-int8": (0.0704, 0.8861),
        "p50-int8": (0.0352, 0.8779),
        "p25": (0.0316, 0.8646),
        "p12": (0.0115, 0.8231),
    },
    # DenseNets and a MobileNet in the proportions that the thesis prints.
    _CIFAR10: {
        "medium": (0.2500, 0.9370),
        "medium-v1": (0.1900, 0.9250),
        "medium-v3": (0.0900, 0.8982),
        "medium-v4": (0.0568, 0.8804),
        "mobile": (0.0132, 0.5500),
    },
    _CIFAR100: {
        "medium": (0.2800, 0.6590),
        "medium-v1": (0.1400, 0.6300),
        "medium-v3": (0.0700, 0.5800),
        "small": (0.0180, 0.4200),
    },
}
_ONE: Final = frozenset({_FASHION})
_ALL: Final = frozenset(_FRONTS)
_SCENARIOS: Final = (
    Scenario(name="single server", fronts={_FASHION: _FRONTS[_FASHION]}, layout=[_ONE]),
    Scenario(name="three servers", fronts={_FASHION: _FRONTS[_FASHION]}, layout=[_ONE] * 3),
    Scenario(name="co-located", fronts=_FRONTS, layout=[_ALL]),
    Scenario(
        name="distributed",
        fronts=_FRONTS,
        layout=[
            frozenset({_FASHION, _CIFAR10}),
            frozenset({_CIFAR10, _CIFAR100}),
            frozenset({_CIFAR100, _FASHION}),
        ],
    ),
)
BOUND: Final = "bound"
SCHEDULE_BOUND: Final = "bound on schedules"
SCENARIOS: Final = {scenario.name.replace(" ", "-"): scenario for scenario in _SCENARIOS}


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
    shape: Shape,
    rate: float,
    seconds: int,
    seeds: Sequence[int],
    rules: Sequence[str],
    start: Start = WARM,
) -> Iterator[Figures]:
    """Simulate each rule on the same requests, and compute the bound.

    Args:
        name: a key of `SCENARIOS`.
        shape: how the rate of requests changes.
        rate: requests per second on average, of all engines together.
        seconds: duration of each run.
        seeds: one run for each.
        rules: names of rules.
        start: how each run begins.

    Yields:
        The figures of each rule, then those of the bounds.
    """
    scenario = SCENARIOS[name]
    runs = {seed: draw_requests(scenario, shape, rate, seconds, seed) for seed in seeds}
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
    scenario: Scenario, shape: Shape, rate: float, seconds: int, seed: int
) -> list[tuple[float, EngineName]]:
    """Return time and engine of each request; all engines have the same mean rate."""
    engines = sorted(scenario.fronts)
    return sorted(
        (at, engine)
        for number, engine in enumerate(engines)
        for at in draw_arrivals(shape, rate / len(engines), seconds, seed * len(engines) + number)
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
