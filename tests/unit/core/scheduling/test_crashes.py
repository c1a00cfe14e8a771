"""Variants that crash their engine host while they compute."""

import pytest

from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    Command,
    ConfigurationsUnusable,
    EnginesChanged,
    Fail,
    Pause,
    Revoke,
    TimePassed,
)
from synergai.core.scheduling.rules.failures import FIRST_CRASH_PAUSE_S
from synergai.domain import Configuration, Fault, Outcome, Session, Variant, WorkerId
from tests.unit.core.scheduling.test_variants import FAMILY, VARIANTS, Fleet, variants_of


def session(variant: str) -> Session:
    return Session(FAMILY, Configuration(variant=variant))


def places(assignments: list[Assignment]) -> list[tuple[str, str]]:
    return [(each.worker_id, each.configuration.variant) for each in assignments]


def wait(fleet: Fleet, seconds: float) -> list[Command]:
    fleet.now += seconds
    return fleet.core.handle(TimePassed(), fleet.now)


def crash(fleet: Fleet) -> list[Command]:
    """Let the first assignment that runs crash its engine host, and return the commands."""
    return fleet.end(fleet.running[0], fault=Fault.CRASHED)


def pauses_after_crash(fleet: Fleet) -> list[Pause]:
    """Let what runs crash; return the pauses that follow."""
    return [each for each in crash(fleet) if isinstance(each, Pause)]


def test_a_request_that_crashed_a_variant_runs_in_another_one_on_the_only_worker() -> None:
    fleet = Fleet()
    fleet.submit(qos=30.0)
    assert variants_of(fleet.running) == ["large"]
    commands = crash(fleet)
    assert Pause(WorkerId("worker-0"), session("large"), FIRST_CRASH_PAUSE_S) in commands
    assert variants_of(fleet.running) == ["medium"]


def test_a_pinned_request_that_crashed_its_variant_runs_on_another_worker() -> None:
    fleet = Fleet(workers=2)
    fleet.submit(qos=30.0, variant="medium")
    [(first, _)] = places(fleet.running)
    crash(fleet)
    [(second, variant)] = places(fleet.running)
    assert variant == "medium"
    assert second != first


def crashed() -> Fleet:
    """Return a fleet whose best variant has crashed once, and whose query another one answered."""
    fleet = Fleet()
    fleet.submit(qos=60.0)
    crash(fleet)
    fleet.end(fleet.running[0])
    return fleet


def test_other_assignments_of_the_variant_are_taken_back() -> None:
    fleet = Fleet()
    fleet.submit(qos=60.0, variant="small")
    fleet.submit(qos=60.0, variant="small")
    fleet.submit(qos=60.0, variant="medium")
    first, second, third = fleet.running
    commands = crash(fleet)
    assert [each for each in commands if isinstance(each, Revoke)] == [
        Revoke(second.id, second.worker_id)
    ]
    fleet.running.remove(second)
    assert fleet.running == [third]  # what is pinned to it waits for its pause to be over
    fleet.end(third)
    fleet.running += [
        each.assignment for each in wait(fleet, FIRST_CRASH_PAUSE_S) if hasattr(each, "assignment")
    ]
    assert [each.job_id for each in fleet.running] == [first.job_id, second.job_id]


def test_a_variant_is_used_again_after_a_pause_that_doubles_with_each_crash() -> None:
    fleet = Fleet()
    pauses = []
    for _ in range(3):
        fleet.submit(qos=60.0)
        assert variants_of(fleet.running) == ["large"]
        pauses += [each.pause_s for each in pauses_after_crash(fleet)]
        assert variants_of(fleet.running) == ["medium"]
        fleet.end(fleet.running[0])
        assert fleet.core.wakeup() is not None
        wait(fleet, pauses[-1])
        assert not fleet.core.paused(WorkerId("worker-0"))
    assert pauses == [FIRST_CRASH_PAUSE_S, 2 * FIRST_CRASH_PAUSE_S, 4 * FIRST_CRASH_PAUSE_S]


