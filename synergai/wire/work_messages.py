"""Encoding and decoding of the work stream's messages with minimal copying of tensors.

Protobuf copies whatever it parses or serialises, nested messages several times. Requests and
responses make up most of these messages, so they are copied once on sending and not at all on
receiving, where they stay views of the received buffer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from synergai.v1.hub_pb2 import (
    Assignment,
    Ended,
    Inputs,
    Progress,
    Pull,
    Relayed,
    Started,
    Wanted,
    WorkOrders,
    WorkReports,
)
from synergai.wire.request_codec import MAX_FIELDS, SMALL_MESSAGE_BYTES, field_prefix, split_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from synergai.wire.request_codec import Buffer

MessageT = TypeVar("MessageT", bound="Message")

_MAX_FIELDS_WITHIN: Final = 16 * MAX_FIELDS
"""Fields of all reports in a message; a message of 64 MiB would have room for millions."""
_ASSIGNMENTS: Final = WorkOrders.ASSIGNMENTS_FIELD_NUMBER
_INPUTS: Final = WorkOrders.INPUTS_FIELD_NUMBER
_INPUTS_OF_ASSIGNMENT: Final = Inputs.INPUTS_FIELD_NUMBER
_RELAYED_ORDERS: Final = WorkOrders.RELAYED_FIELD_NUMBER
_RELAYED_REPORTS: Final = WorkReports.RELAYED_FIELD_NUMBER
_CONTENTS: Final = Relayed.CONTENTS_FIELD_NUMBER
_REQUESTS: Final = Assignment.REQUESTS_FIELD_NUMBER
_PROGRESS_REPORTS: Final = WorkReports.PROGRESS_FIELD_NUMBER
_ENDED_REPORTS: Final = WorkReports.ENDED_FIELD_NUMBER
_RESPONSES: Final = Progress.RESPONSES_FIELD_NUMBER
_PROGRESS: Final = Ended.PROGRESS_FIELD_NUMBER


class RelayedTensors(Struct, frozen=True):
    """A ``Relayed``: parts of the held tensors under a token; none if they are lost."""

    token: str
    contents: Sequence[Buffer]

    def encode(self, field: int) -> list[Buffer]:
        """Return the parts of a serialised field."""
        contents = _field(_CONTENTS, list(self.contents)) if self.contents else []
        return _field(field, [Relayed(token=self.token).SerializeToString(), *contents])


class Orders(Struct, frozen=True):
    """A ``WorkOrders`` with its tensors apart.

    In orders to be sent, no message contains the tensors that accompany it. Stops wait for the
    next query of an assignment; aborts do not.
    """

    assignments: Sequence[tuple[Assignment, Sequence[Buffer]]] = ()
    stops: Sequence[int] = ()
    inputs: Sequence[tuple[Inputs, Sequence[Buffer]]] = ()
    aborts: Sequence[int] = ()
    sends: Sequence[str] = ()
    relayed: Sequence[RelayedTensors] = ()
    drops: Sequence[str] = ()
    probes: Sequence[Pull] = ()

    def encode(self) -> list[Buffer]:
        """Return the parts of the serialised ``WorkOrders``."""
        parts: list[Buffer] = []
        for assignment, requests in self.assignments:
            content = [assignment.SerializeToString(), *_fields(_REQUESTS, requests)]
            parts += _field(_ASSIGNMENTS, content)
        for message, inputs in self.inputs:
            content = [message.SerializeToString(), *_fields(_INPUTS_OF_ASSIGNMENT, inputs)]
            parts += _field(_INPUTS, content)
        for tensors in self.relayed:
            parts += tensors.encode(_RELAYED_ORDERS)
        if self.stops or self.aborts or self.sends or self.drops or self.probes:
            rest = WorkOrders(
                stops=self.stops,
                aborts=self.aborts,
                sends=self.sends,
                drops=self.drops,
                probes=self.probes,
            )
            parts.append(rest.SerializeToString())
        return parts


class Reports(Struct, frozen=True):
    """A ``WorkReports`` with its tensors apart.

    In reports to be sent, no message contains the tensors that accompany it.
    """

    started: Sequence[Started] = ()
    progress: Sequence[tuple[Progress, Sequence[Buffer]]] = ()
    ended: Sequence[tuple[Ended, Sequence[Buffer]]] = ()
    wanted: Sequence[Wanted] = ()
    relayed: Sequence[RelayedTensors] = ()

    def encode(self) -> list[Buffer]:
        """Return the parts of the serialised ``WorkReports``."""
        parts: list[Buffer] = []
        if self.started or self.wanted:
            rest = WorkReports(started=self.started, wanted=self.wanted)
            parts.append(rest.SerializeToString())
        for tensors in self.relayed:
            parts += tensors.encode(_RELAYED_REPORTS)
        for progress, responses in self.progress:
            parts += _field(_PROGRESS_REPORTS, _with_responses(progress, responses))
        for ended, responses in self.ended:
            last = _field(_PROGRESS, _with_responses(ended.progress, responses))
            outcome = Ended()
            outcome.CopyFrom(ended)
            outcome.ClearField("progress")
            parts += _field(_ENDED_REPORTS, [*last, outcome.SerializeToString()])
        return parts


def decode_orders(data: Buffer) -> Orders:
    if len(data) <= SMALL_MESSAGE_BYTES:
        orders = WorkOrders.FromString(bytes(data))
        return Orders(
            [(each, each.requests) for each in orders.assignments],
            orders.stops,
            [(each, each.inputs) for each in orders.inputs],
            orders.aborts,
            orders.sends,
            [_relayed(each) for each in orders.relayed],
            orders.drops,
            orders.probes,
        )
    rest, (assignments, inputs, relayed) = split_fields(
        data, _ASSIGNMENTS, _INPUTS, _RELAYED_ORDERS
    )
    orders = WorkOrders.FromString(rest)
    return Orders(
        [_split(Assignment, each, _REQUESTS, "requests") for each in assignments],
        orders.stops,
        [_split(Inputs, each, _INPUTS_OF_ASSIGNMENT, "inputs") for each in inputs],
        orders.aborts,
        orders.sends,
        [_decode_relayed(each) for each in relayed],
        orders.drops,
        orders.probes,
    )


def decode_reports(data: Buffer) -> Reports:
    if len(data) <= SMALL_MESSAGE_BYTES:
        reports = WorkReports.FromString(bytes(data))
        return Reports(
            reports.started,
            [(each, each.responses) for each in reports.progress],
            [(each, each.progress.responses) for each in reports.ended],
            reports.wanted,
            [_relayed(each) for each in reports.relayed],
        )
    rest, (progress, ended, relayed) = split_fields(
        data, _PROGRESS_REPORTS, _ENDED_REPORTS, _RELAYED_REPORTS, max_fields=MAX_FIELDS
    )
    most = _MAX_FIELDS_WITHIN // max(1, len(progress) + len(ended) + len(relayed))
    reports = WorkReports.FromString(rest)
    return Reports(
        reports.started,
        [_decode_progress(each, most) for each in progress],
        [_decode_ended(each, most) for each in ended],
        reports.wanted,
        [_decode_relayed(each, most) for each in relayed],
    )


def _relayed(message: Relayed) -> RelayedTensors:
    return RelayedTensors(message.token, (message.contents,) if message.contents else ())


def _decode_relayed(data: Buffer, most: int = sys.maxsize) -> RelayedTensors:
    if len(data) <= SMALL_MESSAGE_BYTES:
        return _relayed(Relayed.FromString(bytes(data)))
    rest, (contents,) = split_fields(data, _CONTENTS, max_fields=most)
    return RelayedTensors(Relayed.FromString(rest).token, contents[-1:])


def _split(
    cls: type[MessageT], data: Buffer, number: int, field: str, most: int = sys.maxsize
) -> tuple[MessageT, Sequence[Buffer]]:
    """Return a message of `most` fields at most, and the contents of one of them apart."""
    if len(data) <= SMALL_MESSAGE_BYTES:
        message = cls.FromString(bytes(data))
        return message, getattr(message, field)
    rest, (contents,) = split_fields(data, number, max_fields=most)
    return cls.FromString(rest), contents


def _decode_progress(data: Buffer, most: int) -> tuple[Progress, Sequence[Buffer]]:
    return _split(Progress, data, _RESPONSES, "responses", most)


def _decode_ended(data: memoryview, most: int) -> tuple[Ended, Sequence[Buffer]]:
    if len(data) <= SMALL_MESSAGE_BYTES:
        ended = Ended.FromString(bytes(data))
        return ended, ended.progress.responses
    rest, (parts,) = split_fields(data, _PROGRESS, max_fields=most)
    # Protobuf merges repeated occurrences of a message field.
    joined = parts[0] if len(parts) == 1 else b"".join(parts)
    progress, responses = _decode_progress(joined, most)
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
