"""Orders to an agent, put into messages of the work stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.fleet.worker import Halt, Run
from synergai.protocol.converters import configuration_to_proto
from synergai.protocol.work_messages import encode_assignment
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.fleet.worker import Order
    from synergai.protocol.request_codec import Buffer


def pack(orders: Sequence[Order], now: float, limit_bytes: int) -> Iterator[list[Buffer]]:
    """As few serialised ``WorkOrders`` as their bound allows, each in parts, in order.

    Args:
        orders: what to do.
        now: what is left of a budget is told as of then.
        limit_bytes: the largest message, unless a single order is larger.
    """
    parts: list[Buffer] = []
    size = 0
    for order in orders:
        added = _serialised(order, now)
        added_bytes = sum(map(len, added))
        if size and size + added_bytes > limit_bytes:
            yield parts
            parts, size = [], 0
        parts += added
        size += added_bytes
    yield parts


def _serialised(order: Order, now: float) -> list[Buffer]:
    """The parts of a serialised ``WorkOrders`` of one order; such messages merge by following."""
    match order:
        case Run(assignment, requests):
            message = hub_pb2.Assignment(
                id=assignment.id,
                job_id=assignment.job_id,
                engine=assignment.engine,
                configuration=configuration_to_proto(assignment.configuration),
                first=assignment.first,
                count=assignment.count,
            )
            if assignment.batch_times is not None:
                message.batch_s.extend(assignment.batch_times.by_size)
                if assignment.compute_by < math.inf:
                    message.budget_s = assignment.compute_by - now
            return encode_assignment(message, requests)
        case Halt(assignment_id):
            return [hub_pb2.WorkOrders(stops=[assignment_id]).SerializeToString()]
