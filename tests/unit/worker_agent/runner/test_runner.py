"""Order and reports of work items on fake hosts."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from synergai.domain import (
    BatchTimes,
    Configuration,
    Engine,
    EngineName,
    Fault,
    Outcome,
    Session,
    TensorSpec,
    Variant,
)
from synergai.errors import EngineUnusable, Unavailable
from synergai.wire.work_messages import Reports
from tests.clocks import FakeClock
from tests.engines import new_engine
from tests.pulls import no_pulls
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.ipc.frames import RunEnded, Tally
from worker_agent.runner.inputs import Failure, InputQueue
from worker_agent.runner.runner import Runner
from worker_agent.runner.work_item import (
    REPORT_BYTES,
    REPORT_INTERVAL_S,
    TRANSITIONS,
    AssignmentReporter,
    WorkItem,
    WorkState,
)

DIGITS = Session(EngineName("digits"), Configuration(1))
DIGITS_2 = Session(EngineName("digits"), Configuration(2))
BROKEN = Session(EngineName("broken"), Configuration(1))
MISSING = Session(EngineName("missing"), Configuration(1))
REMOVED = Session(EngineName("digits"), Configuration(1, variant="removed"))
SPECS = (TensorSpec("x", "FP32", (1,)),)


def engine(name: str, fault: str = "") -> Engine:
    variants = (Variant(name="l"), Variant(name="s"))
    return new_engine(name, SPECS, (TensorSpec("y", "FP32", (1,)),), fault=fault, variants=variants)


@dataclass(frozen=True)
class FakeRun:
    """A run in flight: a query, or a range of samples with progress."""

    on_ended: Callable[[RunEnded], None]
    on_progress: Callable[[Tally], None] | None = None
    first: int = 0
    count: int = 1
    variant: str = ""
    batch: int = 1


@dataclass
class FakeHost:
    """Keeps runs in flight until the test ends them."""

    room: int = 8
    is_closed: bool = False
    runs: dict[int, FakeRun] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    last: int = 0

    def has_room(self, _size: int) -> bool:
        return len(self.runs) < self.room

    def run_query(
        self,
        request: bytes | memoryview,  # noqa: ARG002 - the protocol's, as below
        on_ended: Callable[[RunEnded], None],
        batch_times: BatchTimes | None = None,  # noqa: ARG002 - as in the protocol
        due: float = math.inf,  # noqa: ARG002 - as in the protocol
        variant: str = "",
    ) -> int:
        self.last += 1
        self.runs[self.last] = FakeRun(on_ended, variant=variant)
        return self.last

    def run_samples(
        self,
        first: int,
        count: int,
        on_progress: Callable[[Tally], None],
        on_ended: Callable[[RunEnded], None],
        job: str = "",  # noqa: ARG002 - the protocol's
        batch: int = 1,
        variant: str = "",
    ) -> int:
        self.last += 1
        self.runs[self.last] = FakeRun(on_ended, on_progress, first, count, variant, batch)
        return self.last

    def stop_run(self, run_id: int, *, abort: bool = False) -> None:
        self.stopped.append(run_id)
        if abort:
            self.aborted.append(run_id)

    def end(
        self,
        run: int,
        outcome: Outcome = Outcome.COMPLETED,
        done: int = 1,
        fault: Fault = Fault.UNSPECIFIED,
    ) -> None:
        on_ended = self.runs.pop(run).on_ended
        tally = Tally(done, compute_s=float(done))
        response = b"response %d" % run if outcome is Outcome.COMPLETED else b""
        on_ended(RunEnded(run, outcome, tally, response, fault, fault.name))

    def progress(self, run: int, done: int) -> None:
        on_progress = self.runs[run].on_progress
        assert on_progress is not None
        on_progress(Tally(done))


class FakeHosts:
    def __init__(self) -> None:
        self.hosts: dict[Session, FakeHost] = {}
        self.loads: dict[Session, asyncio.Future[FakeHost]] = {}

    def get_resident(self, session: Session) -> FakeHost | None:
        host = self.hosts.get(session)
        return None if host is None or host.is_closed else host

    def load(self, session: Session) -> asyncio.Future[FakeHost]:
        self.loads[session] = asyncio.get_running_loop().create_future()
        return self.loads[session]

    async def loaded(self, session: Session) -> FakeHost:
        host = self.hosts[session] = FakeHost()
        self.loads.pop(session).set_result(host)
        await run_callbacks()
        return host

    async def failed(self, session: Session, error: Exception) -> None:
        self.loads.pop(session).set_exception(error)
        await run_callbacks()


async def run_callbacks() -> None:
    """Run pending callbacks of the event loop."""
    await asyncio.sleep(0)


class RecordingHandler(AssignmentReporter):
    """Records the reports."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def on_started(self, setup_s: float) -> None:
        self.lines.append(("started", setup_s))

    def on_input_failed(self, query: int, failure: Failure) -> None:
        self.lines.append(("input failed", query, failure.detail))

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        self.lines.append(("progressed", tally.done, list(responses)))

    def on_ended(
        self,
        outcome: Outcome,
        tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        self.lines.append((outcome.name, tally.done, list(responses), fault.name))
        self.detail = detail


@pytest.fixture
def hosts() -> FakeHosts:
    return FakeHosts()


@pytest.fixture
def host(hosts: FakeHosts) -> FakeHost:
    """The resident host of `DIGITS`."""
    hosts.hosts[DIGITS] = FakeHost()
    return hosts.hosts[DIGITS]


@pytest.fixture
def engines() -> dict[EngineName, Engine]:
    return {each.name: each for each in (engine("digits"), engine("broken", "truncated"))}


@pytest.fixture
def runner(hosts: FakeHosts, engines: dict[EngineName, Engine], clock: FakeClock) -> Runner:
    return Runner(cast("PowerModeHosts", hosts), engines, clock)


def add(
    runner: Runner,
    session: Session = DIGITS,
    *,
    queries: int = 0,
    count: int = 10,
    first: int = 0,
    concurrent: bool = False,
) -> tuple[WorkItem, RecordingHandler]:
    """Add a range of `count` samples or, if it has `queries`, as many requests."""
    handler = RecordingHandler()
    work = WorkItem(
        session=session,
        handler=handler,
        requests=[b"request"] * queries,
        first=first,
        count=queries or count,
        concurrent=concurrent,
    )
    runner.add(work)
    return work, handler


def test_queries_of_an_item_count_with_their_share_of_a_batch(
    runner: Runner, host: FakeHost
) -> None:
    feed, work, _ = add_following(runner, 5)
    for batch in (4, 4, 4, 4, 1):
        feed.add(b"input")
        run, ended = host.runs.popitem()
        ended.on_ended(RunEnded(run, Outcome.COMPLETED, Tally(1, compute_s=2.0, batch=batch)))
    assert work.reporter.tally.compute_s == 4.0


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


def test_resident_variants_of_an_engine_are_fed_without_waiting(
    runner: Runner, hosts: FakeHosts
) -> None:
    shared = FakeHost()
    large, small = (Session(EngineName("digits"), Configuration(1, variant=v)) for v in ("l", "s"))
    hosts.hosts |= {large: shared, small: shared}
    for session in (large, small, large):
        add(runner, session, queries=1)
    assert [run.variant for run in shared.runs.values()] == ["l", "s", "l"]


async def test_variant_that_was_unloaded_meanwhile_is_loaded_again(
    runner: Runner, hosts: FakeHosts
) -> None:
    shared = FakeHost()
    large, small = (Session(EngineName("digits"), Configuration(1, variant=v)) for v in ("l", "s"))
    hosts.hosts |= {large: shared, small: shared}
    add(runner, large, queries=1)
    shared.end(1)
    del hosts.hosts[large]  # its host goes on with the other variant
    add(runner, large, queries=1)
    assert not shared.runs
    assert set(hosts.loads) == {large}


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


def add_following(
    runner: Runner, count: int, session: Session = DIGITS
) -> tuple[InputQueue, WorkItem, RecordingHandler]:
    handler, feed = RecordingHandler(), InputQueue(no_pulls, runner.resume, count)
    work = WorkItem(session=session, handler=handler, count=count, inputs=feed)
    runner.add(work)
    return feed, work, handler


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


@pytest.fixture
def other(hosts: FakeHosts) -> FakeHost:
    """The resident host of `DIGITS_2`; run ids are unique among hosts."""
    hosts.hosts[DIGITS_2] = FakeHost(last=100)
    return hosts.hosts[DIGITS_2]


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
