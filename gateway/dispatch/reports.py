"""What agents report of their assignments, checked against what they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from gateway.fleet.agent_validation import ProtocolViolation, checked_seconds
from synergai.protocol.request_codec import check_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.fleet.worker import Outstanding
    from synergai.protocol.request_codec import Buffer
    from synergai.v1 import hub_pb2


def take_in(
    outstanding: Outstanding,
    report: hub_pb2.Progress,
    responses: Sequence[Buffer],
    *,
    with_tensors: bool | None,
) -> int:
    """Bring the figures of an assignment up to date; return how many queries are newly done.

    Args:
        outstanding: the assignment; unchanged if an error is raised.
        report: what the worker says of it.
        responses: the results that came with that.
        with_tensors: whether its results are wanted; None if its job has ended, and nothing is.

    Raises:
        ProtocolViolation: the figures contradict each other, an earlier report or the
            assignment, or the results are not one ``ModelInferResponse`` per query.
    """
    assignment = outstanding.assignment
    done, labelled, correct = report.done, report.labelled, report.correct
    compute_s, batch = report.compute_s, report.batch
    new = done - outstanding.done
    if new < 0 or done > assignment.count:
        raise ProtocolViolation(
            f"assignment {assignment.id} of {assignment.count} queries cannot be at "
            f"{done} after {outstanding.done}"
        )
    if not outstanding.labelled <= labelled <= done:
        raise ProtocolViolation(
            f"assignment {assignment.id} cannot have {labelled} labelled queries"
        )
    if not outstanding.correct <= correct <= labelled:
        raise ProtocolViolation(f"assignment {assignment.id} cannot have {correct} correct answers")
    times = assignment.batch_times
    if batch > (1 if times is None else times.most):
        raise ProtocolViolation(
            f"assignment {assignment.id} cannot have been one of {batch} queries at once"
        )
    checked_seconds(compute_s, f"compute_s of assignment {assignment.id}")
    if with_tensors is not None:
        wanted = new if with_tensors else 0
        if len(responses) != wanted:
            raise ProtocolViolation(
                f"assignment {assignment.id} came with {len(responses)} results "
                f"for {wanted} queries"
            )
        for response in responses:
            _check_response(response, assignment.id)
    outstanding.done = done
    outstanding.labelled = labelled
    outstanding.correct = correct
    outstanding.compute_s = compute_s
    outstanding.batch = batch or 1
    return new


def _check_response(response: Buffer, assignment_id: int) -> None:
    try:
        check_response(response)
    except DecodeError:
        raise ProtocolViolation(
            f"assignment {assignment_id} came with a result that is not a ModelInferResponse"
        ) from None
