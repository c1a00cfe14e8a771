"""Messages of the work stream are encoded and decoded exactly as protobuf would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from synergai.v1.hub_pb2 import (
    OUTCOME_STOPPED,
    Assignment,
    Ended,
    Progress,
    Pull,
    Relayed,
    Started,
    WorkOrders,
    WorkReports,
)
from synergai.wire.request_codec import Buffer, field_prefix
from synergai.wire.work_messages import Orders, Reports, decode_orders, decode_reports

LARGE = 5000
"""More than `SMALL_MESSAGE_BYTES`, up to which protobuf parses the whole message."""

tensors = st.lists(
    st.one_of(st.binary(max_size=50), st.integers(LARGE, 2 * LARGE).map(bytes)), max_size=3
)
numbers = st.integers(0, 2**64 - 1)

MessageT = TypeVar("MessageT", Assignment, Progress, Ended)


def plain(
    opened: Iterable[tuple[MessageT, Sequence[Buffer]]],
) -> list[tuple[MessageT, list[bytes]]]:
    """Return messages without their tensors, which small ones still contain, and the tensors."""
    pairs: list[tuple[MessageT, list[bytes]]] = []
    for message, contents in opened:
        copy = type(message).FromString(message.SerializeToString())
        if isinstance(copy, Assignment):
            copy.ClearField("requests")
        elif isinstance(copy, Progress):
            copy.ClearField("responses")
        else:
            copy.progress.ClearField("responses")
        pairs.append((copy, [bytes(each) for each in contents]))
    return pairs


@given(st.lists(st.tuples(numbers, tensors), max_size=3), st.lists(numbers, max_size=3))
def test_orders_round_trip(assignments: list[tuple[int, list[bytes]]], stops: list[int]) -> None:
    given = [(Assignment(id=i, engine="digits", count=1), requests) for i, requests in assignments]
    data = b"".join(Orders(given, stops).encode())
    assert [[*a.requests] for a in WorkOrders.FromString(data).assignments] == [r for _, r in given]
    orders = decode_orders(data)
    assert plain(orders.assignments) == given
    assert list(orders.stops) == stops


@given(st.lists(st.tuples(numbers, tensors), max_size=3), st.lists(numbers, max_size=2))
def test_reports_round_trip(reports: list[tuple[int, list[bytes]]], started: list[int]) -> None:
    progress = [(Progress(assignment_id=i, done=3), responses) for i, responses in reports]
    ends = [
        (Ended(progress=report, outcome=OUTCOME_STOPPED, detail="as told"), responses)
        for report, responses in progress
    ]
    starts = [Started(assignment_id=i) for i in started]
    data = b"".join(Reports(starts, progress, ends).encode())
    whole = WorkReports.FromString(data)
    assert [[*each.responses] for each in whole.progress] == [r for _, r in progress]
    assert [[*each.progress.responses] for each in whole.ended] == [r for _, r in progress]
    opened = decode_reports(data)
    assert [each.assignment_id for each in opened.started] == started
    assert plain(opened.progress) == progress
    assert plain(opened.ended) == ends


def test_repeated_progress_fields_of_a_final_report_are_merged() -> None:
    halves = [
        Ended(progress=Progress(assignment_id=7, responses=[bytes(LARGE)])),
        Ended(progress=Progress(done=2, responses=[b"second"])),
    ]
    merged = b"".join(half.SerializeToString() for half in halves)
    data = field_prefix(WorkReports.ENDED_FIELD_NUMBER, len(merged)) + merged
    assert WorkReports.FromString(data).ended[0].progress.done == 2
    ((message, responses),) = decode_reports(data).ended
    assert (message.progress.assignment_id, message.progress.done) == (7, 2)
    assert [*map(bytes, responses)] == [bytes(LARGE), b"second"]


@pytest.mark.parametrize("tensor", [b"x", bytes(LARGE)], ids=["small", "large"])
def test_orders_of_probes_round_trip(tensor: bytes) -> None:
    given = Orders([(Assignment(id=1), [tensor])], probes=[Pull(token="t")])
    orders = decode_orders(b"".join(given.encode()))
    assert [each.token for each in orders.probes] == ["t"]


def test_large_tensors_stay_views_of_the_received_bytes() -> None:
    orders = decode_orders(b"".join(Orders([(Assignment(id=1), [bytes(LARGE)])]).encode()))
    ((_, (request,)),) = orders.assignments
    assert isinstance(request, memoryview)


@given(st.binary(min_size=1, max_size=40), st.sampled_from([b"", bytes(LARGE)]))
def test_any_bytes_are_decoded_or_raise_decode_error(noise: bytes, tensor: bytes) -> None:
    reports = Reports(progress=[(Progress(assignment_id=1), [tensor])] if tensor else [])
    head = b"".join(reports.encode())
    for open_message in (decode_orders, decode_reports):
        try:
            open_message(head + noise)
        except DecodeError:
            continue


def field(number: int, content: bytes) -> bytes:
    return field_prefix(number, len(content)) + content


EMPTY = field(WorkReports.PROGRESS_FIELD_NUMBER, b"")
CONTENTS = field(Relayed.CONTENTS_FIELD_NUMBER, b"")
RESPONSES = field(Progress.RESPONSES_FIELD_NUMBER, b"") * 8000


@pytest.mark.parametrize(
    "reports",
    [
        EMPTY * 10_000,
        field(WorkReports.PROGRESS_FIELD_NUMBER, RESPONSES) * 20,
        field(WorkReports.PROGRESS_FIELD_NUMBER, RESPONSES * 20),
        field(WorkReports.ENDED_FIELD_NUMBER, field(Ended.PROGRESS_FIELD_NUMBER, RESPONSES * 20)),
        field(WorkReports.ENDED_FIELD_NUMBER, field(Ended.PROGRESS_FIELD_NUMBER, b"") * 160_000),
        field(
            WorkReports.RELAYED_FIELD_NUMBER, field(Relayed.CONTENTS_FIELD_NUMBER, b"") * 160_000
        ),
    ],
    ids=["reports", "responses of reports", "responses", "of an end", "ends", "tensors"],
)
def test_message_of_more_fields_than_a_worker_sends_is_refused(reports: bytes) -> None:
    with pytest.raises(DecodeError, match="more than"):
        decode_reports(reports)


def test_truncated_message_raises_decode_error() -> None:
    ended = Ended(progress=Progress(assignment_id=1))
    data = b"".join(Reports(ended=[(ended, [bytes(LARGE)])]).encode())
    with pytest.raises(DecodeError):
        decode_reports(data[:-1])
