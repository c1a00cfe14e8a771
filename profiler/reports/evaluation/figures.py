"""Figures of the evaluation, after Figures 7.1 to 7.7 of the thesis."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from profiler.reports.charts import Bars, Boxes, Dots, Shares
from profiler.reports.page import Figure
from profiler.reports.printed import CELLS, EXPERIMENTS, TABLE_7_1
from profiler.reports.statistics import Distribution
from profiler.reports.wording import listing
from profiler.simulator.workload import QUERY_COUNTS
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from profiler.reports.evaluation.study import Study
    from profiler.reports.printed import PrintedCell
    from profiler.simulator.simulation import JobOutcome, SimulationResult
    from profiler.simulator.workload import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTimes:
    """Execution times over all configurations and worker classes, of the queries alone.

    The thesis's printed QoS times follow from the QPS and do not have T_pre in them.

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


HIGHLIGHTED: Final = ("synergai", "malleable")
_NUMBERS: Final = dict(zip(EXPERIMENTS, ("7.3", "7.4", "7.5", "7.6"), strict=True))
_SHOWN_ENGINES: Final = ("slo_mael", "synergai", "malleable")
"""Policies of the break-down by engine; three markers per row can be told apart."""


def draw_demand(demand: ExecutionTimes) -> Figure:
    """Return Figure 7.1: execution times by engine and number of queries, on one scale."""
    boxes = [box for times in demand.times.values() for box in times.values()]
    limits = min(box.low for box in boxes) / 1.2, max(box.high for box in boxes) * 1.2
    return Figure(
        key="figure-7-1",
        title="Execution times over all configurations and workers (Figure 7.1).",
        caption="QoS times: the 25th percentile for high demand (DH), the median for low (DL).",
        panels=[
            Boxes(
                title=f"{queries:,} queries",
                label="s, all configurations and workers",
                log=True,
                limits=limits,
                boxes=times,
            )
            for queries, times in demand.times.items()
        ],
        columns=2,
    )


def draw_gaps(demand: ExecutionTimes) -> Figure:
    """Return Figure 7.2: execution times of all engines and numbers of queries."""
    box = demand.gaps
    panel = Boxes(title="All execution times", label="s", log=True, boxes={"all": box}, p99=True)
    return Figure(
        key="figure-7-2",
        title="Execution times of all engines and numbers of queries (Figure 7.2).",
        caption="Mean gaps: the median for low frequency (FL), the 25th percentile for high (FH).",
        panels=[panel],
        columns=1,
    )


def draw_experiment(study: Study, experiment: str, *, with_printed: bool) -> Figure:
    """Return Figure 7.3, 7.4, 7.5 or 7.6: all policies in one experiment."""
    number = _NUMBERS.get(experiment)
    source = f" (Figure {number})" if number else ""
    return Figure(
        key=f"experiment-{experiment}",
        title=f"{experiment}{source}.",
        caption=f"Means and distributions over {counted(study.seeds, 'seed')}.",
        panels=_experiment_panels(study, experiment, with_printed=with_printed),
        columns=2,
    )


def _experiment_panels(study: Study, experiment: str, *, with_printed: bool) -> list[Bars | Boxes]:
    def bars(
        title: str,
        label: str,
        metric: Callable[[SimulationResult], float],
        printed: Callable[[PrintedCell], float],
        *,
        log: bool = True,
    ) -> Bars:
        policies = study.policies
        return Bars(
            title=title,
            label=label,
            log=log,
            lengths={policy: study.mean(policy, experiment, metric) for policy in policies},
            errors={policy: study.margin(policy, experiment, metric) for policy in policies}
            if study.seeds > 1
            else {},
            printed={
                policy: printed(CELLS[policy, experiment])
                for policy in policies
                if with_printed and (policy, experiment) in CELLS
            },
            highlighted=HIGHLIGHTED,
        )

    def boxes(title: str, label: str, value: Callable[[JobOutcome], float | None]) -> Boxes:
        found = {p: study.distribution(p, experiment, value) for p in study.policies}
        return Boxes(title=title, label=label, boxes=found, highlighted=HIGHLIGHTED, p99=True)

    jobs = study.jobs_per_run(experiment)
    violations, wait_s, excess_s = map(attrgetter, ("violations", "wait_s", "excess_s"))
    return [
        bars("Violations", f"violations of {jobs:g} jobs", violations, violations, log=False),
        boxes("End-to-end time", "s per job, all seeds", lambda job: job.end_to_end_s),
        bars("Mean waiting time", "s", lambda result: result.mean_wait_s, wait_s),
        boxes("Waiting time", "s per job, all seeds", wait_s),
        bars("Mean excess", "s, over all jobs", lambda result: result.mean_excess_s, excess_s),
        boxes("Excess of late jobs", "s per late job, all seeds", lambda job: job.excess_s or None),
    ]


