"""Choice among the variants of an engine."""

import math
from typing import Any

import pytest

from synergai.core.scheduling import events
from synergai.domain import (
    Configuration,
    EngineName,
    Fault,
    JobId,
    Outcome,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from tests.cores import end, make_core, new_entry, new_job, new_worker

FAMILY, PLAIN = EngineName("fashion"), EngineName("digits")
CLASS = WorkerClass("server")
VARIANTS = {"large": (0.2, 0.90), "medium": (0.05, 0.88), "small": (0.01, 0.80)}
"""Seconds and accuracy."""


class Fleet:
    """A core with workers that have an engine with three variants, all loaded."""

    def __init__(
        self,
        workers: int = 1,
        *,
        policy: str = "malleable",
        objective: str = "accuracy",
        infeasible: str = "defer",
        resident: tuple[str, ...] = tuple(VARIANTS),
        samples: int = 10_000,
        unknown: tuple[str, ...] = (),
        other_samples: tuple[str, ...] = (),
        tail: float = 0.0,
        cores: int = 0,
    ) -> None:
        entries = [
            new_entry(
                FAMILY,
                CLASS,
                1.0 / seconds,
                Configuration(variant=name),
                latency_p50_s=seconds if tail else 0.0,
                latency_p99_s=seconds * tail,
                accuracy=accuracy if samples and name not in unknown else 0.0,
                accuracy_samples=0 if name in unknown else samples,
                samples_digest="b" if name in other_samples else "a",
                backend_start_s=0.3,
                model_load_s=0.01,
            )
            for name, (seconds, accuracy) in VARIANTS.items()
        ]
        plain = new_entry(PLAIN, CLASS, 100.0, Configuration())
        self.core = make_core(
            [*entries, plain],
            policy=policy,
            objective=objective,
            infeasible=infeasible,
            preload=False,
        )
        self.now = 0.0
        self._jobs = 0
        self.running: list[events.Assignment] = []
        self._resident = resident
        self._cores = cores
        for number in range(workers):
            self.join(number)

    def add(self, number: int, resident: tuple[str, ...]) -> None:
        self._resident = resident
        self.join(number)

    def join(self, number: int) -> list[events.Command]:
        worker = new_worker(
            f"worker-{number}",
            CLASS,
            [FAMILY, PLAIN],
            (Configuration(),),
            loaded=[Session(FAMILY, Configuration(variant=name)) for name in self._resident],
            cores=self._cores,
            variants={FAMILY: tuple(Variant(name=name, digest="a" * 64) for name in VARIANTS)},
        )
        return self._note(self.core.handle(events.WorkerJoined(worker), self.now))

    def submit(
        self,
        *,
        qos: float = 0.5,
        queries: int = 1,
        floor: float = 0.0,
        variant: str = "",
        perishable: bool = True,
    ) -> list[events.Command]:
        self._jobs += 1
        job = new_job(
            str(self._jobs),
            FAMILY,
            queries,
            self.now,
            deadline=self.now + qos,
            perishable=perishable,
            with_tensors=perishable,
            min_accuracy=floor,
            variant=variant,
        )
        return self._note(self.core.handle(job, self.now))

    def end(
        self, assignment: events.Assignment, *, fault: Fault | None = None
    ) -> list[events.Command]:
        """Let an assignment end after its expected time, and return the commands."""
        self.running.remove(assignment)
        if fault is not None:
            ended = events.AssignmentEnded(assignment.id, 0, Outcome.FAILED, fault, "crashed")
        else:
            seconds = assignment.count * assignment.query_s
            self.now += seconds
            ended = events.AssignmentEnded(
                assignment.id, assignment.count, Outcome.COMPLETED, compute_s=seconds
            )
        return self._note(self.core.handle(ended, self.now))

    def end_after(self, assignment: events.Assignment, seconds: float, compute_s: float) -> None:
        """Let an assignment end after some time, part of which its engine took."""
        self.running.remove(assignment)
        self.now += seconds
        self._note(end(self.core, assignment, self.now, compute_s=compute_s))

    def _note(self, commands: list[events.Command]) -> list[events.Command]:
        aborted = {
            each.assignment_id for each in commands if isinstance(each, events.Stop) and each.abort
        }
        self.running = [each for each in self.running if each.id not in aborted]
        self.running += [each.assignment for each in commands if isinstance(each, events.Dispatch)]
        for assignment_id in aborted:
            ended = events.AssignmentEnded(assignment_id, 0, Outcome.STOPPED)
            self._note(self.core.handle(ended, self.now))
        return commands


def variants_of(assignments: list[events.Assignment]) -> list[str]:
    return [assignment.configuration.variant for assignment in assignments]


NO_ACCURACY: dict[str, Any] = {"samples": 0}
ONLY_SMALL_IS_LOADED: dict[str, Any] = {"samples": 0, "resident": ("small",)}
CHOICES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *(
        ("the best one that meets the deadline", {}, {"qos": qos}, variant)
        for qos, variant in ((0.5, "large"), (0.15, "medium"), (0.03, "small"), (math.inf, "large"))
    ),
    ("the best one of a job without deadline", {}, {"qos": math.inf, "perishable": False}, "large"),
    *(
        ("the first margin is of the profile", {"tail": tail}, {"qos": qos}, variant)
        for tail, qos, variant in (
            *((2.0, 0.35, "medium"), (2.0, 0.42, "large")),  # which takes 0.2 s
            *((1.0, 0.28, "large"), (1.0, 0.25, "medium")),
        )
    ),
    ("the fastest one for another objective", {"objective": "latency"}, {}, "small"),
    *(
        (rule, fleet, {"qos": qos, "perishable": perishable}, variant)
        for rule, fleet, qos, variant in (
            ("the first one without accuracies", NO_ACCURACY, math.inf, "large"),
            ("the first one without accuracies", NO_ACCURACY, 20.0, "large"),
            ("the first one without accuracies", NO_ACCURACY, 0.5, "large"),
            ("the first one without accuracies", NO_ACCURACY, 0.1, "small"),
            ("not the loaded one without accuracies", ONLY_SMALL_IS_LOADED, 20.0, "large"),
            ("not the loaded one without accuracies", ONLY_SMALL_IS_LOADED, math.inf, "large"),
            ("not the loaded one without accuracies", ONLY_SMALL_IS_LOADED, 0.3, "small"),
        )
        for perishable in (True, False)
    ),
    ("the pinned one", {}, {"variant": "medium"}, "medium"),
    ("the pinned one", {}, {"variant": "small", "qos": math.inf}, "small"),
    ("no floor is reached without accuracies", NO_ACCURACY, {"floor": 0.1}, ""),
    ("the pinned one without accuracies", NO_ACCURACY, {"variant": "medium"}, "medium"),
    *(
        ("an unknown one only as the fastest", {"unknown": unknown}, {"qos": qos}, variant)
        for unknown, qos, variant in (
            (("large",), 0.5, "medium"),
            (("medium",), 0.5, "large"),
            (("medium",), 0.1, "small"),  # although medium would be in time
            (("small",), 0.5, "large"),
            (("small",), 0.02, "small"),
            (("small", "medium"), 0.1, "small"),
        )
    ),
    ("an unknown one if pinned", {"unknown": ("small",)}, {"variant": "small"}, "small"),
    (
        "an unknown one reaches no floor",
        {"unknown": ("small",), "infeasible": "reject"},
        {"qos": 0.02, "floor": 0.1},
        "",
    ),
    ("none by other samples", {"other_samples": ("large",)}, {}, "medium"),
    # Large and medium differ by 2 points, with an error of 4.
    ("none by a difference within the error", {"samples": 100}, {}, "medium"),
    ("none that is not loaded", {"resident": ("small", "medium")}, {"qos": 0.5}, "medium"),
]
"""The rule, the fleet, the work, and the variant that it gets; empty for none."""


