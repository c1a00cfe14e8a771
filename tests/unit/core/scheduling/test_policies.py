"""The characteristic behaviour of each policy, on a server ten times as fast as its two boards."""

import math
from collections.abc import Sequence

import pytest

from synergai import domain
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Dispatch,
    Event,
    Finish,
    QueriesDone,
    QueriesReady,
    Stop,
    TimePassed,
    Worker,
    WorkerJoined,
)
from synergai.core.scheduling.policies.malleable.policy import MAX_JOBS
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import ONE, dispatched, make_core, new_entry, new_job, new_worker

DIGITS = domain.EngineName("digits")
QPS = {"server": 100.0, "board": 10.0}
FOUR = domain.Configuration(4)


class Harness:
    """A core with a clock and workers s (the server), b1 and b2 (the boards)."""

    def __init__(self, policy: str, t_pre: float = 0.0, **options: str) -> None:
        dictionary = ConfigurationDictionary(
            new_entry(
                DIGITS,
                name,
                qps * (1.0 if configuration is FOUR else 0.5),
                configuration,
                model_load_s=t_pre,
            )
            for name, qps in QPS.items()
            for configuration in (ONE, FOUR)
        )
        settings = SchedulingSettings(policy=policy, policy_options=options, prefetch_s=0.0)
        self.core = SchedulerCore(settings, dictionary)
        self.now = 0.0
        self._jobs = 0
        for name in ("b1", "s", "b2"):
            self.core.handle(WorkerJoined(make_worker(name, warm=not t_pre)), 0.0)

    def submit(self, queries: int = 100, budget: float = math.inf) -> list[Command]:
        self._jobs += 1
        deadline = self.now + budget
        job = new_job(f"job-{self._jobs}", DIGITS, queries, self.now, deadline=deadline)
        return self.core.handle(job, self.now)

    def end(self, assignment: Assignment, done: int | None = None) -> list[Command]:
        outcome = domain.Outcome.COMPLETED if done is None else domain.Outcome.STOPPED
        done = assignment.count if done is None else done
        return self.core.handle(AssignmentEnded(assignment.id, done, outcome), self.now)


def make_worker(name: str, *, warm: bool) -> Worker:
    worker_class = "server" if name == "s" else "board"
    return new_worker(name, worker_class, [DIGITS], (ONE, FOUR), loaded=warm)


def worker_ids(assignments: Sequence[Assignment]) -> list[str]:
    return [str(assignment.worker_id) for assignment in assignments]


def test_round_robin_cycles_over_available_workers() -> None:
    harness = Harness("rr")
    first, second, third = (dispatched(harness.submit())[0] for _ in range(3))
    assert worker_ids([first, second, third]) == ["b1", "s", "b2"]
    harness.end(second)
    [fourth] = dispatched(harness.submit())
    assert worker_ids([fourth]) == ["s"]


def test_strict_round_robin_waits_for_the_next_worker_in_turn() -> None:
    harness = Harness("srr")
    first, second, _ = (dispatched(harness.submit())[0] for _ in range(3))
    assert dispatched(harness.submit()) == []
    assert dispatched(harness.end(second)) == []
    [fourth] = dispatched(harness.end(first))
    assert worker_ids([fourth]) == ["b1"]


@pytest.mark.parametrize(("policy", "chosen"), [("lru", "b2"), ("mru", "b1")])
def test_worker_that_was_used_least_or_most_recently_is_selected(policy: str, chosen: str) -> None:
    harness = Harness(policy)
    running = {a.worker_id: a for _ in range(3) for a in dispatched(harness.submit())}
    for name in ("b2", "s", "b1"):
        harness.now += 1.0
        harness.end(running[domain.WorkerId(name)])
    assert worker_ids(dispatched(harness.submit())) == [chosen]


@pytest.mark.parametrize(
    ("options", "chosen"), [({}, ["s", "b1"]), ({"order": "board server"}, ["b1", "b2", "s"])]
)
def test_best_effort_prefers_the_strongest_worker_or_the_configured_order(
    options: dict[str, str], chosen: list[str]
) -> None:
    harness = Harness("be", 0.0, **options)
    assert worker_ids([dispatched(harness.submit())[0] for _ in chosen]) == chosen


@pytest.mark.parametrize("policy", ["rr", "srr", "lru", "mru", "be", "slo_mael"])
def test_profile_agnostic_policies_use_the_predefined_configuration(policy: str) -> None:
    harness = Harness(policy, board="threads=1", server="threads=1")
    [assignment] = dispatched(harness.submit())
    assert assignment.configuration == ONE


def test_invalid_predefined_configuration_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="is not a configuration"):
        Harness("rr", board="fast")


