"""Workers without a profile help with jobs that run already."""

import math
from collections.abc import Sequence

import pytest

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import EngineName, Fault, Outcome, WorkerClass, WorkerId
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_worker, started

BATCH, OTHER = EngineName("batch"), EngineName("other")
KNOWN, NEW = WorkerClass("known"), WorkerClass("new")
OLD_1, NEW_1, NEW_2 = WorkerId("old-1"), WorkerId("new-1"), WorkerId("new-2")
PROBE_QUERIES = SchedulingSettings().probe_queries


def core_with_old_worker(policy: str = "malleable", t_pre: float = 0.0) -> SchedulerCore:
    entries = [
        new_entry(engine, name, 100.0, model_load_s=t_pre)
        for engine, name in ((BATCH, KNOWN), (OTHER, KNOWN), (OTHER, NEW))
    ]
    return make_core(entries, [joined(OLD_1, KNOWN).worker], policy=policy)


def joined(
    worker_id: WorkerId, worker_class: WorkerClass, engines: Sequence[EngineName] = (BATCH, OTHER)
) -> events.WorkerJoined:
    return events.WorkerJoined(new_worker(worker_id, worker_class, engines))


def arrived(
    name: str, queries: int, engine: EngineName = BATCH, deadline: float = math.inf
) -> events.JobArrived:
    return new_job(name, engine, queries, deadline=deadline)


def stopped(commands: Sequence[events.Command]) -> list[int]:
    return [command.assignment_id for command in commands if isinstance(command, events.Stop)]


def test_running_job_probes_a_worker_that_joins_which_then_takes_a_share_of_it() -> None:
    core = core_with_old_worker()
    running = started(core, arrived("job", 10_000))
    assert stopped(core.handle(joined(NEW_1, NEW), 10.0)) == [running.id]
    probe, rest = dispatched(end(core, running, 10.01, Outcome.STOPPED, done=1001))
    assert (probe.worker_id, probe.probe, probe.count) == (NEW_1, True, PROBE_QUERIES)
    assert (rest.worker_id, rest.probe) == (OLD_1, False)
    assert rest.count == 10_000 - 1001 - PROBE_QUERIES

    core.handle(events.AssignmentStarted(rest.id, 0.0), 10.01)
    core.handle(events.AssignmentStarted(probe.id, 0.0), 10.01)
    commands = end(core, probe, 10.17)
    assert stopped(commands) == [rest.id]
    shares = dispatched(commands)
    shares += dispatched(end(core, rest, 10.18, Outcome.STOPPED, done=16))
    assert {share.worker_id for share in shares} == {OLD_1, NEW_1}
    assert sum(share.count for share in shares) == 10_000 - 1001 - PROBE_QUERIES - 16
    assert min(share.count for share in shares) > 3_000


def test_engine_that_a_worker_adds_later_is_probed_as_well() -> None:
    core = core_with_old_worker()
    running = started(core, arrived("job", 10_000))
    assert core.handle(joined(NEW_1, NEW, [OTHER]), 1.0) == []
    commands = core.handle(events.EnginesChanged(NEW_1, frozenset({BATCH, OTHER})), 2.0)
    assert stopped(commands) == [running.id]


def test_new_job_probes_an_idle_worker_before_the_profiled_one_takes_it_whole() -> None:
    core = core_with_old_worker()
    core.handle(joined(NEW_1, NEW), 0.0)
    assignments = dispatched(core.handle(arrived("job", 10_000), 1.0))
    assert [(each.worker_id, each.probe) for each in assignments] == [
        (NEW_1, True),
        (OLD_1, False),
    ]


def test_one_worker_of_a_class_is_probed_and_then_all_share_the_job() -> None:
    core = core_with_old_worker()
    running = started(core, arrived("job", 10_000))
    core.handle(joined(NEW_1, NEW), 1.0)
    assert core.handle(joined(NEW_2, NEW), 1.0) == []
    ended = events.AssignmentEnded(running.id, 101, Outcome.STOPPED)
    assert [each.probe for each in dispatched(core.handle(ended, 1.01))] == [True, False]


def test_job_in_setup_is_stopped_once_it_runs() -> None:
    core = core_with_old_worker()
    [running] = dispatched(core.handle(arrived("job", 10_000), 0.0))
    assert core.handle(joined(NEW_1, NEW), 1.0) == []
    assert stopped(core.handle(events.AssignmentStarted(running.id, 2.0), 2.0)) == [running.id]


def test_job_is_stopped_once_for_each_worker() -> None:
    core = core_with_old_worker()
    running = started(core, arrived("job", 100_000))
    core.handle(joined(NEW_1, NEW), 1.0)
    probe, rest = dispatched(end(core, running, 1.01, Outcome.STOPPED, done=101))
    core.handle(events.AssignmentStarted(rest.id, 0.0), 1.01)
    failed = events.AssignmentEnded(probe.id, 0, Outcome.FAILED, Fault.UNSPECIFIED, "it failed")
    assert stopped(core.handle(failed, 2.0)) == []
    assert stopped(core.handle(events.QueriesDone(rest.id, 300), 5.0)) == []


@pytest.mark.parametrize(
    ("queries", "t_pre"), [(150, 0.0), (1_000, 5.0)], ids=["short", "slow to load"]
)
def test_job_that_ends_soon_is_left_alone(queries: int, t_pre: float) -> None:
    core = core_with_old_worker(t_pre=t_pre)
    started(core, arrived("job", queries))
    assert core.handle(joined(NEW_1, NEW), 0.1) == []


def test_waiting_job_of_a_profiled_engine_precedes_a_probe() -> None:
    core = core_with_old_worker()
    core.handle(events.EnginesChanged(OLD_1, frozenset({BATCH})), 0.0)
    core.handle(joined(NEW_1, NEW), 0.0)
    first = started(core, arrived("first", 100, OTHER))
    core.handle(arrived("next", 100, OTHER), 0.0)
    core.handle(arrived("job", 10_000), 0.0)
    commands = end(core, first, 1.0)
    [assignment] = [each for each in dispatched(commands) if each.worker_id == NEW_1]
    assert (assignment.job_id, assignment.probe) == ("next", False)


def test_policy_that_moves_no_running_work_probes_only_with_waiting_jobs() -> None:
    core = core_with_old_worker("synergai")
    started(core, arrived("job", 10_000))
    assert core.handle(joined(NEW_1, NEW), 10.0) == []


def test_worker_is_probed_when_it_becomes_idle() -> None:
    core = core_with_old_worker()
    core.handle(events.EnginesChanged(OLD_1, frozenset({BATCH})), 0.0)
    core.handle(joined(NEW_1, NEW), 0.0)
    other = started(core, arrived("other", 100, OTHER))
    job = started(core, arrived("job", 10_000))
    assert (other.worker_id, job.worker_id) == (NEW_1, OLD_1)
    commands = end(core, other, 1.0)
    assert stopped(commands) == [job.id]


def test_job_without_a_deadline_moves_to_a_profiled_worker_that_joins() -> None:
    core = core_with_old_worker()
    running = started(core, arrived("job", 10_000, OTHER))
    assert stopped(core.handle(joined(NEW_1, NEW), 10.0)) == [running.id]
