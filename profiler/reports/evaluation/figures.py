"""Figures of the evaluation, after Figures 7.1 to 7.7 of the thesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.reports import printed
from profiler.reports.charts import Axis, Bars, Boxes, Cloud, Dots, Scatter, Series, Shares
from profiler.reports.document import Figure, Table
from profiler.reports.printed import CELLS
from profiler.reports.wording import listing
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from profiler.reports.charts import Chart
    from profiler.reports.evaluation.demand import ExecutionTimes
    from profiler.reports.evaluation.study import Study
    from profiler.reports.printed import PrintedCell
    from profiler.simulator.outcomes import JobOutcome
    from profiler.simulator.results import SimulationResult

HIGHLIGHTED: Final = ("synergai", "malleable")
_NUMBERS: Final = dict(zip(printed.EXPERIMENTS, ("7.3", "7.4", "7.5", "7.6"), strict=True))
_SHOWN_ENGINES: Final = ("slo_mael", "synergai", "malleable")
"""Policies of the break-down by engine; three markers per row can be told apart."""


def draw_demand(demand: ExecutionTimes) -> Figure:
    """Return Figure 7.1: execution times by engine and number of queries, on one scale."""
    boxes = [box for times in demand.times.values() for box in times.values()]
    scale = Axis(
        "s, all configurations and workers",
        log=True,
        limits=(min(box.low for box in boxes) / 1.2, max(box.high for box in boxes) * 1.2),
    )
    panels = tuple(
        Boxes(
            title=f"{queries:,} queries",
            rows=tuple(times),
            boxes=tuple(times.values()),
            axis=scale,
        )
        for queries, times in demand.times.items()
    )
    return Figure(
        key="figure-7-1",
        title="Execution times over all configurations and workers (Figure 7.1).",
        caption="QoS times: the 25th percentile for high demand (DH), the median for low (DL).",
        panels=panels,
        columns=2,
        data=Table(
            file="figure-7-1",
            columns=("engine", "queries", "low_s", "p25_s", "median_s", "p75_s", "high_s"),
            rows=tuple(
                (engine, queries, box.low, box.lower, box.median, box.upper, box.high)
                for queries, times in demand.times.items()
                for engine, box in times.items()
            ),
        ),
    )


def draw_gaps(demand: ExecutionTimes) -> Figure:
    """Return Figure 7.2: execution times of all engines and numbers of queries."""
    box = demand.gaps
    return Figure(
        key="figure-7-2",
        title="Execution times of all engines and numbers of queries (Figure 7.2).",
        caption="Mean gaps: the median for low frequency (FL), the 25th percentile for high (FH).",
        panels=(
            Boxes(
                title="All execution times",
                rows=("all",),
                boxes=(box,),
                axis=Axis("s", log=True),
                p99=True,
            ),
        ),
        columns=1,
        data=Table(
            file="figure-7-2",
            columns=("count", "low_s", "p25_s", "median_s", "p75_s", "p99_s", "high_s"),
            rows=((box.count, box.low, box.lower, box.median, box.upper, box.p99, box.high),),
        ),
    )


def draw_experiment(study: Study, experiment: str, *, with_printed: bool) -> Figure:
    """Return Figure 7.3, 7.4, 7.5 or 7.6: all policies in one experiment."""
    rows = tuple(study.policies)
    jobs = study.jobs_per_run(experiment)

    def bars(
        title: str,
        label: str,
        metric: Callable[[SimulationResult], float],
        cell: Callable[[PrintedCell], float],
        *,
        log: bool,
    ) -> Bars:
        spreads = [study.spread(policy, experiment, metric) for policy in rows]
        return Bars(
            title=title,
            rows=rows,
            values=tuple(None if each is None else each.mean for each in spreads),
            errors=tuple(study.margin(policy, experiment, metric) for policy in rows)
            if study.seeds > 1
            else (),
            printed=tuple(
                cell(CELLS[policy, experiment]) if (policy, experiment) in CELLS else None
                for policy in rows
            )
            if with_printed
            else (),
            axis=Axis(label, log=log),
            highlighted=HIGHLIGHTED,
        )

    def boxes(title: str, label: str, value: Callable[[JobOutcome], float | None]) -> Boxes:
        return Boxes(
            title=title,
            rows=rows,
            boxes=tuple(study.distribution(policy, experiment, value) for policy in rows),
            axis=Axis(label),
            highlighted=HIGHLIGHTED,
            p99=True,
        )

    number = _NUMBERS.get(experiment)
    source = f" (Figure {number})" if number else ""
    return Figure(
        key=f"experiment-{experiment}",
        title=f"{experiment}{source}.",
        caption=f"Means and distributions over {counted(study.seeds, 'seed')}.",
        panels=(
            bars(
                "Violations",
                f"violations of {jobs:g} jobs",
                lambda result: result.violations,
                lambda cell: cell.violations,
                log=False,
            ),
            boxes("End-to-end time", "s per job, all seeds", lambda job: job.end_to_end_s),
            bars(
                "Mean waiting time",
                "s",
                lambda result: result.mean_wait_s,
                lambda cell: cell.wait_s,
                log=True,
            ),
            boxes("Waiting time", "s per job, all seeds", lambda job: job.wait_s),
            bars(
                "Mean excess",
                "s, over all jobs",
                lambda result: result.mean_excess_s,
                lambda cell: cell.excess_s,
                log=True,
            ),
            boxes(
                "Excess of late jobs",
                "s per late job, all seeds",
                lambda job: job.excess_s if job.excess_s > 0 else None,
            ),
        ),
        columns=2,
        data=_experiment_table(study, experiment),
    )


def _experiment_table(study: Study, experiment: str) -> Table:
    rows: list[tuple[str | float | int | None, ...]] = []
    for policy in study.policies:
        end_to_end = study.distribution(policy, experiment, lambda job: job.end_to_end_s)
        waits = study.distribution(policy, experiment, lambda job: job.wait_s)
        violations = study.spread(policy, experiment, lambda result: result.violations)
        cell = CELLS.get((policy, experiment))
        rows.append(
            (
                policy,
                None if violations is None else violations.mean,
                None if violations is None else violations.deviation,
                None if cell is None else cell.violations,
                None if end_to_end is None else end_to_end.low,
                None if end_to_end is None else end_to_end.mean,
                None if end_to_end is None else end_to_end.p99,
                None if end_to_end is None else end_to_end.high,
                study.mean(policy, experiment, lambda result: result.mean_wait_s),
                None if waits is None else waits.p99,
                study.mean(policy, experiment, lambda result: result.mean_excess_s),
            )
        )
    return Table(
        file=f"experiment-{experiment}",
        columns=(
            "policy",
            "violations_mean",
            "violations_sd",
            "violations_printed",
            "end_to_end_low_s",
            "end_to_end_mean_s",
            "end_to_end_p99_s",
            "end_to_end_high_s",
            "wait_mean_s",
            "wait_p99_s",
            "excess_mean_s",
        ),
        rows=tuple(rows),
    )


def draw_rivals(study: Study, policies: Sequence[str]) -> Figure:
    """Return Figure 7.7: few policies across all experiments."""
    metrics: tuple[tuple[str, str, Callable[[SimulationResult], float]], ...] = (
        ("Violations", "mean over seeds", lambda result: result.violations),
        ("Mean end-to-end time", "s", lambda result: result.e2e_mean_s),
        ("Mean waiting time", "s", lambda result: result.mean_wait_s),
        ("Mean excess", "s, over all jobs", lambda result: result.mean_excess_s),
    )
    return Figure(
        key="figure-7-7",
        title="Few policies in all experiments (after Figure 7.7).",
        caption=f"Means over {counted(study.seeds, 'seed')}.",
        panels=tuple(
            Dots(
                title=title,
                rows=tuple(study.experiments),
                series=tuple(
                    Series(
                        name=policy,
                        values=tuple(study.mean(policy, e, metric) for e in study.experiments),
                    )
                    for policy in policies
                ),
                axis=Axis(label),
            )
            for title, label, metric in metrics
        ),
        columns=2,
        data=Table(
            file="figure-7-7",
            columns=("policy", "experiment", "violations", "end_to_end_s", "wait_s", "excess_s"),
            rows=tuple(
                (policy, e, *(study.mean(policy, e, metric) for _, _, metric in metrics))
                for policy in policies
                for e in study.experiments
            ),
        ),
    )


def draw_workers(study: Study) -> Figure:
    """Return the share of each worker class in the work, by policy and experiment."""
    rows = tuple(study.policies)
    return Figure(
        key="workers",
        title="Who does the work.",
        caption="Busy time includes T_pre.",
        panels=tuple(
            Shares(
                title=experiment,
                rows=rows,
                parts=tuple(
                    Series(
                        name=name,
                        values=tuple(study.class_share(p, experiment, name) for p in rows),
                    )
                    for name in study.classes
                ),
                axis=Axis("% of the workers' busy time"),
            )
            for experiment in study.experiments
        ),
        columns=2,
        data=Table(
            file="workers",
            columns=("policy", "experiment", "worker_class", "share_of_busy_time"),
            rows=tuple(
                (policy, experiment, name, study.class_share(policy, experiment, name))
                for policy in study.policies
                for experiment in study.experiments
                for name in study.classes
            ),
        ),
    )


def draw_engines(study: Study) -> Figure:
    """Return the share of violated jobs by engine."""
    known = [policy for policy in _SHOWN_ENGINES if policy in study.policies]
    shown: Sequence[str] = known or study.policies[:3]
    rows = tuple(study.engines)
    panels: list[Chart] = [
        Dots(
            title=experiment,
            rows=rows,
            series=tuple(
                Series(
                    name=policy,
                    values=tuple(
                        None if each is None else each * 100
                        for each in (study.violated_share(policy, experiment, e) for e in rows)
                    ),
                )
                for policy in shown
            ),
            axis=Axis("% of the engine's jobs violated", limits=(-2, 102)),
        )
        for experiment in study.experiments
    ]
    return Figure(
        key="engines",
        title="Violations by engine.",
        caption=f"Of {listing(shown)}.",
        panels=tuple(panels),
        columns=2,
        data=Table(
            file="engines",
            columns=("policy", "experiment", "engine", "violated_share"),
            rows=tuple(
                (policy, experiment, engine, study.violated_share(policy, experiment, engine))
                for policy in study.policies
                for experiment in study.experiments
                for engine in study.engines
            ),
        ),
    )


def draw_overheads(study: Study) -> Figure:
    """Return the share of T_pre, and what scheduling costs, by policy."""
    rows = tuple(study.policies)
    decisions = [study.decisions_us(policy) for policy in rows]
    return Figure(
        key="overheads",
        title="T_pre and the cost of deciding.",
        caption="CPU times on the machine that made this report.",
        panels=(
            Dots(
                title="Share of T_pre",
                rows=rows,
                series=tuple(
                    Series(
                        name=experiment,
                        values=tuple(
                            None if each is None else each * 100
                            for each in (study.setup_share(policy, experiment) for policy in rows)
                        ),
                    )
                    for experiment in study.experiments
                ),
                axis=Axis("% of the workers' busy time"),
            ),
            Dots(
                title="CPU time per decision",
                rows=rows,
                series=(
                    Series(
                        name="median",
                        values=tuple(None if d is None else d.median or None for d in decisions),
                    ),
                    Series(
                        name="mean",
                        values=tuple(None if d is None else d.mean or None for d in decisions),
                    ),
                    Series(
                        name="p99",
                        values=tuple(None if d is None else d.p99 or None for d in decisions),
                    ),
                ),
                axis=Axis("µs", log=True),
            ),
        ),
        columns=2,
        data=Table(
            file="overheads",
            columns=(
                "policy",
                "experiment",
                "t_pre_share",
                "decision_median_us",
                "decision_mean_us",
                "decision_p99_us",
                "scheduling_ms_per_job",
            ),
            rows=tuple(
                (
                    policy,
                    experiment,
                    study.setup_share(policy, experiment),
                    None if d is None else d.median,
                    None if d is None else d.mean,
                    None if d is None else d.p99,
                    study.scheduling_ms_per_job(policy),
                )
                for policy, d in zip(rows, decisions, strict=True)
                for experiment in study.experiments
            ),
        ),
    )


def draw_energy(study: Study) -> Figure:
    """Return the violations of each policy against its energy per query."""
    energies = {policy: study.joules_per_query(policy) for policy in study.policies}
    points = {
        policy: (joules, study.total(policy, lambda result: result.violations))
        for policy, joules in energies.items()
        if joules is not None
    }
    return Figure(
        key="energy",
        title="Violations against energy.",
        caption="The power of idle workers is not included.",
        panels=(
            Scatter(
                title="Policies",
                clouds=tuple(Cloud(name=name, points=(point,)) for name, point in points.items()),
                x=Axis("joules per query, busy workers"),
                y=Axis("violations, sum over experiments"),
            ),
        ),
        columns=1,
        data=Table(
            file="energy",
            columns=("policy", "joules_per_query", "violations"),
            rows=tuple((policy, *point) for policy, point in points.items()),
        ),
    )
