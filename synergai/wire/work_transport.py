"""Transport of the messages of a work stream, and its in-process form.

Between processes a work stream runs over a ``WorkSocket``, which serialises the messages; between a
gateway and an agent in one process, over a `WorkPipe`, which passes them on as they are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from synergai.errors import SynergaiError
from synergai.wire.rpc import log_internal_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.wire.request_codec import Buffer
    from synergai.wire.tcp_info import SentOver
    from synergai.wire.work_messages import Orders, Reports

    WorkMessage: TypeAlias = Orders | Reports
    """A message; neither end modifies it, or what it refers to, once it is sent."""

MessageT = TypeVar("MessageT")


class WorkTransport(Protocol):
    """One end of a work stream; `closed` holds the error unless it was closed orderly."""

    max_bytes: int
    closed: asyncio.Future[None]

    def listen(
        self, decode: Callable[[Buffer], MessageT], on_message: Callable[[MessageT], None]
    ) -> None:
        """Pass received messages to `on_message`.

        A `SynergaiError` raised by either function closes the transport.
        """

    def send_message(self, message: WorkMessage) -> None:
        """Send `message`; do nothing if the transport is finished or closed.

        The peer answers in a later turn of the event loop: the dispatcher sends orders while it
        executes the core's commands.
        """

    async def drain(self) -> None:
        """Wait until there is room for another message, or the transport is closed."""

    def measure_link(self) -> SentOver | None:
        """Return what is known of the link to the peer; None if that is nothing."""

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

    Sending a message calls the other end's receiver, so there is nothing to wait for, and the size
    limit has no use. What an end sends while it is receiving follows in the next turn of the event
    loop, since the other end is still occupied with its own message. Created by `open_pipe`.
    """

    def __init__(self) -> None:
        # Each end receives what the other one sends, whose type a pipe does not know.
        self._on_message: Callable[[Any], None] = _drop
        self.max_bytes = 0
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._receiving = False
        self._waiting: deque[WorkMessage] = deque()
        self.peer: WorkPipe

    def listen(
        self,
        decode: Callable[[Buffer], MessageT],  # noqa: ARG002 - nothing is serialised
        on_message: Callable[[MessageT], None],
    ) -> None:
        """Pass messages to `on_message` from now on."""
        self._on_message = on_message

    def send_message(self, message: WorkMessage) -> None:
        """Pass `message` to the other end, which drops it if it does not listen yet."""
        if self._receiving or self._waiting:
            self._waiting.append(message)
            self._loop.call_soon(self._send_next)
        else:
            self.peer.receive(message)

    def receive(self, message: WorkMessage) -> None:
        """Handle a message of the other end."""
        if self.closed.done():
            return
        self._receiving = True
        try:
            self._on_message(message)
        except SynergaiError as error:
            self.close(error)
        except Exception:  # noqa: BLE001 - a bug at one end must not end what the other one does
            self.close(log_internal_error("the work stream"))
        finally:
            self._receiving = False

    def _send_next(self) -> None:
        self.peer.receive(self._waiting.popleft())

    async def drain(self) -> None:
        """Return at once: the message has been received."""

    def measure_link(self) -> None:
        """Return None: there is no link."""

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


def _drop(_message: object) -> None:
    """Receive a message before anything listens."""


def open_pipe() -> tuple[WorkPipe, WorkPipe]:
    """Return the two ends of a new pipe."""
    one, other = WorkPipe(), WorkPipe()
    one.peer, other.peer = other, one
    return one, other
