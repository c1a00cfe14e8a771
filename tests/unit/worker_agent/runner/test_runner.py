"""Order and reports of work items on fake hosts."""

from typing import cast

import pytest

from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import EngineUnusable, Unavailable
from tests.clocks import FakeClock
from tests.unit.worker_agent.runner.conftest import (
    BROKEN,
    DIGITS,
    DIGITS_2,
    LARGE,
    MISSING,
    REMOVED,
    FakeHost,
    FakeHosts,
    RecordingHandler,
    add,
    engine,
)
from worker_agent.hosts.memory import TooLarge
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.ipc import RunEnded, Tally
from worker_agent.runner import Runner
from worker_agent.work_item import REPORT_BYTES, REPORT_INTERVAL_S, TRANSITIONS, WorkItem, WorkState


def test_range_runs_and_ends(runner: Runner, host: FakeHost) -> None:
    _, handler = add(runner, first=5)
    assert (host.runs[1].first, host.runs[1].count) == (5, 10)
    host.progress(1, 4)
    host.end(1, done=10)
    assert handler.lines == [
        ("started", 0.0),
        ("progressed", 4, []),
        ("COMPLETED", 10, [], "UNSPECIFIED"),
    ]
    assert runner.is_idle


LARGE_VARIANT, SMALL_VARIANT = (
    Session(EngineName("digits"), Configuration(1, variant=variant)) for variant in ("l", "s")
)


@pytest.fixture
def shared(hosts: FakeHosts) -> FakeHost:
    """The host of two resident variants."""
    host = FakeHost()
    hosts.hosts |= {LARGE_VARIANT: host, SMALL_VARIANT: host}
    return host


def test_resident_variants_of_an_engine_are_fed_without_waiting(
    runner: Runner, shared: FakeHost
) -> None:
    for session in (LARGE_VARIANT, SMALL_VARIANT, LARGE_VARIANT):
        add(runner, session, queries=1)
    assert [run.variant for run in shared.runs.values()] == ["l", "s", "l"]


async def test_variant_that_was_unloaded_meanwhile_is_loaded_again(
    runner: Runner, hosts: FakeHosts, shared: FakeHost
) -> None:
    add(runner, LARGE_VARIANT, queries=1)
    shared.end(1)
    del hosts.hosts[LARGE_VARIANT]  # its host goes on with the other variant
    add(runner, LARGE_VARIANT, queries=1)
    assert not shared.runs
    assert set(hosts.loads) == {LARGE_VARIANT}


def test_states_of_a_work_item(runner: Runner, host: FakeHost) -> None:
    host.room = 1
    first, _ = add(runner, queries=2)
    second, _ = add(runner, queries=1)
    assert [first.state, second.state] == [WorkState.FEEDING, WorkState.QUEUED]
    host.end(1)
    assert [first.state, second.state] == [WorkState.DRAINING, WorkState.QUEUED]
    host.end(2)
    assert [first.state, second.state] == [WorkState.ENDED, WorkState.DRAINING]
    runner.stop(second)
    assert [first.state, second.state] == [WorkState.ENDED, WorkState.DRAINING]
    host.end(3, Outcome.STOPPED)
    assert [first.state, second.state] == [WorkState.ENDED, WorkState.ENDED]


@pytest.mark.parametrize("before", WorkState)
@pytest.mark.parametrize("after", WorkState)
def test_a_work_item_enters_no_state_that_does_not_follow(
    before: WorkState, after: WorkState
) -> None:
    item = WorkItem(session=DIGITS, handler=RecordingHandler())
    item.state = before
    if after in TRANSITIONS[before]:
        item.enter(after)
        assert item.state is after
    else:
        with pytest.raises(RuntimeError, match=f"{before.name} before {after.name}"):
            item.enter(after)


def test_single_query_on_a_resident_engine_reports_only_its_end(
    runner: Runner, host: FakeHost
) -> None:
    _, handler = add(runner, queries=1)
    host.end(1)
    assert handler.lines == [("COMPLETED", 1, [b"response 1"], "UNSPECIFIED")]


async def test_load_for_a_query_that_was_stopped_is_the_setup_of_the_next_one(
    runner: Runner, hosts: FakeHosts, clock: FakeClock
) -> None:
    expired, _ = add(runner, queries=1)
    runner.stop(expired, abort=True)
    _, handler = add(runner, queries=1)
    clock.now += 2.5
    host = await hosts.loaded(DIGITS)
    host.end(1)
    assert handler.lines[0] == ("started", 2.5)


def test_second_work_starts_only_when_the_first_has_ended(runner: Runner, host: FakeHost) -> None:
    add(runner)
    _, second = add(runner)
    assert second.lines == []
    host.end(1, done=10)
    assert second.lines == [("started", 0.0)]


def test_responses_are_reported_at_intervals_exactly_once(
    runner: Runner, host: FakeHost, clock: FakeClock
) -> None:
    _, handler = add(runner, queries=3)
    host.end(1)
    clock.now += 2 * REPORT_INTERVAL_S
    host.end(2)
    host.end(3)
    assert handler.lines == [
        ("started", 0.0),
        ("progressed", 2, [b"response 1", b"response 2"]),
        ("COMPLETED", 3, [b"response 3"], "UNSPECIFIED"),
    ]


def test_large_responses_do_not_wait_for_the_interval(runner: Runner, host: FakeHost) -> None:
    _, handler = add(runner, queries=2)
    on_ended = host.runs.pop(1).on_ended
    on_ended(RunEnded(1, Outcome.COMPLETED, Tally(1), bytes(REPORT_BYTES)))
    assert handler.lines[-1][:2] == ("progressed", 1)


