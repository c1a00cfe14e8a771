"""Validation of progress reports against the assignments they refer to."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from gateway.fleet.agent_validation import (
    ProtocolViolation,
    checked_seconds,
    printable_detail,
)
from synergai.protocol.request_codec import check_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.fleet.worker import AssignmentProgress
    from synergai.protocol.request_codec import Buffer
    from synergai.v1 import hub_pb2


_NONE: Final[Mapping[int, str]] = MappingProxyType({})


def apply_progress(
    progress: AssignmentProgress,
    report: hub_pb2.Progress,
    responses: Sequence[Buffer],
    *,
    with_tensors: bool | None,
) -> int:
    """Apply a report to an assignment's progress; return the number of newly completed queries.

    Args:
        progress: the assignment's progress; unchanged if an error is raised.
        report: the worker's report.
        responses: serialized responses of the newly completed queries.
        with_tensors: whether responses are expected; None if the job has ended and they are
            ignored.

    Raises:
        ProtocolViolation: the figures contradict each other, an earlier report or the
            assignment, or the responses are not one ``ModelInferResponse`` per query.
    """
    assignment = progress.assignment
    done, labelled, correct = report.done, report.labelled, report.correct
    compute_s, batch = report.compute_s, report.batch
    new = done - progress.done
    if new < 0 or done > assignment.count:
        raise ProtocolViolation(
            f"assignment {assignment.id} of {assignment.count} queries cannot be at "
            f"{done} after {progress.done}"
        )
    if not progress.labelled <= labelled <= done:
        raise ProtocolViolation(
            f"assignment {assignment.id} cannot have {labelled} labelled queries"
        )
    if not progress.correct <= correct <= labelled:
        raise ProtocolViolation(f"assignment {assignment.id} cannot have {correct} correct answers")
    times = assignment.batch_times
    if batch > (1 if times is None else times.max_rows):
        raise ProtocolViolation(
            f"assignment {assignment.id} cannot have been in a batch of {batch} queries"
        )
    if not 0.0 <= compute_s < math.inf:
        checked_seconds(compute_s, f"compute_s of assignment {assignment.id}")
    if with_tensors is not None:
        expected = new if with_tensors else 0
        if len(responses) != expected:
            raise ProtocolViolation(
                f"assignment {assignment.id} has {len(responses)} responses for {expected} queries"
            )
        for response in responses:
            _check_response(response, assignment.id)
    failures = report.failures
    progress.failed = _failures(report, progress.done, assignment.id) if failures else _NONE
    progress.done = done
    progress.labelled = labelled
    progress.correct = correct
    progress.compute_s = compute_s
    progress.batch = batch or 1
    return new


def _failures(report: hub_pb2.Progress, before: int, assignment_id: int) -> dict[int, str]:
    """Return why inputs among the newly completed queries failed."""
    failed = {}
    for failure in report.failures:
        if not before <= failure.query < report.done:
            raise ProtocolViolation(
                f"assignment {assignment_id} cannot report a failure of query {failure.query}"
            )
        failed[failure.query] = printable_detail(failure.detail) or "the input failed"
    return failed


def _check_response(response: Buffer, assignment_id: int) -> None:
    try:
        check_response(response)
    except DecodeError:
        raise ProtocolViolation(
            f"assignment {assignment_id} has a response that is not a ModelInferResponse"
        ) from None
