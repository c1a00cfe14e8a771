"""Sessions that are loaded before they are needed."""

import pytest
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.loads import overdue_at
from synergai.domain import Configuration, Job, JobId, Outcome, Session, Variant, WorkerId
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_request
from tests.preloading_fleet import FAMILY, PLAIN, VARIANTS, Fleet


def test_every_worker_loads_every_engine_by_default() -> None:
    fleet = Fleet(2, preload=SchedulingSettings().preload)
    loads = {(load.worker_id, load.session.engine) for load in fleet.settle()}
    assert loads == {
        (WorkerId(f"worker-{number}"), engine) for number in range(2) for engine in (FAMILY, *PLAIN)
    }


def test_nothing_is_preloaded_if_that_is_off() -> None:
    fleet = Fleet(2)
    fleet.submit(PLAIN[0])
    assert fleet.settle() == []


def test_no_engine_is_left_out_where_there_are_more_than_one_plan_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("synergai.core.scheduling.rules.residency._SESSIONS", 2)
    fleet = Fleet(3, preload=True)
    assert len(fleet.settle(1000)) == 3 * len([*VARIANTS, *PLAIN])


def test_what_was_requested_is_loaded_first() -> None:
    fleet = Fleet(0, preload=True)
    fleet.submit(PLAIN[1])
    fleet.handle(events.JobCancelled(JobId("1")))
    fleet.handle(events.WorkerJoined(fleet.worker(0)))
    fleet.load_plain()
    assert [load.session.engine for load in fleet.loading] == [PLAIN[1]]


def test_job_whose_session_is_being_preloaded_waits_for_the_rest_of_the_load() -> None:
    fleet = Fleet(1, preload=True)
    load = fleet.load_plain()
    number = PLAIN.index(load.session.engine)
    fleet.now += 8.0
    fleet.submit(load.session.engine, queries=100)
    [dispatch] = fleet.running
    assert dispatch.assignment.setup_s == pytest.approx(2.0 + number)
    assert dispatch.assignment.estimate_s == pytest.approx(12.0 + number)


def test_preload_rests_while_the_worker_is_busy() -> None:
    fleet = Fleet(1, preload=True)
    load = fleet.load_plain()
    number = PLAIN.index(load.session.engine)
    other = PLAIN[number - 1]
    fleet.submit(other)
    fleet.end_first()
    fleet.now += 1.0
    fleet.submit(load.session.engine, queries=100)
    [dispatch] = fleet.running
    assert dispatch.assignment.setup_s == pytest.approx(9.0 + number)


def test_all_assignments_of_a_job_wait_for_one_load_of_their_variant() -> None:
    fleet = Fleet(1)
    job = Job(id=JobId("job"), engine=FAMILY, queries=100, arrival=0.0, variant="large")
    fleet.handle(events.JobArrived(job, job.queries, ((40, 60),)))
    assert [each.assignment.first for each in fleet.running] == [0, 60]
    assert [each.assignment.setup_s for each in fleet.running] == pytest.approx([0.31, 0.0])


def test_a_busy_worker_loads_nothing_ahead() -> None:
    fleet = Fleet(1, preload=True)
    first = fleet.loading.pop(0)
    fleet.handle(events.SessionLoaded(first.worker_id, first.session, 1.0))
    fleet.submit(first.session.engine, queries=1000)
    fleet.loading.clear()
    fleet.now += 1.0
    fleet.handle(events.TimePassed())
    assert [load for load in fleet.loading if load.session.engine != FAMILY] == []


def test_variants_are_loaded_fastest_first_on_all_workers() -> None:
    fleet = Fleet(3)
    fleet.submit(FAMILY, qos=0.2)
    served_by = fleet.running[0].assignment.worker_id
    loads = fleet.settle()
    by_worker: dict[WorkerId, list[str]] = {}
    for load in loads:
        by_worker.setdefault(load.worker_id, []).append(load.session.configuration.variant)
    assert len(by_worker) == 3
    others = [variants for worker, variants in by_worker.items() if worker != served_by]
    assert all(variants[0] == "small" for variants in others)
    fleet.submit(FAMILY, qos=0.5)
    assert fleet.running[0].assignment.configuration.variant == "large"
    assert fleet.running[0].assignment.setup_s == 0.0


def test_all_workers_of_a_large_fleet_get_their_turn() -> None:
    fleet = Fleet(70)
    fleet.submit(FAMILY, qos=0.2)
    served_by = fleet.running[0].assignment.worker_id
    loads = fleet.settle(1000)
    assert len({served_by, *(load.worker_id for load in loads)}) == 70


def test_a_hung_load_holds_back_other_workers_for_a_while_only() -> None:
    fleet = Fleet(2)
    fleet.submit(FAMILY, qos=30.0)
    fleet.submit(FAMILY, qos=30.0)
    hung = fleet.running[0].assignment
    fleet.now = overdue_at(0.0, hung.setup_s) - 0.01
    fleet.handle(events.TimePassed())
    assert len(fleet.running) == 1
    wakeup = fleet.core.wakeup()
    assert wakeup is not None
    fleet.now = wakeup
    fleet.handle(events.TimePassed())
    assert fleet.now < 3.0
    assert fleet.running[1].assignment.worker_id != hung.worker_id


def test_a_preload_that_hangs_does_not_end_the_plan() -> None:
    fleet = Fleet(3)
    fleet.submit(FAMILY)
    fleet.end_first()
    hung = fleet.loading[0]
    for _ in range(100):
        wakeup = fleet.core.wakeup()
        if wakeup is None or len(fleet.loading) > 1:
            break
        fleet.now = max(fleet.now, wakeup)
        fleet.handle(events.TimePassed())
    assert fleet.loading[1].worker_id != hung.worker_id
    assert fleet.now < 10.0


