"""Pipes pass messages within a process, and close at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.work_transport import open_pipe

if TYPE_CHECKING:
    from synergai.protocol.request_codec import Buffer


def ignore(_message: Buffer) -> None:
    """Receive messages that do not matter."""


async def test_message_arrives_whole_at_the_other_end() -> None:
    here: list[Buffer] = []
    there: list[Buffer] = []
    one, other = open_pipe(here.append, there.append)
    one.send([b"a", memoryview(b"b")])
    one.send([])
    await one.drain()
    other.send([b"c"])
    assert (here, there) == ([b"c"], [b"ab", b""])
    assert not one.closed.done()
    assert not other.closed.done()


async def test_receiver_that_is_set_later_gets_the_messages_from_then_on() -> None:
    one, other = open_pipe(ignore, ignore)
    received: list[Buffer] = []
    one.send([b"lost"])
    other.on_message = received.append
    one.send([b"kept"])
    assert received == [b"kept"]


async def test_error_is_the_reason_only_at_the_end_that_closes() -> None:
    one, other = open_pipe(ignore, ignore)
    one.close(Unavailable("the gateway is stopping"))
    with pytest.raises(Unavailable, match="the gateway is stopping"):
        await one.closed
    await other.closed


async def test_first_reason_to_close_is_kept() -> None:
    one, other = open_pipe(ignore, ignore)
    one.close()
    one.close(Unavailable("too late"))
    other.close(Unavailable("too late"))
    await one.closed
    await other.closed


async def test_finishing_closes_both_ends_orderly() -> None:
    one, other = open_pipe(ignore, ignore)
    one.finish()
    await one.closed
    await other.closed


async def test_receiver_that_raises_closes_the_pipe_with_its_error() -> None:
    def refuse(_message: Buffer) -> None:
        raise InvalidInput("no such order")

    one, other = open_pipe(ignore, refuse)
    one.send([b"order"])
    await one.closed
    with pytest.raises(InvalidInput, match="no such order"):
        await other.closed


async def test_error_that_is_no_fault_of_the_message_reaches_the_sender() -> None:
    def fail(_message: Buffer) -> None:
        raise ZeroDivisionError

    one, other = open_pipe(ignore, fail)
    with pytest.raises(ZeroDivisionError):
        one.send([b"order"])
    assert not one.closed.done()
    assert not other.closed.done()


@pytest.mark.parametrize("closing_end", [0, 1])
async def test_nothing_is_sent_once_either_end_is_closed(closing_end: int) -> None:
    received: list[Buffer] = []
    ends = open_pipe(received.append, received.append)
    ends[closing_end].close()
    for end in ends:
        end.send([b"late"])
        await end.drain()
    assert received == []
