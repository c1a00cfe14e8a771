"""Assignments that fail because a worker lacks memory."""

import math

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import Assignment, Command, Fail, TimePassed
from synergai.core.scheduling.rules.failures import MEMORY_FAULTS
from synergai.domain import Configuration, EngineName, Fault, JobId, Outcome, WorkerId
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_request, new_worker

ENGINE = EngineName("e")
GPU, CPU = Configuration(0, "", "cuda"), Configuration(4)


def core_with(*configurations: Configuration) -> SchedulerCore:
    entries = [
        new_entry(ENGINE, "c", 100.0 if each == GPU else 10.0, each) for each in configurations
    ]
    return make_core(entries, [new_worker("w", "c", [ENGINE], configurations)])


def arrive(core: SchedulerCore, name: str, now: float, *, request: bool = True) -> Assignment:
    if request:
        job = new_request(name, ENGINE, now, deadline=now + 60.0)
    else:
        job = new_job(name, ENGINE, 100, now)
    [assignment] = dispatched(core.handle(job, now))
    return assignment


def lack_memory(core: SchedulerCore, assignment: Assignment, now: float) -> list[Command]:
    return end(core, assignment, now, Outcome.FAILED, done=0, fault=Fault.OUT_OF_MEMORY)


def test_query_runs_in_another_configuration_which_the_provider_resumes_from_later() -> None:
    core = core_with(GPU, CPU)
    first = arrive(core, "a", 0.0)
    assert first.configuration == GPU
    [second] = dispatched(lack_memory(core, first, 0.1))
    assert second.configuration == CPU
    end(core, second, 0.2)
    end(core, third := arrive(core, "b", 0.3), 0.4)
    assert third.configuration == CPU
    core.handle(TimePassed(), 1.2)
    assert arrive(core, "c", 1.3).configuration == GPU


def test_pause_doubles_until_a_query_is_completed() -> None:
    core = core_with(GPU, CPU)
    now, pauses = 0.0, []
    for number in range(4):
        first = arrive(core, f"r{number}", now)
        assert first.configuration == GPU
        [second] = dispatched(lack_memory(core, first, now))
        [until] = core.paused(WorkerId("w")).values()
        pauses.append(until - now)
        end(core, second, now)
        core.handle(TimePassed(), now := until)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    end(core, arrive(core, "good", now), now)
    lack_memory(core, arrive(core, "bad", now), now)
    assert [until - now for until in core.paused(WorkerId("w")).values()] == [1.0]


def test_request_without_an_alternative_fails_at_once() -> None:
    core = core_with(GPU)
    [fail] = [
        each for each in lack_memory(core, arrive(core, "a", 0.0), 0.1) if isinstance(each, Fail)
    ]
    assert (fail.job_id, fail.fault) == (JobId("a"), Fault.OUT_OF_MEMORY)
    assert arrive(core, "b", 0.2).configuration == GPU


def test_job_without_an_alternative_is_retried_later_and_fails_in_the_end() -> None:
    core = core_with(GPU)
    assignment = arrive(core, "job", 0.0, request=False)
    instants = [0.0]
    while not any(isinstance(each, Fail) for each in lack_memory(core, assignment, instants[-1])):
        wakeup = core.wakeup()
        assert wakeup is not None
        given: list[Assignment] = []
        while not given:
            given = dispatched(core.handle(TimePassed(), wakeup))
            instants.append(wakeup)
            wakeup = core.wakeup() or math.inf
        [assignment] = given
    assert len(instants) >= MEMORY_FAULTS
    assert instants[-1] > 60.0
