"""Transport of the messages of a work stream, and its in-process form.

Between processes a work stream runs over a ``WorkSocket``; between a gateway and an agent in one
process, over a `WorkPipe`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.protocol.request_codec import Buffer


class WorkTransport(Protocol):
    """One end of a work stream.

    Attributes:
        on_message: called with each message: bytes, or a view that may be kept. A `SynergaiError`
            raised by it closes the transport.
        max_bytes: size limit of received messages.
        closed: done when the transport is closed; holds the error unless it was closed orderly.
    """

    on_message: Callable[[Buffer], None]
    max_bytes: int
    closed: asyncio.Future[None]

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send `parts` as one message; do nothing if it is finished or closed.

        The peer answers in a later turn of the event loop: the dispatcher sends orders while it
        executes the core's commands.
        """

    async def drain(self) -> None:
        """Wait until there is room for another message, or the transport is closed."""

    def finish(self) -> None:
        """Send nothing more; `closed` is done once the peer has read everything."""

    def close(self, error: SynergaiError | None = None) -> None:
        """Close the transport at once, with `error` as the reason if given."""


def set_closed(closed: asyncio.Future[None], error: SynergaiError | None) -> None:
    """Complete the `closed` future of a transport, with `error` if given; idempotent."""
    if closed.done():
        return
    if error is None:
        closed.set_result(None)
    else:
        closed.set_exception(error)
        closed.exception()  # mark as retrieved: the owner may not look at it


class WorkPipe:
    """One end of a work stream within a process; implements `WorkTransport`.

    Sending a message calls the other end's `on_message`, so there is nothing to wait for, and the
    size limit has no use. Created by `open_pipe`.
    """

    def __init__(self, on_message: Callable[[Buffer], None]) -> None:
        self.on_message = on_message
        self.max_bytes = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.peer: WorkPipe

    def send(self, parts: Sequence[Buffer]) -> None:
        """Pass `parts`, joined, to the other end."""
        if self.closed.done():
            return
        try:
            self.peer.on_message(b"".join(parts))
        except SynergaiError as error:
            self.peer.close(error)

    async def drain(self) -> None:
        """Return at once: the message has been received."""

    def finish(self) -> None:
        """Close both ends: everything has been received."""
        self.close()

    def close(self, error: SynergaiError | None = None) -> None:
        """Close both ends; `error` is the reason at this one."""
        self.set_closed(error)
        self.peer.set_closed(None)

    def set_closed(self, error: SynergaiError | None) -> None:
        """Mark this end as closed."""
        set_closed(self.closed, error)


def open_pipe(
    on_message: Callable[[Buffer], None], peer_on_message: Callable[[Buffer], None]
) -> tuple[WorkPipe, WorkPipe]:
    """Return the two ends of a new pipe, which call `on_message` and `peer_on_message`."""
    one, other = WorkPipe(on_message), WorkPipe(peer_on_message)
    one.peer, other.peer = other, one
    return one, other
