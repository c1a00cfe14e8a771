"""The messages of the work stream, put together and taken apart around the tensors in them.

Protobuf copies what it parses and what it serialises, in nested messages several times over. A
request or a response is most of its message, so these functions copy it once on sending, and not
at all on receiving: it stays a view of the bytes that came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.protocol.request_codec import SMALL_BYTES, cut, field_prefix
from synergai.v1.hub_pb2 import Assignment, Ended, Progress, Started, WorkOrders, WorkReports
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.protocol.request_codec import Buffer

_ASSIGNMENTS: Final = WorkOrders.ASSIGNMENTS_FIELD_NUMBER
_REQUESTS: Final = Assignment.REQUESTS_FIELD_NUMBER
_PROGRESS_REPORTS: Final = WorkReports.PROGRESS_FIELD_NUMBER
_ENDED_REPORTS: Final = WorkReports.ENDED_FIELD_NUMBER
_RESPONSES: Final = Progress.RESPONSES_FIELD_NUMBER
_PROGRESS: Final = Ended.PROGRESS_FIELD_NUMBER


@value()
class Orders:
    """A ``WorkOrders``.

    Attributes:
        assignments: each with its requests.
        stops: ids of assignments to stop.
    """

    assignments: Sequence[tuple[Assignment, Sequence[Buffer]]]
    stops: Sequence[int]


@value()
class Reports:
    """A ``WorkReports``; progress and ends each with its responses."""

    started: Sequence[Started]
    progress: Sequence[tuple[Progress, Sequence[Buffer]]]
    ended: Sequence[tuple[Ended, Sequence[Buffer]]]


def assignment_order(assignment: Assignment, requests: Sequence[Buffer]) -> list[Buffer]:
    """The parts of a serialised ``WorkOrders`` of one assignment, which has no requests itself."""
    return _field(_ASSIGNMENTS, [assignment.SerializeToString(), *_fields(_REQUESTS, requests)])


def progress_report(progress: Progress, responses: Sequence[Buffer]) -> list[Buffer]:
    """The parts of a serialised ``WorkReports`` of one progress, which has no responses itself."""
    return _field(_PROGRESS_REPORTS, _with_responses(progress, responses))


def ended_report(ended: Ended, progress: Progress, responses: Sequence[Buffer]) -> list[Buffer]:
    """The parts of a serialised ``WorkReports`` of one end, which has no progress itself."""
    last = _field(_PROGRESS, _with_responses(progress, responses))
    return _field(_ENDED_REPORTS, [*last, ended.SerializeToString()])


def open_orders(data: Buffer) -> Orders:
    """Take the serialised ``WorkOrders`` in `data` apart.

    Raises:
        DecodeError: it is not one.
    """
    if len(data) <= SMALL_BYTES:
        orders = WorkOrders.FromString(bytes(data))
        return Orders([(each, each.requests) for each in orders.assignments], orders.stops)
    rest, (assignments,) = cut(data, _ASSIGNMENTS)
    return Orders(
        [_open_assignment(each) for each in assignments], WorkOrders.FromString(rest).stops
    )


def open_reports(data: Buffer) -> Reports:
    """Take the serialised ``WorkReports`` in `data` apart.

    Raises:
        DecodeError: it is not one.
    """
    if len(data) <= SMALL_BYTES:
        reports = WorkReports.FromString(bytes(data))
        return Reports(
            reports.started,
            [(each, each.responses) for each in reports.progress],
            [(each, each.progress.responses) for each in reports.ended],
        )
    rest, (progress, ended) = cut(data, _PROGRESS_REPORTS, _ENDED_REPORTS)
    return Reports(
        WorkReports.FromString(rest).started,
        [_open_progress(each) for each in progress],
        [_open_ended(each) for each in ended],
    )


def _open_assignment(data: memoryview) -> tuple[Assignment, Sequence[Buffer]]:
    if len(data) <= SMALL_BYTES:
        assignment = Assignment.FromString(bytes(data))
        return assignment, assignment.requests
    rest, (requests,) = cut(data, _REQUESTS)
    return Assignment.FromString(rest), requests


def _open_progress(data: Buffer) -> tuple[Progress, Sequence[Buffer]]:
    if len(data) <= SMALL_BYTES:
        progress = Progress.FromString(bytes(data))
        return progress, progress.responses
    rest, (responses,) = cut(data, _RESPONSES)
    return Progress.FromString(rest), responses


def _open_ended(data: memoryview) -> tuple[Ended, Sequence[Buffer]]:
    if len(data) <= SMALL_BYTES:
        ended = Ended.FromString(bytes(data))
        return ended, ended.progress.responses
    rest, (parts,) = cut(data, _PROGRESS)
    # Protobuf merges a message that comes in several parts, as if they were one.
    progress, responses = _open_progress(parts[0] if len(parts) == 1 else b"".join(parts))
    ended = Ended.FromString(rest)
    ended.progress.CopyFrom(progress)
    return ended, responses


def _with_responses(progress: Progress, responses: Sequence[Buffer]) -> list[Buffer]:
    return [progress.SerializeToString(), *_fields(_RESPONSES, responses)]


def _field(number: int, content: list[Buffer]) -> list[Buffer]:
    return [field_prefix(number, sum(map(len, content))), *content]


def _fields(number: int, contents: Sequence[Buffer]) -> list[Buffer]:
    parts: list[Buffer] = []
    for content in contents:
        parts += (field_prefix(number, len(content)), content)
    return parts