def test_earliest_deadline_goes_first() -> None:
    harness = Harness("edf")
    running = [dispatched(harness.submit(1000))[0] for _ in range(3)]
    harness.submit(10, budget=50.0)
    harness.submit(1000, budget=40.0)
    [following] = dispatched(harness.end(running[0]))
    assert following.job_id == "job-5"


def test_slo_mael_binds_on_arrival_and_never_rebinds() -> None:
    harness = Harness("slo_mael")
    [first] = dispatched(harness.submit(1000, budget=20.0))
    assert worker_ids([first]) == ["s"]
    assert dispatched(harness.submit(500, budget=16.0)) == []
    harness.now = 9.0
    assert dispatched(harness.core.handle(TimePassed(), harness.now)) == []
    harness.now = 10.0
    [second] = dispatched(harness.end(first))
    assert worker_ids([second]) == ["s"]


def test_slo_mael_runs_the_bound_job_with_the_least_slack() -> None:
    harness = Harness("slo_mael")
    [running] = dispatched(harness.submit(1000, budget=20.0))
    harness.submit(300, budget=29.0)
    harness.submit(300, budget=19.0)
    harness.now = 10.0
    [following] = dispatched(harness.end(running))
    assert following.job_id == "job-3"


# --- malleable --------------------------------------------------------------------------


def test_malleable_splits_a_job_so_that_all_workers_finish_together() -> None:
    harness = Harness("malleable")
    shares = dispatched(harness.submit(1200))
    assert {str(a.worker_id): a.count for a in shares} == {"s": 1000, "b1": 100, "b2": 100}
    assert max(a.first + a.count for a in shares) == 1200


def test_malleable_does_not_split_if_setup_exceeds_the_gain() -> None:
    harness = Harness("malleable", t_pre=30.0)
    assert worker_ids(dispatched(harness.submit(200))) == ["s"]


def test_malleable_loads_a_stage_on_as_many_workers_as_a_job() -> None:
    for queries, workers in ((8, 1), (16, 2), (30, 3)):
        used = []
        for is_stage in (False, True):
            core = make_core(
                [new_entry(DIGITS, "board", 25.0, model_load_s=1.9)],
                [new_worker(name, "board", [DIGITS], loaded=False) for name in "abcd"],
                preload=False,
            )
            job = new_job("job", DIGITS, queries, ready=0 if is_stage else None)
            commands = core.handle(job, 0.0)
            for ready in range(queries if is_stage else 0):
                at = 0.01 * (ready + 1)
                commands += core.handle(QueriesReady(domain.JobId("job"), ready + 1), at)
            used.append(len({*worker_ids(dispatched(commands))}))
        assert used == [workers, workers]


