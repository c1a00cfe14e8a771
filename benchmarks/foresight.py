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
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.dictionary.files import load_dictionary
from profiler.simulator.bounds import Program, rate_and_setup_s, violations_at_least
from profiler.simulator.simulation import scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, parse_seeds
from profiler.simulator.workload import EXPERIMENTS, QUERY_COUNTS, Profile, Workload
from synergai.cli.output import print_table
from synergai.domain import Job, JobId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import WorkerClass

WAITING: Final = 3
"""Jobs of a case that have arrived at its begin."""
_TOLERANCE: Final = 1e-6
BRANCHES: Final = (3, 3)
"""Jobs of which one arrives next, for every arrival."""


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


def main() -> None:
    """Print the means over the cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foresight", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("0-19"))
    parser.add_argument("--policies", default="synergai,malleable")
    parser.add_argument("--error", type=float, default=0.15, help="of estimates, in logarithms")
    options = parser.parse_args()
    profile = Profile(load_dictionary(RECONSTRUCTED_PROFILE))
    rows = []
    for experiment in EXPERIMENTS:
        cases = [
            figures(
                drawn_case(profile, experiment, seed, options.error), options.policies.split(",")
            )
            for seed in options.seeds
        ]
        means = {name: fmean(case[name] for case in cases) for name in cases[0]}
        rows.append([experiment, *(f"{mean:.2f}" for mean in means.values())])
    print_table(("violations", *means), rows)


if __name__ == "__main__":
    main()
