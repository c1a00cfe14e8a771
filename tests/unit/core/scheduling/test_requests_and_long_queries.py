"""Short requests during queries of up to 10 s, with the gateway's check of deadlines."""

import itertools
import math
from collections import deque

import pytest

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.rules.interleaving import QUEUED_SHARE
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import AssignmentId, EngineName, JobId, Outcome, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import make_core, new_entry, new_job, new_request, new_worker

SHORT, LONG = EngineName("short"), EngineName("long")
SHORT_S = 0.01
ABORT_S = 0.01
CLASS = WorkerClass("box")
LONG_QUERIES_S = (0.1, 1.0, 10.0)
LONG_REQUESTS = 32
"""So many keep the worker busy during a trial, even the shortest of them."""
ARRIVALS = (None, 0.0, 1.5 * SHORT_S)
"""Seconds between the arrivals of short requests; see `Trial.met`."""


class Box:
    """A core, a worker that runs assignments one after the other, and a clock.

    Attributes:
        answers: seconds from arrival to the end of requests and jobs; infinite if they expired.
        refused: how many requests the gateway refused.
        lost_s: time spent on queries that were aborted.
    """

    def __init__(self, policy: str, long_s: float) -> None:
        self.seconds = {SHORT: SHORT_S, LONG: long_s}
        profile = [
            new_entry(engine, CLASS, 1.0 / seconds) for engine, seconds in self.seconds.items()
        ]
        settings = SchedulingSettings(policy=policy, stuck_s=math.inf)
        self.core = SchedulerCore(settings, ConfigurationDictionary(profile))
        self.now = 0.0
        self.answers: dict[JobId, float] = {}
        self.refused = 0
        self.lost_s = 0.0
        self._numbers = itertools.count()
        self._arrived: dict[JobId, float] = {}
        self._queue: list[events.Assignment] = []
        self._done = 0
        self._began = 0.0
        self._ends_at = math.inf
        self._stopping: set[int] = set()
        self._events = deque[events.Event]()
        self._handle(events.WorkerJoined(new_worker("box", CLASS, self.seconds)))

    # --- clients --------------------------------------------------------------------------

    def run_long(self, *, as_requests: bool) -> None:
        if as_requests:
            for _ in range(LONG_REQUESTS):
                self.ask(math.inf, LONG)
        else:
            self._handle(new_job("job", LONG, 10**6, self.now))

    def submit(self, queries: int, deadline: float) -> JobId:
        arrived = new_job("urgent", SHORT, queries, self.now, deadline=deadline)
        self._arrived[arrived.job.id] = self.now
        self._handle(arrived)
        return arrived.job.id

    def ask(self, deadline_s: float, engine: EngineName = SHORT) -> JobId | None:
        """Send a request; return None if it is refused."""
        name = f"{engine}-{next(self._numbers)}"
        arrived = new_request(name, engine, self.now, deadline=self.now + deadline_s)
        job = arrived.job
        if deadline_s < math.inf:
            expected_s = self.core.expected_answer_s(job, self.now)
            if expected_s is not None and expected_s > deadline_s:
                self.refused += 1
                return None
        self._arrived[job.id] = self.now
        self._handle(arrived)
        return job.id

    def wait(self, job_id: JobId) -> float:
        """Let time pass until a request or job has ended; return the seconds since it arrived."""
        while job_id not in self.answers:
            self._step(math.inf)
        return self.answers[job_id]

    def wait_until(self, at: float) -> None:
        while self._next() <= at:
            self._step(at)
        self.now = at

    # --- the worker -----------------------------------------------------------------------

    def _next(self) -> float:
        wakeup = self.core.wakeup()
        return min(self._ends_at, math.inf if wakeup is None else wakeup)

    def _step(self, at: float) -> None:
        self.now = max(self.now, min(self._next(), at))
        if self._ends_at <= self.now:
            self._end_query()
        else:
            self._handle(events.TimePassed())

    def _end_query(self) -> None:
        head = self._queue[0]
        if self._stopping and self._ends_at < self._began + self.seconds[head.engine] - 1e-9:
            self.lost_s += self.now - self._began
            self._end_head(Outcome.STOPPED)
            return
        self._done += 1
        if self._done == head.count:
            self._end_head(Outcome.COMPLETED)
        elif head.id in self._stopping:
            self._end_head(Outcome.STOPPED)
        else:
            self._begin_query()
            compute_s = self._done * self.seconds[head.engine]
            self._handle(events.QueriesDone(head.id, self._done, compute_s))

    def _end_head(self, outcome: Outcome) -> None:
        head, done = self._queue.pop(0), self._done
        self._stopping.discard(head.id)
        self._done, self._ends_at = 0, math.inf
        if self._queue:
            self._begin_query()
        compute_s = done * self.seconds[head.engine]
        self._handle(events.AssignmentEnded(head.id, done, outcome, compute_s=compute_s))

    def _begin_query(self) -> None:
        self._began = self.now
        self._ends_at = self.now + self.seconds[self._queue[0].engine]

    def _handle(self, event: events.Event) -> None:
        """Let the core handle an event, then those that follow from its commands."""
        self._events.append(event)
        while self._events:
            for command in self.core.handle(self._events.popleft(), self.now):
                self._execute(command)

    def _execute(self, command: events.Command) -> None:
        match command:
            case events.Dispatch(assignment):
                self._queue.append(assignment)
                if len(self._queue) == 1:
                    self._begin_query()
            case events.Stop(assignment_id, _, abort):
                self._stop(assignment_id, abort=abort)
            case events.Finish(job_id) if job_id in self._arrived:
                self.answers[job_id] = self.now - self._arrived[job_id]
            case events.Expire(job_id) if job_id in self._arrived:
                self.answers[job_id] = math.inf

    def _stop(self, assignment_id: AssignmentId, *, abort: bool) -> None:
        if self._queue and self._queue[0].id == assignment_id:
            self._stopping.add(assignment_id)
            if abort:
                self._ends_at = min(self._ends_at, self.now + ABORT_S)
            return
        for assignment in self._queue:
            if assignment.id == assignment_id:
                self._queue.remove(assignment)
                self._events.append(events.AssignmentEnded(assignment_id, 0, Outcome.STOPPED))
                return


