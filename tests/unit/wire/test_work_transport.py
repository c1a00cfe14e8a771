"""Pipes pass messages within a process, and close at both ends."""

import asyncio
from collections.abc import Callable

import pytest

from synergai.errors import InternalError, InvalidInput, Unavailable
from synergai.v1 import hub_pb2
from synergai.wire.work_messages import Orders, Reports, decode_orders, decode_reports
from synergai.wire.work_transport import WorkPipe, open_pipe

ORDERS, REPORTS = Orders(stops=[7]), Reports()


def listening(
    here: Callable[[Reports], None], there: Callable[[Orders], None]
) -> tuple[WorkPipe, WorkPipe]:
    """Return the gateway's and the agent's end of a pipe."""
    one, other = open_pipe()
    one.listen(decode_reports, here)
    other.listen(decode_orders, there)
    return one, other


def ignore(_message: object) -> None:
    """Receive messages that do not matter."""


async def test_message_arrives_as_it_is_at_the_other_end() -> None:
    here: list[Reports] = []
    there: list[Orders] = []
    one, other = listening(here.append, there.append)
    one.send_message(ORDERS)
    await one.drain()
    other.send_message(REPORTS)
    assert here[0] is REPORTS
    assert there[0] is ORDERS
    assert not one.closed.done()
    assert not other.closed.done()


async def test_receiver_that_is_set_later_gets_the_messages_from_then_on() -> None:
    one, other = open_pipe()
    received: list[Orders] = []
    one.send_message(Orders())
    other.listen(decode_orders, received.append)
    one.send_message(ORDERS)
    assert received == [ORDERS]


async def test_error_is_the_reason_only_at_the_end_that_closes() -> None:
    one, other = open_pipe()
    one.close(Unavailable("the gateway is stopping"))
    with pytest.raises(Unavailable, match="the gateway is stopping"):
        await one.closed
    await other.closed


async def test_first_reason_to_close_is_kept() -> None:
    one, other = open_pipe()
    one.close()
    one.close(Unavailable("too late"))
    other.close(Unavailable("too late"))
    await one.closed
    await other.closed


async def test_finishing_closes_both_ends_orderly() -> None:
    one, other = open_pipe()
    one.finish()
    await one.closed
    await other.closed


async def test_receiver_that_raises_closes_the_pipe_with_its_error() -> None:
    def refuse(_message: object) -> None:
        raise InvalidInput("no such order")

    one, other = listening(ignore, refuse)
    one.send_message(ORDERS)
    await one.closed
    with pytest.raises(InvalidInput, match="no such order"):
        await other.closed


async def test_bug_of_the_receiver_closes_the_pipe_and_does_not_reach_the_sender() -> None:
    def fail(_message: object) -> None:
        raise ZeroDivisionError

    one, other = listening(ignore, fail)
    one.send_message(ORDERS)
    await one.closed
    with pytest.raises(InternalError):
        await other.closed


async def test_what_a_receiver_sends_arrives_in_order_once_the_sender_is_done() -> None:
    arrived: list[Reports] = []

    def report(_message: object) -> None:
        other.send_message(REPORTS)

    one, other = listening(arrived.append, report)
    last = Reports(started=[hub_pb2.Started()])
    one.send_message(ORDERS)
    other.send_message(last)
    assert arrived == []
    await asyncio.sleep(0)
    assert arrived == [REPORTS, last]


@pytest.mark.parametrize("closing_end", [0, 1])
async def test_nothing_is_sent_once_either_end_is_closed(closing_end: int) -> None:
    received: list[object] = []
    ends = listening(received.append, received.append)
    ends[closing_end].close()
    for end in ends:
        end.send_message(ORDERS)
        await end.drain()
    assert received == []
