"""What the queue of a stage sends to workers, and when it gives a job up."""

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from gateway.fleet.worker import AssignmentProgress, SendInputs
from gateway.jobs import input_feed, stage_queue
from gateway.jobs.stage_queue import StageQueue
from synergai.core.pipeline import HeldTensors, Visit
from synergai.core.route import Route
from synergai.domain import WorkerId
from tests.cores import new_assignment, new_job
from tests.engines import new_stage
from tests.unit.gateway.conftest import make_worker

ROUTE = Route((new_stage(0, 4), new_stage(4, 9)))
TAIL = ROUTE.engines[1].name
WORKER = WorkerId("tail")
HELD = [HeldTensors(WorkerId("head"), token, 16) for token in ("first", "second")]


def queue_of(tensors: Sequence[HeldTensors | None], on_ended: Mock | None = None) -> StageQueue:
    """Return the queue of the last stage with a visit for each of some tensors."""
    job, ignored = new_job("job", TAIL, len(tensors)).job, Mock()
    queue = StageQueue(0, ROUTE, 1, job, Mock(), ignored, ignored, on_ended or ignored)
    queue.add([(Visit(number, number, each), b"in") for number, each in enumerate(tensors)])
    return queue


def sent(queue: StageQueue, *, first: int, count: int) -> list[SendInputs]:
    """Return what a worker gets of an assignment."""
    worker = make_worker(WORKER)
    queue.on_dispatched(worker, new_assignment(1, TAIL, WORKER, count, first=first), 0.0)
    return [each for each in worker.orders._items if isinstance(each, SendInputs)]


def test_tensors_are_pulled_for_queries_by_their_place_in_the_assignment() -> None:
    [inputs] = sent(queue_of(HELD), first=1, count=1)
    assert inputs.pulls == [(0, HELD[1])]


def test_inputs_are_sent_in_portions_with_what_is_to_be_pulled_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_queue, "PORTION_BYTES", 1)
    portions = sent(queue_of(HELD), first=0, count=2)
    assert [(list(each.inputs), each.pulls) for each in portions] == [
        ([b"in"], [(0, HELD[0])]),
        ([b"in"], [(1, HELD[1])]),
    ]


@pytest.mark.parametrize(("error", "fails"), [("the host died at it", True), ("", False)])
def test_hosts_that_die_in_a_row_fail_a_job_unless_they_answer_in_between(
    monkeypatch: pytest.MonkeyPatch, error: str, *, fails: bool
) -> None:
    monkeypatch.setattr(input_feed, "MOST_CRASHES", 1)
    on_ended = Mock()
    queue = queue_of([None, None], on_ended)
    assert queue.retries_alone(0)
    assignment = new_assignment(1, TAIL, WORKER, 2)
    progress = AssignmentProgress(assignment, 0.0, done=1, failed={0: error} if error else {})
    queue.on_progress(make_worker(WORKER), progress, [b""], 0.0)
    assert queue.retries_alone(1)
    assert bool(on_ended.mock_calls) is fails
