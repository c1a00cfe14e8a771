"""The evaluation report: policies side by side, after chapter 7 of the thesis."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from profiler.reports.evaluation import figures
from profiler.reports.evaluation.figures import measure_demand, printed_qos_s
from profiler.reports.page import Report, Section, Table
from profiler.reports.printed import CELLS, P99_OVER_SYNERGAI
from profiler.reports.statistics import Factors
from profiler.reports.wording import UNKNOWN, duration, factor, listing, number, share
from profiler.simulator.workload import QUERY_COUNTS
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from profiler.reports.evaluation.figures import ExecutionTimes
    from profiler.reports.evaluation.study import Study
    from profiler.reports.page import Cell, Figure
    from profiler.reports.printed import PrintedCell
    from profiler.simulator.simulation import SimulationResult, Spread
    from profiler.simulator.workload import Profile


_BANNER: Final = (
    "Reconstructed: the simulated workers have a profile that was fitted to the numbers that the "
    "thesis prints. It was not measured. Only comparisons between policies are meaningful."
)
_RIVALS: Final = ("slo_mael", "synergai", "malleable")
_VIOLATIONS: Final = attrgetter("violations")
_EXCESS: Final = attrgetter("mean_excess_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOrigin:
    """Source of outcomes.

    Attributes:
        facts: values of their settings by name.
        profile: what the runs are based on.
        is_reconstructed: whether that profile was reconstructed from the thesis, whose printed
            numbers are then comparable.
        made: when and by what the report was made.
    """

    facts: Mapping[str, str]
    profile: Profile
    is_reconstructed: bool
    made: str


def evaluate(study: Study, origin: StudyOrigin) -> Report:
    demand = measure_demand(origin.profile)
    reference = REFERENCE if REFERENCE in study.policies else study.policies[0]
    shown = [p for p in figures.HIGHLIGHTED if p in study.policies] or study.policies[:1]
    findings = {
        "Which policy meets most deadlines?": deadlines_card(study),
        "How long do jobs take?": times_card(study, shown),
        "Where does the time go?": overheads_card(study, shown),
    }
    sections = [_demand(demand, with_printed=origin.is_reconstructed)]
    for experiment in study.experiments:
        figure = figures.draw_experiment(study, experiment, with_printed=origin.is_reconstructed)
        sections.append(Section(f"experiment-of-{experiment}", _title(experiment), [figure]))
    sections += [
        _summary(study),
        *_factors(study, reference),
        Section(
            "break-down",
            "Workers and engines",
            [figures.draw_workers(study), figures.draw_engines(study)],
        ),
        Section("costs", "T_pre and scheduling", [figures.draw_overheads(study)]),
    ]
    if origin.is_reconstructed:
        sections += _reproduction(study)
    jobs = sum(study.jobs_per_run(experiment) for experiment in study.experiments)
    return Report(
        title="Evaluation of scheduling policies",
        summary=(
            f"{counted(len(study.policies), 'policy')} in "
            f"{counted(len(study.experiments), 'experiment')} with {jobs:g} jobs in all, over "
            f"{counted(study.seeds, 'seed')}, after chapter 7 of the thesis."
        ),
        facts={
            **origin.facts,
            "Policies": ", ".join(study.policies),
            "Worker classes": ", ".join(study.classes) or "none",
        },
        banner=_BANNER if origin.is_reconstructed else "",
        is_reconstructed=origin.is_reconstructed,
        findings=findings,
        sections=sections,
        made=origin.made,
    )


def _title(experiment: str) -> str:
    demand = {"DL": "low demand", "DH": "high demand"}.get(experiment[:2], "")
    frequency = {"FL": "low frequency", "FH": "high frequency"}.get(experiment[-2:], "")
    return f"{experiment}: {demand}, {frequency}" if demand and frequency else experiment


def _demand(demand: ExecutionTimes, *, with_printed: bool) -> Section:
    rows: list[dict[str, Cell]] = []
    for engine in demand.times[QUERY_COUNTS[0]]:
        row: dict[str, Cell] = {"engine": engine}
        for queries in QUERY_COUNTS:
            known = printed_qos_s(engine, queries) if with_printed else None
            for place, value in enumerate(demand.qos_s(engine, queries)):
                # As printed, and of fast engines as many digits as say something.
                text = f"{value:.1f}" if value >= 1 else number(value)
                printed = f" ({known[place]:.1f})" if known else ""
                row[f"{queries} {('DH', 'DL')[place]}"] = text + printed
        rows.append(row)
    caption = "QoS times in seconds by number of queries: 25th percentile (DH) and median (DL)"
    caption += "; in brackets as printed in Table 7.1." if with_printed else "."
    table = Table(rows=rows, caption=caption)
    drawn = (figures.draw_demand(demand), figures.draw_gaps(demand))
    return Section("demand", "Demand: QoS times and arrivals", [*drawn, table])


def _summary(study: Study) -> Section:
    rows: list[dict[str, Cell]] = []
    for policy in study.policies:
        row: dict[str, Cell] = {"violations": policy}
        for experiment in study.experiments:
            spread = study.spread(policy, experiment, _VIOLATIONS)
            margin = study.margin(policy, experiment, _VIOLATIONS)
            row[experiment] = UNKNOWN if spread is None else _interval(spread, margin, study.seeds)
        rows.append({**row, "sum": f"{study.total(policy, _VIOLATIONS):.2f}"})
    rivals = [policy for policy in _RIVALS if policy in study.policies]
    blocks: list[Figure | Table] = []
    if len(rivals) > 1:
        blocks.append(figures.draw_rivals(study, rivals))
    caption = "Violations by policy and experiment"
    caption += ": mean over seeds and its 95 % confidence interval." if study.seeds > 1 else "."
    blocks.append(Table(rows=rows, caption=caption))
    return Section("summary", "All experiments", blocks)


def _interval(spread: Spread, margin: float, seeds: int) -> str:
    return f"{spread.mean:.2f} ± {margin:.2f}" if seeds > 1 else f"{spread.mean:g}"


def _factors(study: Study, reference: str) -> list[Section]:
    rows: list[dict[str, Cell]] = []
    for policy in study.policies:
        if policy == reference:
            continue
        for name, metric in (("violations", _VIOLATIONS), ("mean excess", _EXCESS)):
            factors = factors_over(study, policy, reference, metric)
            rows.append(
                {
                    "policy": policy,
                    "metric": name,
                    "arithmetic mean": factors.arithmetic,
                    "geometric mean": factors.geometric,
                    "harmonic mean": factors.harmonic,
                    "ratio of sums": factors.sums,
                    "without ratio": factors.skipped,
                }
            )
    caption = (
        f"Each policy over {reference}, from the means over seeds of every "
        "experiment. Above 1, it is worse. The four means answer different "
        "questions; the ratio of sums is how many times as many there are in all. "
        f"“Without ratio” counts experiments in which {reference} has none."
    )
    table = Table(rows=rows, caption=caption)
    return [Section("factors", f"Factors over {reference}", [table])] if rows else []


def _reproduction(study: Study) -> list[Section]:
    rows: list[dict[str, Cell]] = []
    for (policy, experiment), cell in CELLS.items():
        outcomes = study.of(policy, experiment)
        if not outcomes:
            continue
        row: dict[str, Cell] = {"policy": policy, "experiment": experiment}
        for metric, value, printed_value in METRICS:
            values = [value(outcome.result) for outcome in outcomes]
            printed, low, high = printed_value(cell), min(values), max(values)
            mean = sum(values) / len(values)
            row |= {
                f"{metric}: printed": f"{printed:g}",
                f"{metric}: here (range)": f"{number(mean)} ({number(low)} to {number(high)})",
                f"{metric}: within": "yes" if low <= printed <= high else "no",
            }
        rows.append(row)
    if not rows:
        return []
    caption = (
        "Printed values are of one run each, here with the mean and the range "
        "over the seeds. “Within”: the printed value lies in that range. SLO-MAEL's times "
        "in three experiments were derived from printed ratios."
    )
    table = Table(rows=rows, caption=caption)
    return [Section("thesis", "The thesis's results", [table, *_p99(study)])]


def _p99(study: Study) -> list[Table]:
    """Return the printed ratios of 99th percentiles and the study's."""
    rows: list[dict[str, Cell]] = []
    for experiment, ratios in P99_OVER_SYNERGAI.items():
        base = study.mean(REFERENCE, experiment, lambda result: result.e2e_p99_s)
        for policy, value in ratios.items():
            p99_s = study.mean(policy, experiment, lambda result: result.e2e_p99_s)
            if base and p99_s is not None:
                rows.append(
                    {
                        "policy": policy,
                        "experiment": experiment,
                        "printed": factor(value),
                        "here": factor(p99_s / base),
                        "its p99 here": duration(p99_s),
                    }
                )
    caption = (
        "99th percentile of the end-to-end time over that of SynergAI; here the mean over seeds."
    )
    return [Table(rows=rows, caption=caption)] if rows else []


