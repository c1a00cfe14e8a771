"""What each policy is about, on a server that is ten times as fast as its two boards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from synergai.domain import (
    Configuration,
    EngineName,
    Job,
    JobId,
    Outcome,
    Session,
    WorkerClass,
    WorkerId,
)
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.events import (
    Assignment,
    AssignmentEnded,
    Dispatch,
    Finish,
    JobArrived,
    QueriesDone,
    SchedulingSettings,
    Stop,
    TimePassed,
    Worker,
    WorkerJoined,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.scheduling.events import Command

DIGITS = EngineName("digits")
QPS = {"server": 100.0, "board": 10.0}
ONE, FOUR = Configuration(1), Configuration(4)


class Fleet:
    """A core whose workers are called s (the server), b1 and b2 (the boards)."""

    def __init__(self, policy: str, t_pre: float = 0.0, **options: str) -> None:
        dictionary = ConfigurationDictionary(
            ProfileEntry(
                engine=DIGITS,
                worker_class=WorkerClass(name),
                configuration=configuration,
                qps=qps * (1.0 if configuration is FOUR else 0.5),
                model_load_s=t_pre,
            )
            for name, qps in QPS.items()
            for configuration in (ONE, FOUR)
        )
        settings = SchedulingSettings(policy=policy, options=options, prefetch_s=0.0)
        self.core = SchedulerCore(settings, dictionary)
        self.now = 0.0
        self._jobs = 0
        for name in ("b1", "s", "b2"):
            self.core.handle(WorkerJoined(a_worker(name, warm=not t_pre)), 0.0)

    def submit(self, queries: int = 100, budget: float = math.inf) -> list[Command]:
        self._jobs += 1
        job = Job(
            id=JobId(f"job-{self._jobs}"),
            engine=DIGITS,
            queries=queries,
            arrival=self.now,
            deadline=self.now + budget,
        )
        return self.core.handle(JobArrived(job, ready=queries), self.now)

    def end(self, assignment: Assignment, done: int | None = None) -> list[Command]:
        outcome = Outcome.COMPLETED if done is None else Outcome.STOPPED
        done = assignment.count if done is None else done
        return self.core.handle(AssignmentEnded(assignment.id, done, outcome), self.now)


def a_worker(name: str, *, warm: bool) -> Worker:
    return Worker(
        id=WorkerId(name),
        worker_class=WorkerClass("server" if name == "s" else "board"),
        engines=frozenset({DIGITS}),
        configurations=(ONE, FOUR),
        sessions=frozenset({Session(DIGITS, ONE), Session(DIGITS, FOUR)} if warm else ()),
    )


def given(commands: Iterable[Command]) -> list[Assignment]:
    return [command.assignment for command in commands if isinstance(command, Dispatch)]


def places(assignments: Sequence[Assignment]) -> list[str]:
    return [str(assignment.worker_id) for assignment in assignments]


def test_round_robin_goes_on_in_a_circle_over_whoever_is_available() -> None:
    fleet = Fleet("rr")
    first, second, third = (given(fleet.submit())[0] for _ in range(3))
    assert places([first, second, third]) == ["b1", "s", "b2"]
    fleet.end(second)
    [fourth] = given(fleet.submit())
    assert places([fourth]) == ["s"]


def test_strict_round_robin_waits_for_the_worker_whose_turn_it_is() -> None:
    fleet = Fleet("srr")
    first, second, _ = (given(fleet.submit())[0] for _ in range(3))
    assert given(fleet.submit()) == []
    assert given(fleet.end(second)) == []
    [fourth] = given(fleet.end(first))
    assert places([fourth]) == ["b1"]


def idle_in_the_order(fleet: Fleet, order: Sequence[str]) -> None:
    running = {a.worker_id: a for _ in range(3) for a in given(fleet.submit())}
    for name in order:
        fleet.now += 1.0
        fleet.end(running[WorkerId(name)])


def test_least_recently_used_takes_the_worker_that_is_idle_longest() -> None:
    fleet = Fleet("lru")
    idle_in_the_order(fleet, ["b2", "s", "b1"])
    assert places(given(fleet.submit())) == ["b2"]


def test_most_recently_used_takes_the_worker_that_was_active_last() -> None:
    fleet = Fleet("mru")
    idle_in_the_order(fleet, ["s", "b2", "b1"])
    assert places(given(fleet.submit())) == ["b1"]


def test_best_effort_goes_from_the_strongest_to_the_weakest() -> None:
    fleet = Fleet("be")
    assert places([given(fleet.submit())[0] for _ in range(2)]) == ["s", "b1"]


def test_best_effort_keeps_to_the_operators_order() -> None:
    fleet = Fleet("be", order="board server")
    assert places([given(fleet.submit())[0] for _ in range(3)]) == ["b1", "b2", "s"]


@pytest.mark.parametrize("policy", ["rr", "srr", "lru", "mru", "be", "slo_mael"])
def test_schedulers_that_know_no_profile_run_in_the_predefined_configuration(policy: str) -> None:
    fleet = Fleet(policy, board="threads=1", server="threads=1")
    [assignment] = given(fleet.submit())
    assert assignment.configuration == ONE


def test_predefined_configuration_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a configuration"):
        Fleet("rr", board="fast")


def test_earliest_deadline_goes_first() -> None:
    fleet = Fleet("edf")
    running = [given(fleet.submit(1000))[0] for _ in range(3)]
    fleet.submit(10, budget=50.0)
    fleet.submit(1000, budget=40.0)
    [following] = given(fleet.end(running[0]))
    assert following.job_id == "job-5"


def test_slo_mael_binds_on_arrival_and_never_rebinds() -> None:
    fleet = Fleet("slo_mael")
    [first] = given(fleet.submit(1000, budget=20.0))
    assert places([first]) == ["s"]
    assert given(fleet.submit(500, budget=16.0)) == []
    fleet.now = 9.0
    assert given(fleet.core.handle(TimePassed(), fleet.now)) == []
    fleet.now = 10.0
    [second] = given(fleet.end(first))
    assert places([second]) == ["s"]


def test_slo_mael_takes_the_least_slack_of_those_that_are_bound_to_an_idle_device() -> None:
    fleet = Fleet("slo_mael")
    [running] = given(fleet.submit(1000, budget=20.0))
    fleet.submit(300, budget=29.0)
    fleet.submit(300, budget=19.0)
    fleet.now = 10.0
    [following] = given(fleet.end(running))
    assert following.job_id == "job-3"


# --- malleable --------------------------------------------------------------------------


def test_malleable_splits_a_job_so_that_all_workers_finish_together() -> None:
    fleet = Fleet("malleable")
    shares = given(fleet.submit(1200))
    assert {str(a.worker_id): a.count for a in shares} == {"s": 1000, "b1": 100, "b2": 100}
    assert max(a.first + a.count for a in shares) == 1200


def test_malleable_does_not_split_where_setup_would_cost_more_than_it_gains() -> None:
    fleet = Fleet("malleable", t_pre=30.0)
    assert places(given(fleet.submit(200))) == ["s"]


def test_malleable_stops_a_lax_job_for_a_tight_one_and_resumes_it() -> None:
    fleet = Fleet("malleable")
    lax = given(fleet.submit(12_000, budget=1000.0))
    fleet.now = 10.0
    for part in lax:
        share = part.count // 10
        fleet.core.handle(QueriesDone(part.id, share), fleet.now)
    commands = fleet.submit(1200, budget=14.0)
    stopped = {c.assignment_id for c in commands if isinstance(c, Stop)}
    assert stopped == {part.id for part in lax}
    tight = [a for a in given(commands) if a.job_id == "job-2"]
    assert sum(a.count for a in tight) == 1200
    for part in lax:
        fleet.end(part, part.count // 10)
    fleet.now = 20.0
    commands = [command for part in tight for command in fleet.end(part)]
    assert Finish(JobId("job-2")) in commands
    resumed = [a for a in given(commands) if a.job_id == "job-1"]
    assert sum(a.count for a in resumed) == 12_000 - sum(part.count // 10 for part in lax)


def test_malleable_lets_a_job_run_that_leaves_everybody_in_time() -> None:
    fleet = Fleet("malleable")
    fleet.submit(1200, budget=20.0)
    fleet.now = 2.0
    commands = fleet.submit(120, budget=100.0)
    assert not [command for command in commands if isinstance(command, Stop)]


def test_malleable_plans_around_a_worker_whose_work_ends_nobody_knows_when() -> None:
    digits, new = DIGITS, EngineName("new")  # the dictionary lacks it: it is measured first
    entry = ProfileEntry(
        engine=digits, worker_class=WorkerClass("board"), configuration=ONE, qps=10.0
    )
    core = SchedulerCore(
        # A worker is given more while it is still at work.
        SchedulingSettings(policy="malleable", prefetch_s=1e6),
        ConfigurationDictionary([entry]),
    )
    for name in ("b1", "b2"):
        worker = Worker(
            id=WorkerId(name),
            worker_class=WorkerClass("board"),
            engines=frozenset({digits, new}),
            configurations=(ONE,),
            sessions=frozenset({Session(digits, ONE)}),
        )
        core.handle(WorkerJoined(worker), 0.0)
    given: dict[str, int] = {}
    for number, engine in enumerate((digits, new, digits)):
        job = Job(
            id=JobId(str(number)), engine=engine, queries=500, arrival=number, deadline=math.inf
        )
        for command in core.handle(JobArrived(job, ready=500), float(number)):
            if isinstance(command, Dispatch):
                given[job.id] = given.get(job.id, 0) + command.assignment.count

    assert given["0"] == 500
    assert given["1"] > 0
    assert "2" in given


def test_malleable_gives_a_request_to_whoever_is_soonest_done() -> None:
    fleet = Fleet("malleable")
    assert places(given(fleet.submit(1, budget=1.0))) == ["s"]
    assert places(given(fleet.submit(1, budget=1.0))) == ["b1"]


@pytest.mark.parametrize("options", [{"gain": "much"}, {"speed": "1"}])
def test_malleable_refuses_options_that_it_does_not_have(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"options of policy 'malleable'|no option 'speed'"):
        Fleet("malleable", **options)