class Trial:
    """Short requests with a deadline on a box with long queries."""

    def __init__(
        self, policy: str, long_s: float, *, as_requests: bool, began_s: float = 0.37
    ) -> None:
        self._policy, self._long_s, self._as_requests = policy, long_s, as_requests
        self._began_s = began_s
        self._sent: list[tuple[float, float]] = []
        self.box = self._make_box()

    def _make_box(self) -> Box:
        box = Box(self._policy, self._long_s)
        box.run_long(as_requests=self._as_requests)
        box.wait_until((2.0 + self._began_s) * self._long_s)
        return box

    def ask(self, deadline_s: float) -> JobId | None:
        self._sent.append((self.box.now, deadline_s))
        return self.box.ask(deadline_s)

    def without_deadline_s(self) -> float:
        """Return how long a request that is sent now takes if it has no deadline."""
        box = self._make_box()
        for at, deadline_s in self._sent:
            box.wait_until(at)
            box.ask(deadline_s)
        box.wait_until(self.box.now)
        job_id = box.ask(math.inf)
        assert job_id is not None
        return box.wait(job_id)

    def met(self, deadline_s: float, apart_s: float | None) -> int:
        """Return how many of 20 requests meet their deadline.

        They arrive some seconds apart, or each when the one before it has been answered.
        """
        box, sent = self.box, list[JobId]()
        for _ in range(20):
            if job_id := self.ask(deadline_s):
                sent.append(job_id)
                if apart_s is None:
                    box.wait(job_id)
                else:
                    box.wait_until(box.now + apart_s)
            else:
                assert self.without_deadline_s() > deadline_s, "in time without a deadline"
                box.wait_until(box.now + 0.05)
        return sum(box.wait(job_id) <= deadline_s for job_id in sent)


@pytest.mark.parametrize("policy", POLICIES.names())
@pytest.mark.parametrize("long_s", LONG_QUERIES_S)
def test_no_request_is_refused_that_would_be_answered_in_time_without_a_deadline(
    policy: str, long_s: float
) -> None:
    for apart_s in ARRIVALS:
        for as_requests in (False, True):
            Trial(policy, long_s, as_requests=as_requests).met(1.0, apart_s)


@pytest.mark.parametrize("as_requests", [False, True])
@pytest.mark.parametrize("apart_s", ARRIVALS)
@pytest.mark.parametrize("long_s", LONG_QUERIES_S)
def test_malleable_meets_as_many_deadlines_as_edf(
    long_s: float, apart_s: float | None, *, as_requests: bool
) -> None:
    malleable = Trial("malleable", long_s, as_requests=as_requests).met(1.0, apart_s)
    edf = Trial("edf", long_s, as_requests=as_requests).met(1.0, apart_s)
    assert malleable >= edf
    assert malleable == 20