def deadlines_card(study: Study) -> str:
    """Rank the policies by violations, summed over experiments."""
    totals = {p: study.total(p, lambda result: result.violations) for p in study.policies}
    ranked = sorted(totals, key=totals.__getitem__)
    jobs = sum(study.jobs_per_run(experiment) for experiment in study.experiments)
    counts = ", ".join(f"{policy} {number(totals[policy])}" for policy in ranked)
    return f"Violations of {jobs:g} jobs: {counts}."


def times_card(study: Study, policies: Sequence[str]) -> str:
    """Give the mean and 99th percentile of the end-to-end time."""
    sentences = []
    for policy in policies:
        parts = [
            f"{duration(box.mean)} (p99 {duration(box.p99)}) in {experiment}"
            for experiment in study.experiments
            if (box := study.distribution(policy, experiment, lambda job: job.end_to_end_s))
        ]
        if parts:
            sentences.append(f"{policy}: {listing(parts)}.")
    return " ".join(sentences) or "No job finished."


def overheads_card(study: Study, policies: Sequence[str]) -> str:
    """Give the share of T_pre in the busy time, and the CPU time of decisions."""
    sentences = []
    for policy in policies:
        shares = [study.setup_share(policy, experiment) for experiment in study.experiments]
        known = [each for each in shares if each is not None]
        cost_ms = study.scheduling_ms_per_job(policy)
        if known:
            sentences.append(f"{policy}: at most {share(max(known))} of the busy time in T_pre.")
        if cost_ms is not None:
            sentences.append(f"Its decisions take {number(cost_ms)} ms of CPU time per job.")
    return " ".join(sentences) or "No work was done."


REFERENCE: Final = "synergai"
METRICS: Final[
    tuple[tuple[str, Callable[[SimulationResult], float], Callable[[PrintedCell], float]], ...]
] = (
    ("violations", lambda result: result.violations, lambda cell: cell.violations),
    ("mean wait (s)", lambda result: result.mean_wait_s, lambda cell: cell.wait_s),
    ("mean excess (s)", lambda result: result.mean_excess_s, lambda cell: cell.excess_s),
)
"""Printed metrics: name, value of an outcome, value of a printed cell."""


def factors_over(
    study: Study, policy: str, reference: str, metric: Callable[[SimulationResult], float]
) -> Factors:
    """Return the factors of a policy over a reference, from the means over seeds."""
    ours, theirs = [], []
    for experiment in study.experiments:
        value = study.mean(policy, experiment, metric)
        base = study.mean(reference, experiment, metric)
        if value is not None and base is not None:
            ours.append(value)
            theirs.append(base)
    return Factors.of(ours, theirs)