def test_responses_are_split_over_reports_and_an_oversized_one_fails(
    hosts: FakeHosts, host: FakeHost, clock: FakeClock
) -> None:
    engines = {EngineName("digits"): engine("digits")}
    _, handler = add(
        Runner(cast("PowerModeHosts", hosts), engines, clock, max_response_bytes=10), queries=3
    )
    for run, size in ((1, 6), (2, 6), (3, 11)):
        on_ended = host.runs.pop(run).on_ended
        on_ended(RunEnded(run, Outcome.COMPLETED, Tally(1), bytes(size)))
    assert handler.lines[1:] == [
        ("progressed", 1, [bytes(6)]),
        ("FAILED", 2, [bytes(6)], "RESPONSE_TOO_LARGE"),
    ]
    assert handler.detail == "the response has 11 bytes; the limit is 10"


async def test_stop_while_loading_ends_the_work_and_not_the_load(
    runner: Runner, hosts: FakeHosts
) -> None:
    work, handler = add(runner)
    runner.stop(work)
    assert handler.lines == [("STOPPED", 0, [], "UNSPECIFIED")]
    _, second = add(runner)
    host = await hosts.loaded(DIGITS)
    host.end(1, done=10)
    assert second.lines[-1][0] == "COMPLETED"


def test_failed_query_stops_the_rest_of_its_work(runner: Runner, host: FakeHost) -> None:
    _, handler = add(runner, queries=3)
    host.end(1)
    host.end(2, Outcome.FAILED, fault=Fault.BAD_INPUT)
    assert host.stopped == [3]
    host.end(3)
    assert handler.lines[-1] == ("FAILED", 1, [b"response 1"], "BAD_INPUT")


def test_first_failure_of_queries_is_that_of_their_work(runner: Runner, host: FakeHost) -> None:
    work, handler = add(runner, queries=3)
    host.end(1, Outcome.FAILED, fault=Fault.BAD_INPUT)
    host.end(2, Outcome.FAILED, fault=Fault.HOST_DIED)
    host.end(3)
    ended = handler.lines[-1]
    assert (ended[0], ended[-1]) == ("FAILED", "BAD_INPUT")
    runner.stop(work)
    assert handler.lines[-1] is ended, "work ends once"


@pytest.mark.parametrize(
    ("session", "fault"),
    [
        (MISSING, "UNKNOWN_ENGINE"),
        (BROKEN, "ENGINE_BROKEN"),
        (LARGE, "OUT_OF_MEMORY"),
        (REMOVED, "CONFIGURATION_UNUSABLE"),
    ],
)
def test_work_for_an_engine_that_cannot_run_fails_at_once(
    runner: Runner, host: FakeHost, session: Session, fault: str
) -> None:
    add(runner)
    _, handler = add(runner, session)
    assert handler.lines == [("FAILED", 0, [], fault)]
    assert len(host.runs) == 1


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (EngineUnusable("truncated"), "ENGINE_BROKEN"),
        (TooLarge("it used 300 MB"), "OUT_OF_MEMORY"),
        (Unavailable("it died"), "HOST_DIED"),
        (OSError("no memory"), "HOST_DIED"),
    ],
)
async def test_failed_load_fails_its_work_and_the_next_runs(
    runner: Runner, hosts: FakeHosts, error: Exception, fault: str
) -> None:
    _, handler = add(runner)
    _, second = add(runner, DIGITS_2)
    await hosts.failed(DIGITS, error)
    assert handler.lines == [("FAILED", 0, [], fault)]
    assert "memory" not in handler.detail
    host = await hosts.loaded(DIGITS_2)
    host.end(1, done=10)
    assert second.lines[-1][0] == "COMPLETED"


async def test_dead_host_fails_its_work_and_is_loaded_again(
    runner: Runner, hosts: FakeHosts, host: FakeHost
) -> None:
    _, first = add(runner)
    _, second = add(runner, queries=1)
    host.progress(1, 4)
    host.is_closed = True
    host.end(1, Outcome.FAILED, done=0, fault=Fault.HOST_DIED)
    host.end(2, Outcome.FAILED, done=0, fault=Fault.HOST_DIED)
    assert first.lines[-1] == ("FAILED", 4, [], "HOST_DIED")
    assert second.lines[-1] == ("FAILED", 0, [], "HOST_DIED")
    _, third = add(runner)
    again = await hosts.loaded(DIGITS)
    again.end(1, done=10)
    assert third.lines[-1][0] == "COMPLETED"


def test_abandoned_work_is_stopped_without_a_report(runner: Runner, host: FakeHost) -> None:
    _, running = add(runner)
    _, waiting = add(runner, DIGITS_2)
    before = [list(running.lines), list(waiting.lines)]
    runner.abandon_all()
    assert host.aborted == [1]
    host.end(1, Outcome.STOPPED, done=3)
    assert [running.lines, waiting.lines] == before
    assert runner.is_idle


def test_idle_callback(hosts: FakeHosts, host: FakeHost, clock: FakeClock) -> None:
    calls: list[bool] = []
    engines = {EngineName("digits"): engine("digits")}
    busy = Runner(cast("PowerModeHosts", hosts), engines, clock, lambda: calls.append(busy.is_idle))
    add(busy)
    add(busy)
    host.end(1, done=10)
    assert calls == []
    host.end(2, done=10)
    assert calls == [True]