def test_job_is_expected_to_begin_after_the_long_query_that_is_stopped_for_it() -> None:
    box = Box("malleable", 4.4)
    box.run_long(as_requests=False)
    box.wait_until(0.5)
    job_id = box.submit(100, deadline=6.0)
    assert box.core.expected_completion(job_id, 0.5) == pytest.approx(4.4 + 100 * SHORT_S)
    assert box.wait(job_id) == pytest.approx(4.4 + 100 * SHORT_S - 0.5)
    assert not box.lost_s


@pytest.mark.parametrize("as_requests", [False, True])
def test_long_query_is_aborted_for_a_job_that_is_in_time_only_so(*, as_requests: bool) -> None:
    box = Box("malleable", 4.4)
    box.run_long(as_requests=as_requests)
    box.wait_until(0.5)
    job_id = box.submit(100, deadline=3.5)
    assert box.wait(job_id) == pytest.approx(ABORT_S + 100 * SHORT_S)
    assert box.lost_s == pytest.approx(0.5 + ABORT_S)


def test_long_query_is_not_aborted_for_a_job_that_is_late_anyway() -> None:
    box = Box("malleable", 4.4)
    box.run_long(as_requests=False)
    box.wait_until(0.5)
    box.wait(box.submit(100, deadline=1.4))
    assert not box.lost_s


def test_query_that_is_about_to_end_is_not_aborted_for_a_further_request() -> None:
    profile = [new_entry(LONG, CLASS, 1.0), new_entry(SHORT, CLASS, 1000.0)]
    core = make_core(profile, [new_worker("box", CLASS, [LONG, SHORT])])
    [job] = core.handle(new_job("job", LONG, 10), 0.0)
    assert isinstance(job, events.Dispatch)
    core.handle(events.QueriesDone(job.assignment.id, 1, 1.0), 1.0)
    core.handle(new_request("first", SHORT, 1.5), 1.5)
    # The query that the first request waits for takes longer than expected.
    further = core.handle(new_request("further", SHORT, 2.01), 2.01)
    assert not any(isinstance(command, events.Stop) for command in further)


def burst_on_a_busy_box(requests: int) -> tuple[SchedulerCore, list[events.Command]]:
    """Let requests of 0.1 s arrive at once, half a second before a long query ends."""
    profile = [new_entry(LONG, CLASS, 1.0), new_entry(SHORT, CLASS, 10.0)]
    core = make_core(profile, [new_worker("box", CLASS, [LONG, SHORT])])
    core.handle(new_job("job", LONG, 10), 0.0)
    arrivals = [new_request(f"short-{n}", SHORT, 0.5, deadline=1.5) for n in range(requests)]
    return core, [command for each in arrivals for command in core.handle(each, 0.5)]


def test_request_of_a_burst_stops_no_other_one() -> None:
    _, commands = burst_on_a_busy_box(5)
    assert sum(isinstance(command, events.Stop) for command in commands) == 1  # of the job


def test_requests_of_the_same_instant_and_deadline_are_ahead_of_the_next_one() -> None:
    core, _ = burst_on_a_busy_box(8)
    waiting = core.queued
    assert waiting == 4
    following = new_request("following", SHORT, 0.5, deadline=1.5)
    expected_s = core.expected_answer_s(following.job, 0.5)
    assert expected_s == pytest.approx(0.5 + (4 + waiting / QUEUED_SHARE + 1) * 0.1)


def test_one_long_request_at_a_time_interrupts_a_job() -> None:
    profile = [new_entry(LONG, CLASS, 1.0), new_entry(SHORT, CLASS, 100.0)]
    core = make_core(profile, [new_worker("box", CLASS, [LONG, SHORT])])
    core.handle(new_job("job", SHORT, 1000), 0.0)
    first = core.handle(new_request("first", LONG, 0.5), 0.5)
    assert [type(command) for command in first] == [events.Stop, events.Dispatch]
    assert not core.handle(new_request("second", LONG, 0.5), 0.5)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_requests_without_deadlines_delay_a_long_one_by_its_own_time_at_most(policy: str) -> None:
    box = Box(policy, 1.0)
    box.ask(math.inf)
    long = box.ask(math.inf, LONG)
    assert long is not None
    for _ in range(400):
        box.wait_until(box.now + 0.8 * SHORT_S)
        box.ask(math.inf)
    assert box.wait(long) <= 2 * 1.0 + 1.0