def test_loading_a_variant_into_a_host_says_nothing_about_starting_one() -> None:
    fleet = Fleet(1)
    sessions = [Session(FAMILY, Configuration(variant=name)) for name in VARIANTS]
    worker_id = WorkerId("worker-0")
    fleet.submit(FAMILY)
    cold_s = fleet.running[0].assignment.setup_s
    fleet.handle(events.SessionLoaded(worker_id, sessions[0], 0.31))
    for session in sessions[1:]:
        fleet.handle(events.SessionLoaded(worker_id, session, 0.01))
    fleet.end_first()
    for session in sessions:
        fleet.handle(events.SessionDropped(worker_id, session))
    fleet.submit(FAMILY)
    assert fleet.running[0].assignment.setup_s == pytest.approx(cold_s)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_no_policy_gives_a_query_a_variant_below_its_floor(policy: str) -> None:
    fleet = Fleet(0)
    settings = SchedulingSettings(policy=policy, preload=False)
    fleet.core = SchedulerCore(settings, ConfigurationDictionary(fleet.entries))
    fast_only = {FAMILY: (Variant(name="small"),)}
    fleet.handle(events.WorkerJoined(replace(fleet.worker(0), variants=fast_only)))
    fleet.handle(events.WorkerJoined(fleet.worker(1)))
    for number in range(4):
        fleet.handle(
            new_request(
                str(number), FAMILY, fleet.now, deadline=fleet.now + 100.0, min_accuracy=0.89
            )
        )
        assert [each.assignment.configuration.variant for each in fleet.running] == ["large"]
        fleet.end_first()


def test_a_load_that_fails_is_repeated_soon_and_then_less_often() -> None:
    fleet = Fleet(1)
    fleet.submit(FAMILY)
    fleet.end_first()
    load = fleet.loading.pop(0)
    pauses = []
    for _ in range(9):
        fleet.handle(events.SessionDropped(load.worker_id, load.session))
        began, again = fleet.now, False
        while not again:
            fleet.now += 1.0
            fleet.submit(FAMILY)
            fleet.end_first()
            for each in fleet.loading:
                again = again or each.session == load.session
                if each.session != load.session:
                    fleet.handle(events.SessionLoaded(each.worker_id, each.session))
            fleet.loading.clear()
        pauses.append(fleet.now - began)
    assert pauses == pytest.approx([5, 10, 20, 40, 80, 160, 320, 600, 600], abs=1.5)


@pytest.mark.parametrize("policy", ["malleable", "synergai", "edf", "fifo"])
def test_request_that_waits_for_a_load_holds_up_no_other(policy: str) -> None:
    fleet = Fleet(0)
    settings = SchedulingSettings(policy=policy, preload=False)
    fleet.core = SchedulerCore(settings, ConfigurationDictionary(fleet.entries))
    fleet.handle(events.WorkerJoined(fleet.worker(1)))
    fleet.submit(FAMILY)  # which the worker loads a variant for
    loaded = Session(FAMILY, Configuration(variant="small")), Session(PLAIN[0], Configuration())
    fleet.handle(events.WorkerJoined(replace(fleet.worker(0), sessions=frozenset(loaded))))
    for engine, floor in ((FAMILY, 0.89), (PLAIN[0], 0.0)):  # only large, which it has not loaded
        fleet.handle(new_request(f"floor {floor}", engine, deadline=100.0, min_accuracy=floor))
    assert [each.assignment.job_id for each in fleet.running] == ["1", "floor 0.0"]
    for _ in range(4):
        fleet.end_first()
        if not fleet.running:
            break
        assert fleet.running[0].assignment.configuration.variant in ("large", "")
    assert not fleet.running


def test_a_session_dropped_while_a_job_runs_on_it_is_not_loaded_again_for_that_job() -> None:
    fleet = Fleet(0)
    large, small = (Configuration(variant=name) for name in ("large", "small"))
    worker = replace(fleet.worker(0), sessions=frozenset({Session(FAMILY, large)}))
    fleet.handle(events.WorkerJoined(worker))
    fleet.submit(FAMILY, queries=1000)
    assignment = fleet.running.pop().assignment
    assert assignment.configuration == large
    fleet.handle(events.AssignmentStarted(assignment.id, 0.0))
    fleet.handle(events.SessionDropped(worker.id, Session(FAMILY, large)))
    fleet.handle(events.JobCancelled(JobId("1")))
    fleet.handle(events.AssignmentEnded(assignment.id, 10, Outcome.STOPPED))
    fleet.submit(FAMILY, variant="small")
    assert [each.assignment.configuration for each in fleet.running] == [small]


def test_a_request_for_a_variant_that_is_not_loaded_holds_up_none_for_one_that_is() -> None:
    fleet = Fleet(0)
    fleet.handle(events.WorkerJoined(fleet.worker(1)))
    fleet.submit(FAMILY)  # which the worker loads a variant for
    loaded = frozenset({Session(FAMILY, Configuration(variant="large"))})
    fleet.handle(events.WorkerJoined(replace(fleet.worker(0), sessions=loaded)))
    fleet.submit(FAMILY, variant="small", qos=1.0)
    fleet.submit(FAMILY, qos=100.0)
    assert [each.assignment.job_id for each in fleet.running] == ["1", "3"]


def test_an_engine_that_is_loaded_in_another_configuration_is_not_preloaded() -> None:
    fleet = Fleet(0, preload=True)
    other = Session(PLAIN[0], Configuration(4))
    worker = replace(
        fleet.worker(0), sessions=frozenset({other}), engines=frozenset({PLAIN[0]}), variants={}
    )
    fleet.handle(events.WorkerJoined(worker))
    assert fleet.settle() == []
