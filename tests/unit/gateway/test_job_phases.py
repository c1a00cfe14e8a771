"""The phases of a submitted job: every call in every phase, against the table."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jobs.submitted_job import TRANSITIONS, Phase, SubmittedJob, new_job_record
from gateway.journal.job_record import Executions, JobTracker, RecordedExecution, merge_adjacent
from gateway.journal.store import StoreFull
from synergai.core.scheduling.events import Assignment
from synergai.domain import EngineName, Fault, JobId, WorkerId
from synergai.errors import SynergaiError
from synergai.jobs import JobSpec, JobState
from synergai.runtime.clock import Clock
from tests.cores import new_assignment
from tests.unit.gateway.test_journal import an_execution

REACHED_BY: dict[Phase, str] = {
    Phase.OPENING: "",
    Phase.RUNNING: "start",
    Phase.PAUSED: "start pause",
    Phase.ENDING: "start end",
    Phase.UNRECORDED: "start end store_full",
    Phase.ENDED: "start end recorded",
}
"""The calls that lead to each phase."""
LEADS_TO: dict[str, dict[Phase, Phase]] = {
    "start": {Phase.OPENING: Phase.RUNNING, Phase.PAUSED: Phase.RUNNING},
    "pause": {Phase.RUNNING: Phase.PAUSED},
    "resume": {Phase.PAUSED: Phase.RUNNING, Phase.UNRECORDED: Phase.ENDING},
    "end": dict.fromkeys(
        (Phase.OPENING, Phase.RUNNING, Phase.PAUSED, Phase.UNRECORDED), Phase.ENDING
    ),
    "recorded": {Phase.ENDING: Phase.ENDED},
    "store_full": {Phase.ENDING: Phase.UNRECORDED},
}
"""The phase to which each call leads, from the phases in which it leads to another."""


class Journal:
    """Records an end once the test says so."""

    def record_end(self, _record: object) -> asyncio.Future[None]:
        self.recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self.recorded

    def answer(self, error: SynergaiError | None) -> None:
        if error is None:
            self.recorded.set_result(None)
        else:
            self.recorded.set_exception(error)


class Dispatcher:
    def __init__(self) -> None:
        self.has_job = False

    def submit(self, *_args: object, **_fields: object) -> None:
        self.has_job = True

    def suspend(self, _job_id: object) -> None:
        self.has_job = False


class WholeEngines:
    """No engine runs in stages."""

    @property
    def routes(self) -> "WholeEngines":
        return self

    def route(self, _spec: JobSpec) -> None:
        """Return no route."""


class Phases:
    """A job under test."""

    def __init__(
        self, executions: tuple[RecordedExecution, ...] = (), max_failures: int | None = None
    ) -> None:
        clock, self.journal, self.dispatcher = Clock(), Journal(), Dispatcher()
        upload_id = "" if max_failures is None else "upload"
        spec = JobSpec(
            engine=EngineName("echo"), queries=1, upload_id=upload_id, max_failures=max_failures
        )
        record = replace(new_job_record(spec, clock), executions=executions)
        tracker = JobTracker(record, clock, lambda *_: None)
        self.seen: list[Phase] = []
        self.job = SubmittedJob(
            tracker,
            None,
            cast("Any", self.dispatcher),
            cast("Any", self.journal),
            lambda job: self.seen.append(job.phase),
            cast("Any", WholeEngines()),
        )

    def end(self) -> None:
        self.dispatcher.has_job = False  # it forgets a job before it tells of its end
        self.job.on_ended(JobState.CANCELLED, "", Fault.UNSPECIFIED, 1.0)

    async def make(self, call: str) -> None:
        calls: dict[str, Callable[[], None]] = {
            "start": self.job.start,
            "pause": self.job.pause,
            "resume": self.job.resume,
            "end": self.end,
            "recorded": lambda: self.journal.answer(None),
            "store_full": lambda: self.journal.answer(StoreFull()),
        }
        calls[call]()
        await asyncio.sleep(0)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("call", ["start", "pause", "resume", "end"])
async def test_call_leads_to_the_next_phase_or_changes_nothing(call: str, phase: Phase) -> None:
    phases = Phases()
    for each in REACHED_BY[phase].split():
        await phases.make(each)
    assert phases.job.phase is phase
    following = LEADS_TO[call].get(phase)
    if following is None and call in ("start", "end"):
        with pytest.raises(RuntimeError, match="before"):
            await phases.make(call)
    else:
        await phases.make(call)
    assert phases.job.phase is (following or phase)
    assert phases.dispatcher.has_job == (phases.job.phase is Phase.RUNNING)


def test_table_has_exactly_the_transitions_of_the_calls() -> None:
    found: dict[Phase, set[Phase]] = {phase: set() for phase in Phase}
    for transitions in LEADS_TO.values():
        for before, after in transitions.items():
            found[before].add(after)
    assert {phase: set(after) for phase, after in TRANSITIONS.items()} == found


@pytest.mark.parametrize(("limit", "phase"), [(0, Phase.ENDING), (1, Phase.RUNNING)])
async def test_job_that_resumes_with_too_many_failures_does_not_run(
    limit: int, phase: Phase
) -> None:
    phases = Phases((replace(an_execution(0, 1), failures=1),), limit)
    await phases.make("start")
    assert phases.job.phase is phase
    assert phases.dispatcher.has_job == (phase is Phase.RUNNING)


FAST, SLOW = WorkerId("fast"), WorkerId("slow")


def an_assignment(number: int, first: int, count: int, worker: WorkerId) -> Assignment:
    return new_assignment(number, "echo", worker, count, job_id=JobId("a"), first=first)


def done_of(assignment: Assignment, count: int) -> RecordedExecution:
    execution = an_execution(assignment.first, count)
    return replace(execution, worker_id=assignment.worker_id, seconds=count / 10)


@given(st.data())
def test_executions_equal_the_merged_last_reports(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, 29), max_size=6)))
    edges = [0, *cuts, 30]
    assignments = [
        an_assignment(number, first, stop - first, data.draw(st.sampled_from([FAST, SLOW])))
        for number, (first, stop) in enumerate(pairwise(edges))
    ]
    executions = Executions()
    last: dict[int, RecordedExecution] = {}
    for assignment in data.draw(st.permutations(assignments)):
        reports = data.draw(st.sets(st.integers(1, assignment.count), min_size=1, max_size=3))
        for count in sorted(reports):
            last[assignment.id] = done_of(assignment, count)
            executions.record(assignment, last[assignment.id])
    expected = merge_adjacent(last.values())
    assert executions.queries == sum(each.count for each in expected)
    found = executions.ranges()
    assert [(e.worker_id, e.first, e.count, e.labelled, e.correct) for e in found] == [
        (e.worker_id, e.first, e.count, e.labelled, e.correct) for e in expected
    ]
    assert [e.seconds for e in found] == pytest.approx([e.seconds for e in expected])