@pytest.mark.parametrize(
    ("_rule", "fleet", "work", "variant"), CHOICES, ids=[each[0] for each in CHOICES]
)
def test_lone_work_gets_the_variant_of_the_rule(
    _rule: str, fleet: dict[str, Any], work: dict[str, Any], variant: str
) -> None:
    chooses = Fleet(**fleet)
    chooses.submit(**work)
    assert variants_of(chooses.running) == ([variant] if variant else [])


def test_a_request_waits_for_the_variant_that_its_time_pays_for_although_cores_are_idle() -> None:
    found = []
    for cores in (0, 4):
        fleet = Fleet(cores=cores)
        for _ in range(3):
            fleet.submit(qos=1.0)
        found.append(variants_of(fleet.running))
        while fleet.running:
            fleet.end(fleet.running[0])
            found[-1] += variants_of(fleet.running)
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", ["malleable", "synergai", "edf", "rr"])
def test_a_burst_gets_faster_variants_until_it_is_over(policy: str) -> None:
    fleet = Fleet(policy=policy)
    for _ in range(20):
        fleet.submit(qos=0.5)
    used = []
    while fleet.running:
        used += variants_of(fleet.running[:1])
        fleet.end(fleet.running[0])
    assert len(used) == 20
    assert fleet.now < 0.5
    assert used.count("small") > 10
    fleet.now += 2.0
    fleet.submit(qos=0.5)
    assert variants_of(fleet.running) == ["large"]


def test_requests_behind_keep_their_deadlines() -> None:
    fleet = Fleet()
    fleet.submit(qos=math.inf, variant="small")
    fleet.submit(qos=10.0)
    fleet.submit(qos=0.1)
    while fleet.running:
        first = fleet.running[0]
        if first.job_id == JobId("3"):
            assert fleet.now + first.query_s <= 0.1
        fleet.end(first)


