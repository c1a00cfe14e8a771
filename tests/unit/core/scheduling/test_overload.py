"""Jobs of one query under overload: as many as possible are in time."""

import random

import pytest

from profiler.simulator.simulation import scheduling_settings, simulate
from profiler.simulator.workload import EXPERIMENTS, Profile, draw
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import Dispatch
from synergai.domain import EngineName
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import end, make_core, new_entry, new_job, new_worker

SHORT, LONG = EngineName("short"), EngineName("long")
QPS = {SHORT: 10.0, LONG: 1.0}
JOBS = 600


def entries(worker_class: str = "box", pace: float = 1.0) -> list[ProfileEntry]:
    return [new_entry(engine, worker_class, qps / pace) for engine, qps in QPS.items()]


def late_share(policy: str, load: float, *, seed: int, perishable: bool, error: float) -> float:
    """Return the share of jobs that are late on one worker at a multiple of its capacity."""
    rng = random.Random(seed)
    profile = Profile(entry for entry in entries() if entry.engine == SHORT)
    at, given = 0.0, []
    for _ in range(JOBS):
        at += rng.expovariate(load * QPS[SHORT])
        qos_s = rng.uniform(0.5, 3.0)
        given.append(new_job("", SHORT, 1, at, deadline=at + qos_s, perishable=perishable).job)
    workload = draw(
        profile,
        EXPERIMENTS["DL-FL"],
        seed,
        sessions="prewarmed",
        estimate_error=error,
        count=JOBS,
        given=given,
    )
    run = simulate(workload, scheduling_settings(policy))
    in_time = [job for job in workload.jobs if run.finished.get(job.id, 1e9) <= job.deadline]
    return 1.0 - len(in_time) / JOBS


@pytest.mark.parametrize("policy", ["malleable", "edf", "synergai"])
@pytest.mark.parametrize("perishable", [False, True])
@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_overload_makes_no_more_jobs_late_than_it_must(
    load: float, policy: str, *, perishable: bool
) -> None:
    unavoidable = 1.0 - 1.0 / load
    late = late_share(policy, load, seed=1, perishable=perishable, error=0.0)
    assert late <= unavoidable + 0.03


def test_malleable_serves_as_many_as_possible_with_estimates_that_are_off() -> None:
    assert late_share("malleable", 1.5, seed=2, perishable=True, error=0.15) <= 1 / 3 + 0.06


def core_with(policy: str, **paces: float) -> SchedulerCore:
    """A core with a worker of each class, each with a pace."""
    known = [entry for name, pace in paces.items() for entry in entries(name, pace)]
    workers = [new_worker(name, name, QPS, loaded=()) for name in paces]
    return make_core(known, workers, policy=policy)


def submit(core: SchedulerCore, name: str, deadline: float, engine: EngineName) -> list[Dispatch]:
    commands = core.handle(new_job(name, engine, deadline=deadline), 0.0)
    return [command for command in commands if isinstance(command, Dispatch)]


@pytest.mark.parametrize("policy", ["malleable", "edf", "synergai"])
def test_job_that_only_a_busy_worker_completes_in_time_waits_for_it(policy: str) -> None:
    core = core_with(policy, fast=1.0, slow=20.0)
    [first] = submit(core, "first", 1.0, SHORT)
    assert first.assignment.worker_id == "fast"
    assert submit(core, "second", 1.0, SHORT) == []


def test_malleable_leaves_out_the_longest_job_if_not_all_can_be_in_time() -> None:
    core = core_with("malleable", box=1.0)
    [running] = submit(core, "running", 1.0, SHORT)
    submit(core, "long", 1.2, LONG)
    for name in ("a", "b", "c"):
        submit(core, name, 1.3, SHORT)
    commands = end(core, running.assignment, 0.1)
    assert [c.assignment.job_id for c in commands if isinstance(c, Dispatch)] == ["a"]
