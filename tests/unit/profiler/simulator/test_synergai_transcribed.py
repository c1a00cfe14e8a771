"""The policy `synergai` against a plain transcription of the thesis, run by run.

The transcription is independent of the core: no queue lanes, no learning, no incremental state.
With exact estimates there is nothing to learn, so both must make identical assignments.
"""

import heapq
from pathlib import Path

import pytest

import profiler.simulator
from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulation import scheduling_settings, simulate
from profiler.simulator.workload import EXPERIMENTS, Profile, Sessions, Workload, draw
from synergai.domain import Job, JobId, WorkerClass

SEEDS = range(8)
AFTER = 1e-6
"""A job is doomed just after its latest start, not at it."""


@pytest.fixture(scope="module")
def profile() -> Profile:
    (package,) = profiler.simulator.__path__
    return Profile(load_dictionary(Path(package) / "data" / "reconstructed_profile.csv"))


def reference_schedule(workload: Workload) -> dict[JobId, tuple[WorkerClass, float]]:
    """Return each job's worker and completion time: chapter 6, equations 6.1 to 6.4."""
    profile = workload.profile

    def estimated(job: Job, worker: WorkerClass) -> float:
        best = profile.best(job.engine, worker)
        t_pre = best.t_pre_s if workload.sessions == "cold" else 0.0
        return t_pre + job.queries / best.qps

    def urgency(job: Job) -> tuple[bool, float, list[WorkerClass]]:
        """Return whether it is doomed, its slack, and its candidate workers, fastest first."""
        remaining = job.deadline - now
        by_time = sorted(profile.classes, key=lambda worker: estimated(job, worker))
        acceptable = [worker for worker in by_time if remaining >= estimated(job, worker)]
        slack = remaining - estimated(job, by_time[0])
        return not acceptable, slack, acceptable or by_time

    # Timers: arrivals, jobs that become doomed, and workers that become free.
    timers: list[tuple[float, int, Job | None, WorkerClass | None]] = []
    for number, job in enumerate(workload.jobs):
        latest_start = job.deadline - min(estimated(job, worker) for worker in profile.classes)
        timers.append((job.arrival, 4 * number, job, None))
        timers.append((latest_start + AFTER, 4 * number + 1, None, None))
    heapq.heapify(timers)
    waiting: list[Job] = []
    available = set(profile.classes)
    done: dict[JobId, tuple[WorkerClass, float]] = {}
    while timers:
        now, number, arrived, freed = heapq.heappop(timers)
        if arrived is not None:
            waiting.append(arrived)
        if freed is not None:
            available.add(freed)
        ranked = sorted(((*urgency(job), job) for job in waiting), key=lambda row: row[:2])
        for _, _, candidates, job in ranked:
            worker = next((worker for worker in candidates if worker in available), None)
            if worker is not None:
                available.remove(worker)
                waiting.remove(job)
                ends = now + estimated(job, worker)
                done[job.id] = (worker, ends)
                heapq.heappush(timers, (ends, number + 2, None, worker))
    return done


@pytest.mark.parametrize("sessions", ["cold", "prewarmed"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_synergai_matches_the_thesis_with_exact_estimates(
    profile: Profile, experiment: str, sessions: Sessions
) -> None:
    for seed in SEEDS:
        workload = draw(
            profile, EXPERIMENTS[experiment], seed, sessions=sessions, estimate_error=0.0
        )
        expected = reference_schedule(workload)

        run = simulate(workload, scheduling_settings("synergai"))

        ran = {span.job_id: (str(span.worker_id), span.ended) for span in run.spans}
        assert {job: worker for job, (worker, _) in ran.items()} == {
            job: str(worker) for job, (worker, _) in expected.items()
        }, (experiment, seed)
        for job, (_, ended) in ran.items():
            assert ended == pytest.approx(expected[job][1], abs=0.01), (experiment, seed, job)