def draw_rivals(study: Study, policies: Sequence[str]) -> Figure:
    """Return Figure 7.7: few policies across all experiments."""
    metrics: dict[str, tuple[str, str, Callable[[SimulationResult], float]]] = {
        "violations": ("Violations", "mean over seeds", lambda result: result.violations),
        "end_to_end_s": ("Mean end-to-end time", "s", lambda result: result.e2e_mean_s),
        "wait_s": ("Mean waiting time", "s", lambda result: result.mean_wait_s),
        "excess_s": ("Mean excess", "s, over all jobs", lambda result: result.mean_excess_s),
    }
    return Figure(
        key="figure-7-7",
        title="Few policies in all experiments (after Figure 7.7).",
        caption=f"Means over {counted(study.seeds, 'seed')}.",
        panels=[
            Dots(
                title=title,
                label=label,
                rows=study.experiments,
                series={
                    policy: [study.mean(policy, e, metric) for e in study.experiments]
                    for policy in policies
                },
            )
            for title, label, metric in metrics.values()
        ],
        columns=2,
    )


def draw_workers(study: Study) -> Figure:
    """Return the share of each worker class in the work, by policy and experiment."""
    return Figure(
        key="workers",
        title="Who does the work.",
        caption="Busy time includes T_pre.",
        panels=[
            Shares(
                title=experiment,
                label="% of the workers' busy time",
                rows=study.policies,
                parts={
                    name: [study.class_share(p, experiment, name) for p in study.policies]
                    for name in study.classes
                },
            )
            for experiment in study.experiments
        ],
        columns=2,
    )


def draw_engines(study: Study) -> Figure:
    """Return the share of violated jobs by engine."""
    known = [policy for policy in _SHOWN_ENGINES if policy in study.policies]
    shown = known or study.policies[:3]
    return Figure(
        key="engines",
        title="Violations by engine.",
        caption=f"Of {listing(shown)}.",
        panels=[
            Dots(
                title=experiment,
                label="% of the engine's jobs violated",
                limits=(-2, 102),
                rows=study.engines,
                series={
                    policy: _percent(
                        study.violated_share(policy, experiment, e) for e in study.engines
                    )
                    for policy in shown
                },
            )
            for experiment in study.experiments
        ],
        columns=2,
    )


def _percent(shares: Iterable[float | None]) -> list[float | None]:
    return [None if share is None else share * 100 for share in shares]


def draw_overheads(study: Study) -> Figure:
    """Return the share of T_pre, and what scheduling costs, by policy."""
    decisions = {policy: study.decisions_us(policy) for policy in study.policies}
    shares = Dots(
        title="Share of T_pre",
        label="% of the workers' busy time",
        rows=study.policies,
        series={
            experiment: _percent(study.setup_share(policy, experiment) for policy in study.policies)
            for experiment in study.experiments
        },
    )
    costs = Dots(
        title="CPU time per decision",
        label="µs",
        log=True,
        rows=study.policies,
        series={
            name: [None if d is None else getattr(d, name) or None for d in decisions.values()]
            for name in ("median", "mean", "p99")
        },
    )
    return Figure(
        key="overheads",
        title="T_pre and the cost of deciding.",
        caption="CPU times on the machine that made this report.",
        panels=[shares, costs],
        columns=2,
    )
