"""Work items whose inputs are read or pulled while they run, and what a host dies of."""

import asyncio
from unittest.mock import AsyncMock

from synergai.domain import Fault, Outcome
from synergai.wire.work_messages import Reports
from tests.unit.worker_agent.runner.conftest import (
    DIGITS,
    FakeHost,
    FakeHosts,
    add,
    add_following,
    run_callbacks,
)
from worker_agent.ipc import RunEnded, Tally
from worker_agent.runner import Runner
from worker_agent.work_item import AssignmentReporter, Failure, InputQueue


def test_queries_of_an_item_count_with_their_share_of_a_batch(
    runner: Runner, host: FakeHost
) -> None:
    feed, work, _ = add_following(runner, 5)
    for batch in (4, 4, 4, 4, 1):
        feed.add(b"input")
        run, ended = host.runs.popitem()
        ended.on_ended(RunEnded(run, Outcome.COMPLETED, Tally(1, compute_s=2.0, batch=batch)))
    assert work.reporter.tally.compute_s == 4.0


async def test_input_that_is_pulled_later_runs_once_it_is_there(
    runner: Runner, host: FakeHost
) -> None:
    feed, _, handler = add_following(runner, 1)
    content = asyncio.get_running_loop().create_future()
    feed.add(content, alone=True)
    assert not host.runs
    content.set_result(b"one")
    assert feed.next == (b"one", True)
    await run_callbacks()
    host.end(1)
    assert handler.lines[-1][:2] == ("COMPLETED", 1)


def test_inputs_beyond_those_of_the_item_are_dropped() -> None:
    feed = InputQueue(AsyncMock(), lambda: None, 1)
    feed.receive([b"", b""], ())
    feed.remove_next()
    assert feed.next is None


def test_input_that_cannot_be_read_fails_in_its_place(runner: Runner, host: FakeHost) -> None:
    feed, _, handler = add_following(runner, 4)
    unreadable = Failure(Fault.BAD_INPUT, "no such file")
    for content in (unreadable, b"two", unreadable, unreadable):
        feed.add(content)
    assert ("input failed", 0, "no such file") in handler.lines
    host.end(1)
    failed = [line[1] for line in handler.lines if line[0] == "input failed"]
    assert (failed, handler.lines[-1][:2]) == ([0, 2, 3], ("COMPLETED", 4))
    assert runner.is_idle


def test_host_that_dies_at_inputs_names_the_first_as_suspect(
    runner: Runner, host: FakeHost
) -> None:
    feed, _, handler = add_following(runner, 3)
    for request in (b"one", b"two", b"three"):
        feed.add(request)
    host.end(1)
    for run in (2, 3):
        host.end(run, Outcome.FAILED, 0, Fault.HOST_DIED)
    assert handler.lines[-1][::3] == ("FAILED", "DIED_AT_INPUT")
    assert handler.lines[-1][1] == 1


def test_crash_of_a_variant_is_reported_although_another_run_failed_first(
    runner: Runner, host: FakeHost
) -> None:
    _, handler = add(runner, queries=2)
    host.end(1, Outcome.FAILED, 0, Fault.HOST_DIED)
    host.end(2, Outcome.FAILED, 0, Fault.CRASHED)
    assert handler.lines[-1][::3] == ("FAILED", "CRASHED")


async def test_suspect_runs_alone_and_fails_alone_if_the_host_dies_again(
    runner: Runner, hosts: FakeHosts, host: FakeHost
) -> None:
    feed, _, handler = add_following(runner, 4)
    feed.add(b"before")
    feed.add(b"suspect", alone=True)
    feed.add(b"after")
    assert list(host.runs) == [1]
    host.end(1)
    assert list(host.runs) == [2]
    host.is_closed = True
    host.end(2, Outcome.FAILED, 0, Fault.HOST_DIED)
    assert ("input failed", 1, "the engine failed at this input: HOST_DIED") in handler.lines
    other = await hosts.loaded(DIGITS)
    assert list(other.runs) == [1]
    feed.add(b"last")
    assert list(other.runs) == [1, 2]
    other.end(1)
    other.end(2)
    assert handler.lines[-1][:2] == ("COMPLETED", 4)


async def test_suspect_waits_until_nothing_else_runs_on_its_host(
    runner: Runner, host: FakeHost
) -> None:
    add(runner, queries=1)
    feed, *_ = add_following(runner, 1)
    feed.add(b"suspect", alone=True)
    assert list(host.runs) == [1]
    host.end(1)
    assert list(host.runs) == [2]


def test_failed_input_is_reported_with_the_progress_that_counts_it() -> None:
    reports: list[Reports] = []
    reporter = AssignmentReporter(1, reports.append, lambda _: None)
    reporter.on_input_failed(1, Failure(Fault.BAD_INPUT, "no image"))
    for done in (1, 2):
        reporter.on_progress(Tally(done), [b""])
    failed = [[each.query for each in sent.progress[0][0].failures] for sent in reports]
    assert failed == [[], [1]]


def test_stopped_item_reports_what_is_done_and_takes_no_further_inputs(
    runner: Runner, host: FakeHost
) -> None:
    feed, work, handler = add_following(runner, 9)
    for request in (b"one", b"two"):
        feed.add(request)
    host.end(1)
    runner.stop(work)
    host.end(2, Outcome.STOPPED, 0)
    feed.add(b"three")
    assert handler.lines[-1][:2] == ("STOPPED", 1)
    assert runner.is_idle
    assert not host.runs


def test_item_that_waits_for_inputs_reports_what_is_done(runner: Runner, host: FakeHost) -> None:
    """The gateway sends further inputs only once results have arrived."""
    feed, _, handler = add_following(runner, 9)
    for request in (b"one", b"two", b"three"):
        feed.add(request)
    for run in (1, 2, 3):
        host.end(run)
    assert handler.lines[-1] == (
        "progressed",
        3,
        [b"response 1", b"response 2", b"response 3"],
    )
