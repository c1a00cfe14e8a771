"""Result tables: one row per policy, one column per experiment, with the spread over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from profiler.simulator.results import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from profiler.simulator.results import SimulationResult


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure by which policies are compared.

    Attributes:
        title: name and unit.
        of: reads the figure from a result.
    """

    title: str
    of: Callable[[SimulationResult], float]
    digits: int


METRICS: Final = (
    Metric("violations", lambda result: result.violations, 2),
    Metric("mean wait (s)", lambda result: result.mean_wait_s, 1),
    Metric("mean end-to-end (s)", lambda result: result.e2e_mean_s, 1),
    Metric("p99 end-to-end (s)", lambda result: result.e2e_p99_s, 1),
    Metric("mean excess (s)", lambda result: result.mean_excess_s, 1),
    Metric("p99 excess (s)", lambda result: result.excess_p99_s, 1),
)


def title(metric: Metric, results: Sequence[SimulationResult]) -> str:
    """Return the title of a metric, for violations with the number of jobs of a run."""
    if metric is not METRICS[0]:
        return metric.title
    return f"{metric.title} (of {results[0].jobs:,})"


def select(
    results: Sequence[SimulationResult], policy: str, experiment: str
) -> list[SimulationResult]:
    """Return the results of a policy in an experiment, by seed."""
    return [r for r in results if r.policy == policy and r.experiment == experiment]


def rows(
    results: Sequence[SimulationResult],
    metric: Metric,
    policies: Sequence[str],
    experiments: Sequence[str],
) -> list[list[str]]:
    """Return mean ± standard deviation over seeds, and the sum of the means over experiments."""
    table = []
    for policy in policies:
        spreads = [
            Spread.of(metric.of(result) for result in select(results, policy, experiment))
            for experiment in experiments
        ]
        cells = [f"{s.mean:.{metric.digits}f} ± {s.deviation:.{metric.digits}f}" for s in spreads]
        total = sum(spread.mean for spread in spreads)
        table.append([policy, *cells, f"{total:.{metric.digits}f}"])
    bounds = [
        [result.violations_at_least for result in select(results, policies[0], experiment)]
        for experiment in experiments
    ]
    if metric is METRICS[0] and all(b is not None for bound in bounds for b in bound):
        spreads = [Spread.of(float(b) for b in bound if b is not None) for bound in bounds]
        cells = [f"{s.mean:.2f} ± {s.deviation:.2f}" for s in spreads]
        table.append(["lower bound", *cells, f"{sum(s.mean for s in spreads):.2f}"])
    return table
