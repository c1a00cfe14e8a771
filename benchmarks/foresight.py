"""What foresight is worth: ``python -m benchmarks.foresight``.

In each case some jobs are waiting, and others arrive one after the other. What arrives is one of
several equally likely jobs, so that the futures of a case form a tree. Three figures are means over
its leaves:

- a clairvoyant bound: the least number of violations in each future by itself;
- a bound for policies without foresight: decisions in all futures at once, which are the same as
  long as the same jobs have arrived;
- the violations of a policy.

Both bounds split and move work freely, and know the actual times of the jobs that have arrived:
with `--error 0`, so does the policy, and what is left of the gap is what decisions could close.

With `--whole`, what separates `malleable` from the clairvoyant bound in whole experiments.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import numpy as np
from msgspec import structs

from benchmarks.violation_bounds import Program, rate_and_setup_s, violations_at_least
from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulation import scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, parse_seeds
from profiler.simulator.workload import EXPERIMENTS, QUERY_COUNTS, Profile, Workload, draw
from synergai.cli.output import print_table
from synergai.core.scheduling.policies.malleable import policy as malleable
from synergai.core.scheduling.policies.malleable import replan
from synergai.core.scheduling.policies.malleable.planner import Plan, Planner
from synergai.domain import EngineName, Job, JobId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import WorkerClass

WAITING: Final = 3
"""Jobs of a case that have arrived at its begin."""
_TOLERANCE: Final = 1e-6
BRANCHES: Final = (3, 3)
"""Jobs of which one arrives next, for every arrival."""
_MORE_STARTS: Final = 12
_MORE_ROUNDS: Final = 60
_MORE_JOBS: Final = 12
"""Starts and rounds of a search that has time, and jobs that it plans at once."""


@dataclass(frozen=True, slots=True)
class Case:
    """Futures of the same begin, all equally likely."""

    futures: tuple[Workload, ...]


def drawn_case(profile: Profile, experiment: str, seed: int, error: float = 0.15) -> Case:
    """Draw a case: engines, queries, gaps and deviations as in an experiment of the thesis."""
    random = np.random.default_rng(seed)
    demand = EXPERIMENTS[experiment].demand
    gap_s = profile.mean_gap_s(EXPERIMENTS[experiment].frequency)
    factors: dict[tuple[JobId, WorkerClass], float] = {}

    def draw(name: str, arrival: float) -> Job:
        engine = profile.engines[random.integers(len(profile.engines))]
        queries = QUERY_COUNTS[random.integers(len(QUERY_COUNTS))]
        due = arrival + profile.qos_s(engine, queries, demand)
        job_id = JobId(name)
        for worker_class in profile.classes:
            factors[job_id, worker_class] = math.exp(error * random.standard_normal())
        return Job(id=job_id, engine=engine, queries=queries, arrival=arrival, deadline=due)

    paths = [tuple(draw(f"{number}", 0.0) for number in range(WAITING))]
    for branches in BRANCHES:
        paths = [
            (*path, draw(f"{path[-1].id}.{number}", path[-1].arrival + random.exponential(gap_s)))
            for path in paths
            for number in range(branches)
        ]
    return Case(
        tuple(
            Workload(
                experiment=experiment,
                seed=seed,
                profile=profile,
                sessions="cold",
                t_pre="fixed",
                jobs=path,
                factors=factors,
            )
            for path in paths
        )
    )


class _Futures:
    """The program of all futures. Those in which the same jobs have arrived share its columns."""

    def __init__(self, case: Case) -> None:
        self.program = Program()
        jobs = {job.id: job for future in case.futures for job in future.jobs}.values()
        instants = sorted({each for job in jobs for each in (job.arrival, job.deadline)})
        self._intervals = list(pairwise(instants))
        self._columns: dict[tuple[str, JobId, WorkerClass, JobId, float], int] = {}
        self._loads: dict[tuple[WorkerClass, JobId, float, float], dict[int, float]] = {}
        for future in case.futures:
            for job in future.jobs:
                self._add(future, job)
        for (*_, begins, ends), terms in self._loads.items():
            self.program.at_most(ends - begins, terms)

    def _add(self, future: Workload, job: Job) -> None:
        """Let a job be in time if its parts, behind a setup on each worker, are large enough."""
        window_s = job.deadline - job.arrival
        needs = {self.program.column(1.0, 1.0, whole=True): float(job.queries)}
        for name in future.profile.classes:
            rate, setup_s = rate_and_setup_s(future, job, name)
            used = self.program.column(0.0, 1.0, whole=True)
            parts = self._time("queries", future, job, name)
            needs |= dict.fromkeys(parts, -rate)
            most_s = max(0.0, window_s - setup_s)
            self.program.at_most(0.0, {**dict.fromkeys(parts, 1.0), used: -most_s})
            paid = self._time("setup", future, job, name)
            self.program.at_most(0.0, {**dict.fromkeys(paid, -1.0), used: setup_s})
        self.program.at_most(0.0, needs)

    def _time(self, use: str, future: Workload, job: Job, name: WorkerClass) -> list[int]:
        """Return the columns of a worker's time for a job, by interval."""
        found = []
        for begins, ends in self._intervals:
            if job.arrival <= begins and ends <= job.deadline:
                newest = [each.id for each in future.jobs if each.arrival <= begins][-1]
                key = (use, job.id, name, newest, begins)
                if key not in self._columns:
                    column = self._columns[key] = self.program.column(0.0, ends - begins)
                    self._loads.setdefault((name, newest, begins, ends), {})[column] = 1.0
                found.append(self._columns[key])
        return found


