"""Conversion of orders into messages of the work stream."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gateway.fleet.worker import RunAssignment, SendInputs, StopAssignment
from synergai.protocol.converters import configuration_to_proto
from synergai.protocol.work_messages import Orders
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.fleet.worker import Order
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment

_ORDER_BYTES: Final = 512
"""About the size of an order without its tensors."""
_configuration = lru_cache(maxsize=1024)(configuration_to_proto)
"""Messages must not be modified: assignments copy them."""


def pack_orders(orders: Sequence[Order], now: float, limit_bytes: int) -> Iterator[Orders]:
    """Convert orders into messages of about `limit_bytes`; a single larger order is sent alone."""
    assignments: list[tuple[hub_pb2.Assignment, Sequence[Buffer]]] = []
    stops: list[int] = []
    aborts: list[int] = []
    inputs: list[tuple[hub_pb2.Inputs, Sequence[Buffer]]] = []
    size = 0
    for order in orders:
        added = _size(order)
        if size and size + added > limit_bytes:
            yield Orders(assignments, stops, inputs, aborts)
            assignments, stops, inputs, aborts, size = [], [], [], [], 0
        size += added
        match order:
            case RunAssignment(assignment, requests, inputs_follow):
                message = _assignment(assignment, now, inputs_follow=inputs_follow)
                assignments.append((message, requests))
            case SendInputs(assignment_id, contents, suspects):
                header = hub_pb2.Inputs(assignment_id=assignment_id, suspects=suspects)
                inputs.append((header, contents))
            case StopAssignment(assignment_id, abort):
                (aborts if abort else stops).append(assignment_id)
    yield Orders(assignments, stops, inputs, aborts)


def _size(order: Order) -> int:
    match order:
        case RunAssignment(_, requests, _):
            return _ORDER_BYTES + sum(map(len, requests))
        case SendInputs(_, inputs, _):
            return _ORDER_BYTES + sum(map(len, inputs))
        case StopAssignment():
            return _ORDER_BYTES


def _assignment(assignment: Assignment, now: float, *, inputs_follow: bool) -> hub_pb2.Assignment:
    message = hub_pb2.Assignment(
        id=assignment.id,
        job_id=assignment.job_id,
        engine=assignment.engine,
        configuration=_configuration(assignment.configuration),
        first=assignment.first,
        count=assignment.count,
        inputs_follow=inputs_follow,
        concurrent=assignment.concurrent,
    )
    if assignment.batch_times is not None:
        message.batch_s.extend(assignment.batch_times.by_size)
        if assignment.compute_by < math.inf:
            message.budget_s = assignment.compute_by - now
    return message
