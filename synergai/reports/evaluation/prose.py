"""Sentences about the figures of the evaluation, computed from the outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.reports.wording import count, duration, factor, listing, number, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.reports.evaluation.demand import Demand
    from synergai.reports.evaluation.study import Study
    from synergai.reports.evaluation.thesis import CellComparison, Claim
    from synergai.simulator.results import Result, Spread

_REFERENCE: Final = "synergai"


def describe_demand(demand: Demand) -> str:
    """Describe Figure 7.1."""
    queries, times = next(iter(demand.times.items()))
    slowest = max(times, key=lambda engine: times[engine].median)
    fastest = min(times, key=lambda engine: times[engine].median)
    if len(times) == 1:
        box = times[fastest]
        return (
            f"For {queries:,} queries, {fastest} takes {duration(box.lower)} (25th percentile) and "
            f"{duration(box.median)} (median). The first is the QoS time of high demand (DH), the "
            "second that of low demand (DL)."
        )
    return (
        f"For {queries:,} queries, the median is between {duration(times[fastest].median)} "
        f"({fastest}) and {duration(times[slowest].median)} ({slowest}). An engine's 25th "
        "percentile is its QoS time of high demand (DH), its median that of low demand (DL)."
    )


def describe_gaps(demand: Demand) -> str:
    """Describe Figure 7.2."""
    return (
        f"The median, {duration(demand.gaps.median)}, is the mean time between arrivals at low "
        f"frequency (FL); the 25th percentile, {duration(demand.gaps.lower)}, that at high "
        "frequency (FH)."
    )


def describe_experiment(study: Study, experiment: str) -> str:
    """Describe one of Figures 7.3 to 7.6."""
    means = _means(study, experiment, lambda result: result.violations)
    best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    jobs = study.jobs_per_run(experiment)
    average = _average(study)
    sentences = []
    if len(means) == 1:
        sentences.append(f"{best} misses {number(means[best])} of {jobs:g} deadlines{average}.")
    else:
        fewest, most = _tied(means, best), _tied(means, worst)
        missed = f"{number(means[best])} of {jobs:g}"
        verb = "misses" if len(fewest) == 1 else "miss"
        sentences.append(
            f"All policies miss as many deadlines, {missed}{average}."
            if means[best] == means[worst]
            else f"{listing(fewest)} {verb} fewest deadlines, {missed}{average}, and "
            f"{listing(most)} most, {number(means[worst])}."
        )
    boxes = {p: study.distribution(p, experiment, lambda job: job.end_to_end_s) for p in means}
    known = {policy: box for policy, box in boxes.items() if box is not None}
    if known:
        first = min(known, key=lambda policy: known[policy].p99)
        box = known[first]
        sentences.append(
            f"{first} has the lowest 99th percentile of the end-to-end time, {duration(box.p99)}; "
            f"its jobs take {duration(box.low)} to {duration(box.high)}, {duration(box.mean)} on "
            "average."
            if len(known) > 1
            else f"Its jobs take {duration(box.low)} to {duration(box.high)}, "
            f"{duration(box.mean)} on average, with a 99th percentile of {duration(box.p99)}."
        )
    waits = _means(study, experiment, lambda result: result.mean_wait_s)
    excesses = _means(study, experiment, lambda result: result.mean_excess_s)
    if len(means) > 1:
        sentences.append(
            f"Jobs wait {_range(waits)}, and exceed their deadlines by {_range(excesses)} on "
            "average."
        )
    if study.seeds > 1:
        sentences.append(f"Means and standard deviations are over {study.seeds} seeds.")
    return " ".join(sentences)


def _tied(values: dict[str, float], policy: str) -> list[str]:
    """Return the policies with the value of one of them, in their order."""
    return [each for each, value in values.items() if value == values[policy]]


def _average(study: Study) -> str:
    """Return what makes clear that a number is a mean, if it is."""
    return " on average" if study.seeds > 1 else ""


def _means(study: Study, experiment: str, metric: Callable[[Result], float]) -> dict[str, float]:
    means = {policy: study.mean(policy, experiment, metric) for policy in study.policies}
    return {policy: value for policy, value in means.items() if value is not None}


def _range(values: dict[str, float]) -> str:
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    if values[low] == values[high]:
        return f"{duration(values[low])} (all)"
    return f"{duration(values[low])} ({low}) to {duration(values[high])} ({high})"


def describe_rivals(study: Study, policies: Sequence[str]) -> str:
    """Describe Figure 7.7."""
    totals = listing(
        f"{number(study.total(policy, lambda result: result.violations))} ({policy})"
        for policy in policies
    )
    experiments = count(len(study.experiments), "experiment")
    return f"Violations summed over {experiments}: {totals}."


def describe_workers(study: Study) -> str:
    """Describe the shares of worker classes."""
    if len(study.classes) < 2:
        return f"All work is done by {listing(study.classes)}, the only worker class."
    experiment = study.experiments[-1]
    sentences = []
    for policy in _shown(study):
        shares = [(name, study.class_share(policy, experiment, name)) for name in study.classes]
        parts = listing(f"{share(value)} on {name}" for name, value in shares if value is not None)
        if parts:
            sentences.append(f"In {experiment}, {policy} has its busy time {parts}.")
    return " ".join(sentences)


def _shown(study: Study) -> Sequence[str]:
    """Return the policies that sentences are about: the thesis's own and the default."""
    shown = [policy for policy in (_REFERENCE, "malleable") if policy in study.policies]
    return shown or study.policies[:1]