def test_malleable_stops_a_loose_job_for_a_tight_one_and_resumes_it() -> None:
    harness = Harness("malleable")
    lax = dispatched(harness.submit(12_000, budget=1000.0))
    harness.now = 10.0
    for part in lax:
        share = part.count // 10
        harness.core.handle(QueriesDone(part.id, share), harness.now)
    commands = harness.submit(1200, budget=14.0)
    stopped = {c.assignment_id for c in commands if isinstance(c, Stop)}
    assert stopped == {part.id for part in lax}
    tight = [a for a in dispatched(commands) if a.job_id == "job-2"]
    assert sum(a.count for a in tight) == 1200
    for part in lax:
        harness.end(part, part.count // 10)
    harness.now = 20.0
    commands = [command for part in tight for command in harness.end(part)]
    assert Finish(domain.JobId("job-2")) in commands
    resumed = [a for a in dispatched(commands) if a.job_id == "job-1"]
    assert sum(a.count for a in resumed) == 12_000 - sum(part.count // 10 for part in lax)


def test_malleable_stops_a_job_of_less_than_two_seconds_for_a_tight_one() -> None:
    harness = Harness("malleable")
    lax = dispatched(harness.submit(240, budget=100.0))
    commands = harness.submit(24, budget=0.5)
    assert {c.assignment_id for c in commands if isinstance(c, Stop)} == {part.id for part in lax}


@pytest.mark.parametrize(
    ("running", "arriving"),
    [((10, 100.0, 0.0), (10, 0.05)), ((1200, 20.0, 2.0), (120, 100.0))],
    ids=["ends at once", "all deadlines are met"],
)
def test_malleable_does_not_stop_a_job_that(
    running: tuple[int, float, float], arriving: tuple[int, float]
) -> None:
    harness = Harness("malleable")
    queries, budget, later = running
    harness.submit(queries, budget)
    harness.now = later
    assert not [command for command in harness.submit(*arriving) if isinstance(command, Stop)]


def test_malleable_stops_a_late_job_on_its_fastest_worker_only() -> None:
    harness = Harness("malleable")
    late = dispatched(harness.submit(12_000, budget=5.0))
    harness.now = 10.0
    for part in late:
        harness.core.handle(QueriesDone(part.id, part.count // 10), harness.now)
    commands = harness.submit(1200, budget=14.0)
    stopped = {c.assignment_id for c in commands if isinstance(c, Stop)}
    assert stopped == {part.id for part in late if part.worker_id == "s"}


def test_malleable_plans_around_a_worker_with_unknown_end() -> None:
    digits, new = DIGITS, domain.EngineName("new")  # unprofiled: it is probed first
    entry = new_entry(digits, "board", 10.0)
    core = SchedulerCore(
        # Workers accept further assignments while busy.
        SchedulingSettings(policy="malleable", prefetch_s=1e6),
        ConfigurationDictionary([entry]),
    )
    for name in ("b1", "b2"):
        worker = new_worker(name, "board", [digits, new], loaded=[digits])
        core.handle(WorkerJoined(worker), 0.0)
    dispatched: dict[str, int] = {}
    for number, engine in enumerate((digits, new, digits)):
        arrived = new_job(str(number), engine, 500, number)
        for command in core.handle(arrived, float(number)):
            if isinstance(command, Dispatch):
                job_id = command.assignment.job_id
                dispatched[job_id] = dispatched.get(job_id, 0) + command.assignment.count

    assert dispatched["0"] == 500
    assert dispatched["1"] > 0
    assert "2" in dispatched


def test_malleable_assigns_a_request_to_the_earliest_completion() -> None:
    harness = Harness("malleable")
    assert worker_ids(dispatched(harness.submit(1, budget=1.0))) == ["s"]
    assert worker_ids(dispatched(harness.submit(1, budget=1.0))) == ["b1"]


@pytest.mark.parametrize("options", [{"gain": "much"}, {"speed": "1"}])
def test_malleable_rejects_unknown_options(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"options of policy 'malleable'|no option 'speed'"):
        Harness("malleable", 0.0, **options)


def test_worker_that_joins_a_large_fleet_may_find_nothing_that_waits() -> None:
    workers = [new_worker(f"b{number}", "board", [DIGITS]) for number in range(8)]
    core = make_core([new_entry(DIGITS, "board", 10.0)], workers[:7])
    assert len(dispatched(core.handle(new_job("job", DIGITS, 10_000), 0.0))) == 4
    assert core.handle(WorkerJoined(workers[7]), 1.0) == []


def test_malleable_runs_a_job_behind_single_queries_that_only_busy_workers_can_take() -> None:
    core = make_core(
        [new_entry("rare", "fast", 1.0), new_entry("common", "slow", 10.0)],
        [new_worker("fast-1", "fast", ["rare"]), new_worker("slow-1", "slow", ["common"])],
        policy="malleable",
    )
    core.handle(new_job("long", "rare", 100, deadline=1.0), 0.0)
    for number in range(MAX_JOBS + 1):
        core.handle(new_job(f"single-{number}", "rare", deadline=2.0), 0.0)
    [assignment] = dispatched(core.handle(new_job("behind", "common", 50, deadline=1e3), 0.0))
    assert (assignment.job_id, assignment.worker_id) == ("behind", "slow-1")


def test_malleable_divides_a_job_again_once_a_slow_link_shows() -> None:
    core = make_core(
        [new_entry(DIGITS, "edge", 5.0), new_entry(DIGITS, "cloud", 20.0)],
        [new_worker(name, name, [DIGITS]) for name in ("edge", "cloud")],
        policy="malleable",
    )
    parts = dispatched(core.handle(new_job("job", DIGITS, 25, with_tensors=True), 0.0))
    cloud, edge = sorted(parts, key=lambda part: part.worker_id)
    assert (cloud.count, edge.count) == (20, 5)
    core.handle(AssignmentStarted(edge.id, 0.0), 0.0)
    core.handle(AssignmentStarted(cloud.id, 0.0), 0.5)
    events: list[tuple[float, Event]] = [
        (0.5 + number * 0.55, QueriesDone(cloud.id, number, 0.05 * number))
        for number in range(1, 5)
    ]
    events.append((1.0, AssignmentEnded(edge.id, 5, domain.Outcome.COMPLETED, compute_s=1.0)))
    commands = [command for now, event in sorted(events) for command in core.handle(event, now)]
    assert [each for each in commands if isinstance(each, Stop)] == [
        Stop(cloud.id, cloud.worker_id)
    ]
    stopped = AssignmentEnded(cloud.id, 4, domain.Outcome.STOPPED, compute_s=0.2)
    again = {str(each.worker_id): each.count for each in dispatched(core.handle(stopped, 2.8))}
    assert again["edge"] > again["cloud"] > 0