def test_only_what_the_fastest_allowed_variant_cannot_do_is_rejected() -> None:
    fleet = Fleet(infeasible="reject")
    assert not any(isinstance(each, events.Reject) for each in fleet.submit(queries=30, qos=0.4))
    fleet = Fleet(infeasible="reject")
    commands = fleet.submit(queries=30, qos=0.4, floor=0.85, perishable=False)
    assert any(isinstance(each, events.Reject) for each in commands)


@pytest.mark.parametrize("policy", ["malleable", "synergai", "edf", "fifo"])
def test_of_idle_workers_that_are_about_as_fast_the_one_with_the_best_variant_loaded_answers(
    policy: str,
) -> None:
    fleet = Fleet(policy=policy)
    for _ in range(3):  # which show that a query takes a bit longer there than in the profile
        fleet.submit()
        fleet.end_after(fleet.running[0], 0.201, 0.2)
    fleet.add(1, resident=("small",))
    fleet.submit()
    fleet.submit()
    answering = [(each.worker_id, each.configuration.variant) for each in fleet.running]
    assert answering == [("worker-0", "large"), ("worker-1", "small")]


def test_of_idle_workers_the_fast_one_answers_although_a_slow_one_has_a_better_variant_loaded() -> (
    None
):
    fleet = Fleet()
    for _ in range(30):
        fleet.submit()
        fleet.end_after(fleet.running[0], 0.4, 0.4)
    fleet.add(1, resident=("small",))
    fleet.submit()
    assert [each.worker_id for each in fleet.running] == ["worker-1"]


def test_a_broken_variant_leaves_the_others_in_service() -> None:
    fleet = Fleet()
    fleet.submit(qos=5.0)
    fleet.end(fleet.running[0], fault=Fault.ENGINE_BROKEN)
    assert variants_of(fleet.running) == ["medium"]
    fleet.end(fleet.running[0])
    fleet.submit(qos=5.0)
    assert variants_of(fleet.running) == ["medium"]


def test_a_variant_may_be_removed_while_it_is_used() -> None:
    fleet = Fleet()
    fleet.submit(qos=5.0)
    left: dict[EngineName, tuple[Variant, ...]] = {FAMILY: (Variant(name="small"),)}
    changed = events.EnginesChanged(WorkerId("worker-0"), frozenset({FAMILY, PLAIN}), left)
    fleet.core.handle(changed, fleet.now)
    fleet.end(fleet.running[0])
    fleet.submit(qos=5.0)
    assert variants_of(fleet.running) == ["small"]


def test_a_job_mixes_the_variants_that_its_rate_needs() -> None:
    fleet = Fleet()
    fleet.submit(queries=100, qos=15.0, perishable=False)
    used: dict[str, int] = {}
    while fleet.running:
        assignment = fleet.running[0]
        variant = assignment.configuration.variant
        used[variant] = used.get(variant, 0) + assignment.count
        fleet.end(assignment)
    assert sum(used.values()) == 100
    assert fleet.now <= 15.0
    assert used["large"] >= 20
    assert used.get("small", 0) == 0


def test_a_job_over_samples_is_not_charged_the_transfer_of_requests() -> None:
    fleet = Fleet()
    for _ in range(50):
        fleet.submit(qos=60.0, variant="small")
        fleet.end_after(fleet.running[0], 0.06, compute_s=0.01)
    fleet.now += 600.0  # the requests are over
    fleet.submit(queries=20, qos=20.0, perishable=False)
    assert variants_of(fleet.running) == ["large"]


def test_jobs_that_came_before_the_workers_count() -> None:
    fleet = Fleet(0)
    for _ in range(10):
        fleet.submit(queries=100, qos=20.0, perishable=False)
    fleet.join(0)
    assert variants_of(fleet.running) == ["small"]


def test_fronts_of_any_number_of_floors_are_bounded() -> None:
    fleet = Fleet()
    for number in range(200):
        fleet.submit(floor=0.5 + number / 1000)
        fleet.end(fleet.running[0])
    [worker] = fleet.core.state.fleet.workers.values()  # its caches
    assert len(worker.fronts[FAMILY]) <= 64


def test_engines_with_variants_that_share_a_worker_are_known() -> None:
    fleet = Fleet()
    other = EngineName("other")
    variants = tuple(Variant(name=name) for name in VARIANTS)
    shared = {FAMILY: variants, other: variants}
    worker = new_worker("shared", CLASS, [FAMILY, other, PLAIN], loaded=False, variants=shared)
    assert not fleet.core.state.variants.sharing
    fleet.core.handle(events.WorkerJoined(worker), fleet.now)
    assert fleet.core.state.variants.sharing == {FAMILY, other}
    fleet.core.handle(events.WorkerLeft(worker.id), fleet.now)
    assert not fleet.core.state.variants.sharing
