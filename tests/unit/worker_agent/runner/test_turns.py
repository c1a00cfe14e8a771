"""Which work item runs next: concurrent requests, and work that waits for a load."""

import pytest

from synergai.domain import Configuration, Engine, EngineName, Session
from tests.clocks import FakeClock
from tests.unit.worker_agent.runner.conftest import (
    DIGITS,
    DIGITS_2,
    FakeHost,
    FakeHosts,
    add,
    add_following,
    engine,
)
from worker_agent.runner import Runner


async def test_hosts_take_turns_during_a_load_that_nothing_waits_for(
    runner: Runner, hosts: FakeHosts, host: FakeHost
) -> None:
    hosts.hosts[DIGITS_2] = other = FakeHost()
    needless, _ = add(runner, Session(EngineName("digits"), Configuration(4)))
    runner.stop(needless)
    add(runner, DIGITS)
    add(runner, DIGITS_2)
    assert host.runs
    assert not other.runs
    host.end(1, done=10)
    assert other.runs


async def test_concurrent_request_overtakes_what_waits_for_a_load(
    runner: Runner, hosts: FakeHosts, host: FakeHost, clock: FakeClock
) -> None:
    _, waiting = add(runner, DIGITS_2)
    _, ranged = add(runner, DIGITS)
    _, single = add(runner, DIGITS, queries=1, concurrent=True)
    assert len(host.runs) == 1
    host.end(1)
    assert [handler.lines != [] for handler in (waiting, ranged, single)] == [False, False, True]
    clock.now += 2.0
    other = await hosts.loaded(DIGITS_2)
    assert len(other.runs) == 1
    assert waiting.lines == [("started", 2.0)]
    assert not host.runs
    other.end(1, done=10)
    assert len(host.runs) == 1


def test_concurrent_request_fails_if_its_engine_broke_while_it_waited(
    runner: Runner, engines: dict[EngineName, Engine], other: FakeHost
) -> None:
    other.room = 1
    _, handler = [add(runner, DIGITS_2, queries=1, concurrent=True) for _ in range(2)][-1]
    engines[DIGITS_2.engine] = engine("digits", "truncated")
    other.end(101)
    assert handler.lines == [("FAILED", 0, [], "ENGINE_BROKEN")]
    assert runner.is_idle


async def test_concurrent_request_whose_session_is_gone_is_queued(
    runner: Runner, hosts: FakeHosts, host: FakeHost
) -> None:
    add(runner, DIGITS)
    _, handler = add(runner, DIGITS_2, queries=1, concurrent=True)
    assert not hosts.loads
    host.end(1, done=10)
    (await hosts.loaded(DIGITS_2)).end(1)
    assert handler.lines[-1][:2] == ("COMPLETED", 1)


async def test_switch_of_the_power_mode_waits_for_concurrent_requests(
    runner: Runner, hosts: FakeHosts, host: FakeHost, other: FakeHost
) -> None:
    add(runner, DIGITS)
    add(runner, DIGITS_2, queries=1, concurrent=True)
    add(runner, Session(EngineName("digits"), Configuration(1, power_mode="low")))
    host.end(1, done=10)
    assert not hosts.loads
    other.end(101)
    assert len(hosts.loads) == 1


async def test_concurrent_request_waits_for_a_switch_of_the_power_mode(
    runner: Runner, hosts: FakeHosts, other: FakeHost
) -> None:
    add(runner, Session(EngineName("digits"), Configuration(1, power_mode="low")))
    assert len(hosts.loads) == 1
    add(runner, DIGITS_2, queries=1, concurrent=True)
    assert not other.runs


def test_concurrent_request_does_not_wait_for_a_suspect_on_another_host(
    runner: Runner, host: FakeHost, other: FakeHost
) -> None:
    feed, *_ = add_following(runner, 1)
    feed.add(b"suspect", alone=True)
    add(runner, DIGITS_2, queries=1, concurrent=True)
    assert host.runs
    assert other.runs


@pytest.mark.usefixtures("host")
async def test_items_that_wait_for_a_load_do_not_search_the_queue(
    runner: Runner, hosts: FakeHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(runner, DIGITS_2)
    looked_up: list[Session] = []
    monkeypatch.setattr(hosts, "get_resident", looked_up.append)  # nothing is resident
    third = Session(EngineName("digits"), Configuration(3))
    for _ in range(100):
        add(runner, third, queries=1)
    assert len(looked_up) == 100


async def test_head_of_the_queue_runs_during_the_load_of_a_stopped_item(
    runner: Runner, hosts: FakeHosts, host: FakeHost
) -> None:
    stopped, _ = add(runner, DIGITS_2)
    runner.stop(stopped)
    add(runner, DIGITS)
    _, again = add(runner, DIGITS_2)
    assert len(host.runs) == 1
    host.end(1, done=10)
    assert again.lines == []
    assert len(hosts.loads) == 1
    other = await hosts.loaded(DIGITS_2)
    assert len(other.runs) == 1
    assert again.lines == [("started", 0.0)]
