"""Transport of the messages of a work stream, its in-process form, and what TCP tells of links.

Between processes a work stream runs over a ``WorkSocket``, which serialises the messages; between a
gateway and an agent in one process, over a `WorkPipe`, which passes them on as they are.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from synergai.errors import SynergaiError
from synergai.wire.rpc import log_internal_error

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable

    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_messages import Orders, Reports

    WorkMessage: TypeAlias = Orders | Reports
    """A message; neither end modifies it, or what it refers to, once it is sent."""

LEAST_BYTES: Final = 1 << 20
"""Bytes that the peer must have acknowledged: fewer show how much was sent, not what can be."""
_APP_LIMITED: Final = 7
_ACKNOWLEDGED: Final = 120
_LEAST_ROUND_TRIP: Final = 148
_DELIVERY_RATE: Final = 160
_SIZE: Final = 168
"""Offsets of fields of ``struct tcp_info``, and the size of those up to them."""
_UNKNOWN: Final = 0xFFFFFFFF


class SentOver(NamedTuple):
    """What one end of a link has learned by sending.

    Attributes:
        bytes_per_s: rate at which the peer received the last larger transfer.
        round_trip_s: the shortest of the last minutes.
    """

    bytes_per_s: float
    round_trip_s: float


class LinkMeter:
    """What is known of the link of one connection.

    A rate is that of the link only if there was always more to send. A few small messages pass
    faster than that through a link that lets bursts pass, and are no reason to forget it.
    """

    def __init__(self) -> None:
        self._known: SentOver | None = None
        self._is_of_link = False

    def measure(self, connection: socket.socket | TransportSocket) -> SentOver | None:
        """Return what is known of the link by now; None if too little was sent."""
        info = _read(connection)
        if info is None or struct.unpack_from("=Q", info, _ACKNOWLEDGED)[0] < LEAST_BYTES:
            return self._known
        (bytes_per_s,) = struct.unpack_from("=Q", info, _DELIVERY_RATE)
        round_trip_s = _round_trip_s(info)
        is_of_link = not info[_APP_LIMITED] & 1
        if bytes_per_s and round_trip_s is not None and is_of_link >= self._is_of_link:
            self._known, self._is_of_link = SentOver(float(bytes_per_s), round_trip_s), is_of_link
        return self._known


def measure_round_trip(connection: socket.socket | TransportSocket) -> float | None:
    """Return the shortest round trip of the last minutes in seconds; None if it is unknown."""
    info = _read(connection)
    return None if info is None else _round_trip_s(info)


def _read(connection: socket.socket | TransportSocket) -> bytes | None:
    if sys.platform != "linux":
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    return info if len(info) == _SIZE else None


def _round_trip_s(info: bytes) -> float | None:
    (round_trip_us,) = struct.unpack_from("=I", info, _LEAST_ROUND_TRIP)
    return None if round_trip_us == _UNKNOWN else round_trip_us * 1e-6


MessageT = TypeVar("MessageT")


class WorkTransport(Protocol):
    """One end of a work stream; `closed` holds the error unless it was closed orderly."""

    max_bytes: int
    closed: asyncio.Future[None]

    @property
    def received_bytes_per_s(self) -> float:
        """Rate at which large messages arrive; 0 if none has."""

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

    @property
    def received_bytes_per_s(self) -> float:
        """0: there is no link."""
        return 0.0

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