def figures(case: Case, policies: Sequence[str]) -> dict[str, float]:
    """Return the violations of a case by each bound and policy, means over its futures."""
    clairvoyant = fmean(map(violations_at_least, case.futures))
    in_time = math.floor(_Futures(case).program.bound() + _TOLERANCE)
    return {
        "clairvoyant": clairvoyant,
        # Where the solver ran out of time, the other bound may be the better one.
        "no foresight": max(clairvoyant, len(case.futures[0].jobs) - in_time / len(case.futures)),
        **{
            policy: fmean(
                summarize(simulate(future, scheduling_settings(policy))).violations
                for future in case.futures
            )
            for policy in policies
        },
    }


class LongSearch(Planner):
    """The local search, from many more starts and to its end."""

    def search(self, starts: Sequence[Sequence[int]]) -> Plan:
        """Return the best plan found."""
        random = np.random.default_rng(0)
        self._rounds = _MORE_ROUNDS
        best = super().search(starts)
        for _ in range(_MORE_STARTS):
            found = super().search([random.permutation(self._jobs).tolist()])
            best = found if found.cost < best.cost else best
        return best


def informed(workload: Workload) -> Workload:
    """Return the same workload with its actual times in the profile: each job has an engine."""
    entries = [
        structs.replace(
            entry,
            engine=EngineName(f"of-{job.id}"),
            qps=entry.qps / workload.factors[job.id, name],
            backend_start_s=entry.backend_start_s * workload.factors[job.id, name],
            model_load_s=entry.model_load_s * workload.factors[job.id, name],
            data_preparation_s=entry.data_preparation_s * workload.factors[job.id, name],
        )
        for job in workload.jobs
        for name in workload.profile.classes
        for entry in workload.profile.entries(job.engine, name)
    ]
    return replace(
        workload,
        profile=Profile(entries),
        jobs=tuple(
            structs.replace(job, engine=EngineName(f"of-{job.id}")) for job in workload.jobs
        ),
        factors=dict.fromkeys(workload.factors, 1.0),
    )


def _violations(workload: Workload, **options: str) -> int:
    return summarize(simulate(workload, scheduling_settings("malleable", options))).violations


def _with_hindsight(workload: Workload, violations: int, least: int) -> int:
    """Return the violations if those jobs give way whose delay, tried in turn, helps others."""
    jobs = workload.jobs
    while violations > least:
        for place, job in enumerate(jobs):
            giving_way = structs.replace(job, priority=-1)
            tried = replace(workload, jobs=(*jobs[:place], giving_way, *jobs[place + 1 :]))
            if (found := _violations(tried)) < violations:
                violations, jobs = found, tried.jobs
                break
        else:
            break
    return violations


def parts(workload: Workload) -> dict[str, int]:
    """Return the violations of `malleable` and the bound, and what lies between them.

    These are of `malleable` with no weight on how late a job is; with the actual times; with these
    and a longer search; and with that, or knowledge of the jobs that should give way.
    """
    known = informed(workload)
    exact, least = _violations(known), violations_at_least(workload)
    with (
        patch.object(replan, "Planner", LongSearch),
        patch.object(malleable, "MAX_JOBS", _MORE_JOBS),
    ):
        searched = _violations(known)
    return {
        "malleable": _violations(workload),
        "any tail": _violations(workload, excess="0"),
        "actual times": exact,
        "longer search": searched,
        "hindsight": min(searched, _with_hindsight(known, exact, least)),
        "bound": least,
    }


def main() -> None:
    """Print the means over the cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foresight", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("0-19"))
    parser.add_argument("--policies", default="synergai,malleable")
    parser.add_argument("--error", type=float, default=0.15, help="of estimates, in logarithms")
    parser.add_argument("--whole", action="store_true", help="24 jobs, and what explains the gap")
    options = parser.parse_args()
    profile = Profile(load_dictionary(RECONSTRUCTED_PROFILE))
    table: dict[str, dict[str, float]] = {}
    for name, experiment in EXPERIMENTS.items():
        cases = [
            parts(draw(profile, experiment, seed, estimate_error=options.error))
            if options.whole
            else figures(
                drawn_case(profile, name, seed, options.error), options.policies.split(",")
            )
            for seed in options.seeds
        ]
        table[name] = {key: fmean(case[key] for case in cases) for key in cases[0]}
    columns = list(table[name])
    table["sum"] = {key: sum(means[key] for means in table.values()) for key in columns}
    print_table(
        ("violations", *columns),
        [[row, *(f"{mean:.2f}" for mean in means.values())] for row, means in table.items()],
    )


if __name__ == "__main__":
    main()
