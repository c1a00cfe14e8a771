"""Serialization of orders into messages of the work stream."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from gateway.fleet.worker import RunAssignment, SendInputs, StopAssignment
from synergai.protocol.converters import configuration_to_proto
from synergai.protocol.work_messages import encode_assignment, encode_inputs
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.fleet.worker import Order
    from synergai.domain import Configuration, EngineName
    from synergai.protocol.request_codec import Buffer


def pack_orders(orders: Sequence[Order], now: float, limit_bytes: int) -> Iterator[list[Buffer]]:
    """Serialize orders into as few ``WorkOrders`` messages as the size limit allows.

    Args:
        orders: orders to send.
        now: time that remaining budgets are computed for, in monotonic seconds.
        limit_bytes: maximum size of a message; a single larger order is sent alone.

    Yields:
        The parts of each serialized message, in order.
    """
    parts: list[Buffer] = []
    size = 0
    for order in orders:
        added = _serialize(order, now)
        added_bytes = sum(map(len, added))
        if size and size + added_bytes > limit_bytes:
            yield parts
            parts, size = [], 0
        parts += added
        size += added_bytes
    yield parts


def _serialize(order: Order, now: float) -> list[Buffer]:
    """Return the parts of a serialized ``WorkOrders`` of one order; concatenation merges them."""
    match order:
        case RunAssignment(assignment, requests, inputs_follow):
            message = hub_pb2.Assignment(
                id=assignment.id,
                job_id=assignment.job_id,
                first=assignment.first,
                count=assignment.count,
                inputs_follow=inputs_follow,
            )
            if assignment.batch_times is not None:
                message.batch_s.extend(assignment.batch_times.by_size)
                if assignment.compute_by < math.inf:
                    message.budget_s = assignment.compute_by - now
            session = _serialised_session(assignment.engine, assignment.configuration)
            return encode_assignment(session + message.SerializeToString(), requests)
        case SendInputs(assignment_id, inputs, suspects):
            header = hub_pb2.Inputs(assignment_id=assignment_id, suspects=suspects)
            return encode_inputs(header, inputs)
        case StopAssignment(assignment_id):
            return [hub_pb2.WorkOrders(stops=[assignment_id]).SerializeToString()]


@lru_cache(maxsize=1024)
def _serialised_session(engine: EngineName, configuration: Configuration) -> bytes:
    """Return the part of a serialised ``Assignment`` that many of them share."""
    message = hub_pb2.Assignment(engine=engine, configuration=configuration_to_proto(configuration))
    return message.SerializeToString()
