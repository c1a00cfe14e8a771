"""QoS times and arrival gaps from a profile (thesis, Figures 7.1 and 7.2, Table 7.1).

Execution times here are of the queries alone: the thesis's printed QoS times follow from the
QPS and do not have T_pre in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.reports.printed import TABLE_7_1
from profiler.reports.statistics import Distribution
from profiler.simulator.workload import QUERY_COUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiler.simulator.workload import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTimes:
    """Execution times over all configurations and worker classes.

    Attributes:
        times: by number of queries, then by engine; seconds. Their 25th percentile is the QoS
            time of high demand, their median that of low demand.
        gaps: over all engines and numbers of queries; the same percentiles are the mean gaps
            between arrivals at high and low frequency.
    """

    times: Mapping[int, Mapping[str, Distribution]]
    gaps: Distribution

    def qos_s(self, engine: str, queries: int) -> tuple[float, float]:
        """Return the QoS times of high and low demand."""
        times = self.times[queries][engine]
        return times.lower, times.median


def measure_demand(profile: Profile) -> ExecutionTimes:
    """Return the demand that follows from a profile."""
    rates = {
        engine: [e.qps for name in profile.classes for e in profile.entries(engine, name)]
        for engine in profile.engines
    }
    return ExecutionTimes(
        times={
            queries: {
                engine: Distribution.of(queries / qps for qps in of_engine)
                for engine, of_engine in rates.items()
            }
            for queries in QUERY_COUNTS
        },
        gaps=Distribution.of(
            queries / qps for each in rates.values() for qps in each for queries in QUERY_COUNTS
        ),
    )


def printed_qos_s(engine: str, queries: int) -> tuple[float, float] | None:
    """Return the QoS times of high and low demand in Table 7.1; None if it has none."""
    if engine not in TABLE_7_1 or queries not in QUERY_COUNTS:
        return None
    at = 2 * QUERY_COUNTS.index(queries)
    row = TABLE_7_1[engine]
    return row[at], row[at + 1]
