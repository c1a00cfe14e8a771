"""A runner of work items on fake hosts."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from msgspec.structs import replace

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
from tests.clocks import FakeClock
from tests.engines import new_engine
from tests.pulls import no_pulls
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.ipc import RunEnded, Tally
from worker_agent.runner import Runner
from worker_agent.work_item import AssignmentReporter, Failure, InputQueue, WorkItem

DIGITS = Session(EngineName("digits"), Configuration(1))

DIGITS_2 = Session(EngineName("digits"), Configuration(2))

BROKEN = Session(EngineName("broken"), Configuration(1))
LARGE = Session(EngineName("large"), Configuration(1))

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
    batch_times: BatchTimes | None = None
    due: float = math.inf


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
        batch_times: BatchTimes | None = None,
        due: float = math.inf,
        variant: str = "",
    ) -> int:
        self.last += 1
        self.runs[self.last] = FakeRun(on_ended, variant=variant, batch_times=batch_times, due=due)
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
    large = replace(engine("large", "it used 300 MB"), too_large=True)
    found = (engine("digits"), engine("broken", "truncated"), large)
    return {each.name: each for each in found}


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


def add_following(
    runner: Runner, count: int, session: Session = DIGITS
) -> tuple[InputQueue, WorkItem, RecordingHandler]:
    handler, feed = RecordingHandler(), InputQueue(no_pulls, runner.resume, count)
    work = WorkItem(session=session, handler=handler, count=count, inputs=feed)
    runner.add(work)
    return feed, work, handler


@pytest.fixture
def other(hosts: FakeHosts) -> FakeHost:
    """The resident host of `DIGITS_2`; run ids are unique among hosts."""
    hosts.hosts[DIGITS_2] = FakeHost(last=100)
    return hosts.hosts[DIGITS_2]
