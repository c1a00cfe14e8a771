"""Cards at the top of the evaluation, from short templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.reports.wording import duration, listing, number, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.reports.evaluation.study import Study
    from profiler.simulator.results import Spread


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


def bounds_card(bounds: Sequence[tuple[str, Spread]]) -> str:
    """Give the lower bounds on violations."""
    parts = listing(f"{number(spread.mean)} in {experiment}" for experiment, spread in bounds)
    return f"No schedule can have fewer violations on average than {parts}."