def test_a_completed_query_makes_the_next_pause_short_again() -> None:
    fleet = crashed()
    wait(fleet, FIRST_CRASH_PAUSE_S)
    fleet.submit(qos=60.0)
    fleet.end(fleet.running[0])
    fleet.submit(qos=60.0)
    [pause] = pauses_after_crash(fleet)
    assert (pause.session, pause.pause_s) == (session("large"), FIRST_CRASH_PAUSE_S)


def test_the_last_variant_of_a_worker_never_pauses() -> None:
    fleet = Fleet()
    unusable = frozenset(Configuration(variant=name) for name in ("large", "medium"))
    fleet.core.handle(ConfigurationsUnusable(WorkerId("worker-0"), FAMILY, unusable), fleet.now)
    fleet.submit(qos=60.0)
    assert not pauses_after_crash(fleet)
    assert variants_of(fleet.running) == ["small"]


def test_a_pause_ends_if_no_other_variant_is_left() -> None:
    fleet = crashed()
    others = frozenset(Configuration(variant=name) for name in ("medium", "small"))
    fleet.core.handle(ConfigurationsUnusable(WorkerId("worker-0"), FAMILY, others), fleet.now)
    fleet.submit(qos=60.0)
    assert variants_of(fleet.running) == ["large"]


def replaced_files() -> EnginesChanged:
    """Return the report that all variants have other files now."""
    variants = tuple(Variant(name=name, digest="b" * 64) for name in VARIANTS)
    return EnginesChanged(WorkerId("worker-0"), frozenset({FAMILY}), {FAMILY: variants})


@pytest.mark.parametrize("leaves", [True, False], ids=["it left", "its files were replaced"])
def test_crashes_on_a_worker_are_forgotten_when(*, leaves: bool) -> None:
    fleet = crashed()
    if leaves:
        fleet.join(0)
    else:
        fleet.core.handle(replaced_files(), fleet.now)
    fleet.submit(qos=60.0)
    assert variants_of(fleet.running) == ["large"]
    [pause] = pauses_after_crash(fleet)
    assert pause.pause_s == FIRST_CRASH_PAUSE_S


def test_a_variant_that_was_broken_is_used_again_with_another_file() -> None:
    fleet = Fleet()
    fleet.submit(qos=60.0)
    fleet.end(fleet.running[0], fault=Fault.ENGINE_BROKEN)
    fleet.end(fleet.running[0])
    fleet.core.handle(replaced_files(), fleet.now)
    fleet.submit(qos=60.0)
    assert variants_of(fleet.running) == ["large"]


def test_a_variant_that_breaks_while_the_others_pause_leaves_these() -> None:
    fleet = Fleet()
    fleet.submit(qos=60.0)
    crash(fleet)
    crash(fleet)
    assert variants_of(fleet.running) == ["small"]
    fleet.end(fleet.running[0], fault=Fault.ENGINE_BROKEN)
    assert variants_of(fleet.running) == ["large"]


def test_a_query_that_crashes_every_variant_fails() -> None:
    fleet = Fleet()
    fleet.submit(qos=60.0)
    commands = []
    while fleet.running:
        commands = crash(fleet)
    assert [each.fault for each in commands if isinstance(each, Fail)] == [Fault.CRASHED]


def test_a_job_continues_in_another_variant_after_what_it_has_done() -> None:
    fleet = Fleet()
    fleet.submit(qos=1e6, queries=50, perishable=False)
    [first] = fleet.running
    fleet.running.clear()
    ended = AssignmentEnded(first.id, 20, Outcome.FAILED, Fault.CRASHED, "crashed", compute_s=4.0)
    fleet._note(fleet.core.handle(ended, fleet.now + 4.0))
    [second] = fleet.running
    assert second.first == 20
    assert second.configuration.variant != first.configuration.variant


def test_a_crash_at_an_input_that_is_excused_lets_the_variant_pause_as_well() -> None:
    fleet = Fleet()
    fleet.submit(qos=1e6, queries=50, perishable=False)
    [first] = fleet.running
    fleet.running.clear()
    ended = AssignmentEnded(first.id, 1, Outcome.STOPPED, Fault.CRASHED, "crashed", compute_s=0.2)
    commands = fleet._note(fleet.core.handle(ended, fleet.now + 0.2))
    assert any(isinstance(each, Pause) for each in commands)
    assert variants_of(fleet.running) != variants_of([first])
