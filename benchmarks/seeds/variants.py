"""J. L. Buijnsters's thesis (TU Delft, 2023): variants of a model under changing load.

Figures are for evenly spaced requests, as the thesis's stress testers send them, and for a Poisson
process.
"""

from __future__ import annotations

from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Final

from benchmarks.seeds.rows import SEPARATOR
from benchmarks.variants.demand import SPACINGS
from benchmarks.variants.scenarios import FRONTS, SCENARIOS
from benchmarks.variants.simulation import OURS, simulate
from benchmarks.variants.study import draw_requests

if TYPE_CHECKING:
    from benchmarks.seeds.rows import Figures, Group
    from benchmarks.variants.demand import Shape, Spacing
    from benchmarks.variants.simulation import Answer
    from synergai.domain import EngineName

SECONDS: Final = 300
SEEDS: Final = (0, 1)
STATIC, CHAIN = "largest", "chain"
BY_NAME: Final = {"co-located": 3.0, "distributed": 9.0, "distributed, 3x": 27.0}
"""Requests per second of all engines: the thesis's low load, per server, and three times it."""


def _scenario(name: str) -> str:
    return name.partition(",")[0]


@cache
def _answers(
    scenario: str, rule: str, rate: float, spacing: Spacing, shape: Shape = "twitter"
) -> list[Answer]:
    """Return what became of all requests."""
    found: list[Answer] = []
    for seed in SEEDS:
        requests = draw_requests(SCENARIOS[scenario], shape, rate, SECONDS, seed, spacing)
        found += simulate(SCENARIOS[scenario], requests, seed, rule=rule)
    return found


def _late(scenario: str, rule: str, rate: float, shape: Shape = "twitter") -> str:
    """Return the share of late requests, evenly spaced and by a Poisson process."""
    shares = []
    for spacing in SPACINGS[::-1]:
        answers = _answers(scenario, rule, rate, spacing, shape)
        shares.append(100 * fmean(not each.variant for each in answers))
    return SEPARATOR.join(f"{share:.2f} %" for share in shares)


def _accuracy(scenario: str, rule: str, rate: float, engine: EngineName) -> str:
    """Return the mean relative accuracy of answers in time, as the thesis counts it."""
    best = max(value for _, value in FRONTS[engine].values())
    means = []
    for spacing in SPACINGS[::-1]:
        answers = _answers(scenario, rule, rate, spacing)
        mine = [each.accuracy for each in answers if each.engine == engine and each.variant]
        means.append(100 * fmean(mine) / best)
    return SEPARATOR.join(f"{mean:.1f} %" for mean in means)


def of_static(rate: float) -> Figures:
    """Return the late requests of the best variant at a steady rate."""
    return {f"static.{rate:g}": _late("single-server", STATIC, rate, shape="constant")}


def of_rule(rule: str) -> Figures:
    """Return late requests and accuracies of a rule with engines that share servers."""
    found: Figures = {}
    for name, rate in BY_NAME.items():
        scenario = _scenario(name)
        found[f"{rule}.{name}"] = _late(scenario, rule, rate)
        for engine in FRONTS:
            found[f"{rule}.{name}.{engine}"] = _accuracy(scenario, rule, rate, engine)
    return found


def of_switching() -> Figures:
    """Return the controller's late requests with what a change of variant costs in our agent."""
    return {
        f"{CHAIN}.switching": _late("co-located-switching", CHAIN, 3.0),
        f"{CHAIN}.switching.9": _late("co-located-switching", CHAIN, 9.0),
        f"{CHAIN}.co-located.9": _late("co-located", CHAIN, 9.0),
    }


def of_costs() -> Figures:
    """Return the controller's late requests by the measure of costs it is given."""
    return {
        f"{CHAIN}.by.{name}": _late(name, CHAIN, 8.0)
        for name in ("single-server", "by-latency", "by-flops")
    }


GROUPS: Final[dict[str, Group]] = {
    **{f"static.{rate:g}": partial(of_static, rate) for rate in (3.0, 4.0, 5.0)},
    **{rule: partial(of_rule, rule) for rule in (CHAIN, OURS)},
    "switching": of_switching,
    "costs": of_costs,
}