def describe_engines(study: Study, policies: Sequence[str]) -> str:
    """Describe the violations by engine."""
    sentences = []
    for policy in policies:
        shares = {}
        for engine in study.engines:
            known = [
                each
                for experiment in study.experiments
                if (each := study.violated_share(policy, experiment, engine)) is not None
            ]
            if known:
                shares[engine] = sum(known) / len(known)
        worst = max(shares, key=shares.__getitem__)
        if shares[worst] == 0:
            sentences.append(f"{policy} violates no deadline of any engine.")
        else:
            sentences.append(
                f"{policy} misses most with {worst}: {share(shares[worst])} of its jobs, mean over "
                "the experiments."
            )
    return " ".join(sentences)


def describe_overheads(study: Study) -> str:
    """Describe the share of T_pre and the cost of deciding."""
    shares = {
        (policy, experiment): each
        for policy in study.policies
        for experiment in study.experiments
        if (each := study.setup_share(policy, experiment)) is not None
    }
    sentences = []
    if shares and max(shares.values()) > 0:
        low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        least, most = share(shares[low]), share(shares[high])
        sentences.append(
            f"Workers spend {most} of their busy time in T_pre."
            if least == most
            else f"Workers spend from {least} ({low[0]} in {low[1]}) to "
            f"{most} ({high[0]} in {high[1]}) of their busy time in T_pre."
        )
    elif shares:
        sentences.append("No T_pre was paid: all sessions were loaded beforehand.")
    costs = {p: ms for p in study.policies if (ms := study.scheduling_ms_per_job(p)) is not None}
    if costs:
        low_policy = min(costs, key=costs.__getitem__)
        high_policy = max(costs, key=costs.__getitem__)
        text = f"Deciding takes {number(costs[low_policy])} ms of CPU time per job ({low_policy})"
        if high_policy != low_policy:
            text += f" to {number(costs[high_policy])} ms ({high_policy})"
        sentences.append(f"{text}, all decisions about it included.")
    sentences.append("CPU times are those of the machine that made this report.")
    return " ".join(sentences)


def describe_energy(points: dict[str, tuple[float, float]]) -> str:
    """Describe the violations against the energy per query, which `points` has by policy."""
    least = min(points, key=lambda policy: points[policy][0])
    fewest = min(points, key=lambda policy: points[policy][1])
    text = (
        f"{least} needs least energy, {number(points[least][0])} J per query, with "
        f"{number(points[least][1])} violations."
    )
    if fewest != least:
        text += (
            f" {fewest} has fewest violations, {number(points[fewest][1])}, with "
            f"{number(points[fewest][0])} J per query."
        )
    return f"{text} The power of idle workers is not included."


def answer_deadlines(study: Study) -> str:
    """Answer which policy meets most deadlines."""
    totals = {p: study.total(p, lambda result: result.violations) for p in study.policies}
    ranked = sorted(totals, key=totals.__getitem__)
    jobs = sum(study.jobs_per_run(experiment) for experiment in study.experiments)
    if len(ranked) == 1:
        missed = number(totals[ranked[0]])
        return f"{ranked[0]} misses {missed} of {jobs:g} deadlines{_average(study)}."
    text = ", ".join(f"{policy} {number(totals[policy])}" for policy in ranked)
    mean = f", mean over {count(study.seeds, 'seed')}" if study.seeds > 1 else ""
    fewest = _tied(totals, ranked[0])
    verb = "has" if len(fewest) == 1 else "have"
    answer = (
        "All policies have as many violations"
        if len(fewest) == len(totals)
        else f"{listing(fewest)} {verb} fewest violations"
    )
    return (
        f"{answer}. Summed over "
        f"{count(len(study.experiments), 'experiment')} with {jobs:g} jobs in all{mean}: {text}."
    )


def answer_times(study: Study) -> str:
    """Answer how long jobs take."""
    sentences = []
    for policy in _shown(study):
        parts = []
        for experiment in study.experiments:
            box = study.distribution(policy, experiment, lambda job: job.end_to_end_s)
            if box is not None:
                parts.append(f"{duration(box.mean)} (p99 {duration(box.p99)}) in {experiment}")
        if parts:
            sentences.append(f"With {policy}, a job takes {listing(parts)} on average.")
    return " ".join(sentences) or "No job finished."


def answer_bounds(bounds: list[tuple[str, Spread]], study: Study) -> str:
    """Compare the policies with the lower bound on violations."""
    sentences = []
    for experiment, spread in bounds:
        means = _means(study, experiment, lambda result: result.violations)
        best = min(means, key=means.__getitem__)
        sentences.append(
            f"{number(spread.mean)} in {experiment} (best policy: {best}, {number(means[best])})"
        )
    return f"No schedule can have fewer violations on average than {listing(sentences)}."


def answer_reproduction(cells: list[CellComparison], claims: list[Claim]) -> str:
    """Answer whether the thesis's results are reproduced."""
    held = [claim for claim in claims if claim.held]
    sentences = [f"{len(held)} of {len(claims)} statements about its policies hold here."]
    violations = [cell for cell in cells if cell.metric == "violations"]
    if violations:
        within = sum(cell.within for cell in violations)
        sentences.append(
            f"{within} of {len(violations)} printed numbers of violations, of one run each, lie "
            "within the range over the seeds."
        )
    failed = [claim.text for claim in claims if not claim.held]
    if failed:
        sentences.append(f"Not reproduced: {'; '.join(failed)}.")
    return " ".join(sentences)


def describe_headline(name: str, printed: float, factors: dict[str, float | None]) -> str:
    """Say whether a headline ratio follows from the printed cells."""
    means = listing(f"{factor(value)} ({kind})" for kind, value in factors.items())
    return f"{name}: the thesis states {factor(printed)}; its own cells give {means}."
