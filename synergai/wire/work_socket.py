"""Work sockets: TCP connections, with TLS if the hub has it, for the messages of the work stream.

A gRPC message crosses two threads and several system calls at each end, which dominates the
gateway's overhead for short queries. Gateway and agents therefore exchange the same messages over
a socket of the event loop. Each message is a frame: its length in four bytes (little endian), then
the serialised message. The first frame is the connection id of the agent.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import time
from collections import deque
from contextlib import suppress
from functools import partial
from statistics import median_low
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.runtime.addresses import bind
from synergai.runtime.tasks import TaskBag
from synergai.wire.work_transport import LinkMeter, measure_round_trip, set_closed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_transport import MessageT, SentOver, WorkMessage

_LENGTH_BYTES: Final = 4
_BUFFER_BYTES: Final = 64 << 10
"""A larger message is copied from the buffer up to this size, and then received in its place."""
_LEAST_BYTES: Final = 64 << 10
"""Bytes of a message, behind its first ones, that tell how fast they arrive."""
_LEAST_S: Final = 0.001
"""Time that they take: in less, they were here already, and waited to be read."""
_RATES: Final = 9
"""Messages whose rates tell that of the link; several of them may have shared it with others."""
_WAKE_BYTES: Final = 64 << 10
"""Bytes of a large message that are received together: a slow link delivers each packet alone."""
_FIRST_BYTES: Final = 1 << 20
"""Memory for a large message before more of it has arrived; then it doubles."""
_JOIN_BYTES: Final = 64 << 10
"""Up to this size, copying parts into one is faster than passing them to the socket separately."""
_uninitialised = ctypes.pythonapi.PyByteArray_FromStringAndSize
"""Return a bytearray that is not zeroed, unlike ``bytearray(size)``, given None and a size."""
_uninitialised.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_uninitialised.restype = ctypes.py_object
_AUTHENTICATE_WITHIN_S: Final = 10.0
_MAX_ID_BYTES: Final = 64
MAX_UNAUTHENTICATED: Final = 128
"""Limit of sockets without a connection id; beyond it, the oldest is closed.

An agent presents its id as soon as it is connected, so the oldest is the least likely to be one,
whereas refusing the newest would let idle connections lock all agents out. The limit is above the
connections that can be accepted before their first bytes are read, and with those of the HTTP port
below 1024, the usual limit of file descriptors.
"""
_BACKLOG: Final = 100
_ACCEPT_AGAIN_S: Final = 0.5
"""Pause after a connection could not be accepted, such as for want of file descriptors."""

_log = logging.getLogger(__name__)


class WorkSocket(asyncio.BufferedProtocol):
    """One end of a work socket.

    Small messages are copied out of the receive buffer; a large one is received into memory of its
    own, of which decoded messages may keep views. That memory grows with the bytes that arrive, so
    that an announced length costs nothing. The buffer is small while `max_bytes` is, so that a peer
    that has not introduced itself costs little.

    Args:
        on_message: called with each message: bytes, or a view that may be kept. A `SynergaiError`
            or a `DecodeError` of protobuf raised by it closes the socket.

    Attributes:
        closed: done when the socket is closed; holds the error unless the peer closed it orderly.
    """

    def __init__(self, on_message: Callable[[Buffer], None], max_bytes: int) -> None:
        self.on_message = on_message
        self.max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.received_bytes = 0
        self._transport: asyncio.Transport | None = None  # until the TLS handshake is done
        self._finished = False
        self._link = LinkMeter()
        self._outgoing: list[Buffer] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._buffer = memoryview(b"")
        self._buffered = 0
        self._large: memoryview | None = None
        self._large_bytes = 0
        self._large_received = 0
        # Of the large message: when its first bytes were read, and how many these were.
        self._large_begun = (0.0, 0)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._wake_bytes = 1

    def listen(
        self, decode: Callable[[Buffer], MessageT], on_message: Callable[[MessageT], None]
    ) -> None:
        self.on_message = lambda data: on_message(decode(data))

    # --- sending ----------------------------------------------------------------------------

    def send_message(self, message: WorkMessage) -> None:
        """Serialise and send `message`; do nothing if the socket is finished or closed."""
        self.send(message.encode())

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send `parts` as one message; do nothing if the socket is finished or closed.

        Messages of one turn of the event loop are written together, as each write wakes the peer.
        """
        if self._transport is None or self._finished or self.closed.done():
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        size = sum(map(len, parts))
        self._outgoing += (size.to_bytes(_LENGTH_BYTES, "little"), *parts)

    async def drain(self) -> None:
        """Wait until the send buffer has room, or the socket is closed."""
        self._flush()
        await self._writable.wait()

    def measure_link(self) -> SentOver | None:
        """Return what is known of the link to the peer; None if that is nothing."""
        if self._transport is None or self.closed.done():
            return None
        return self._link.measure(self._transport.get_extra_info("socket"))

    @property
    def received_bytes_per_s(self) -> float:
        """Rate at which large messages arrive; 0 if none has.

        That is the median of the last ones: one may have waited here, or shared the link.
        """
        return median_low(self._rates) if self._rates else 0.0

    def measure_round_trip(self) -> float | None:
        """Return the shortest round trip to the peer in seconds; None if it is unknown."""
        if self._transport is None or self.closed.done():
            return None
        return measure_round_trip(self._transport.get_extra_info("socket"))

    def finish(self) -> None:
        """Send nothing more; `closed` is done once the peer has read everything."""
        if self._transport is None or self._finished or self.closed.done():
            return
        self._flush()
        self._finished = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            # TLS has no half-closed state: this flushes, then waits for the peer to close as well.
            self._transport.close()

    def close(self, error: SynergaiError | None = None) -> None:
        """Close the socket at once, with `error` as the reason if given.

        Unsent data is dropped: the peer may never read it.
        """
        self._set_closed(error)
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.BufferedProtocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; abort it if the socket was closed during the TLS handshake."""
        self._transport = cast("asyncio.Transport", transport)
        if self.closed.done():
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Mark the socket as closed, and free what it was receiving."""
        self._large, self._buffer, self._buffered = None, memoryview(b""), 0
        self._set_closed(None if error is None else Unavailable("the work socket was lost"))

    def eof_received(self) -> None:
        """Mark the socket as closed; asyncio flushes the send buffer."""
        self._set_closed(None)

    def pause_writing(self) -> None:
        """Block `drain`: the send buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `drain`, and measure the link while there is more to send."""
        self._writable.set()
        self.measure_link()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Return where to store the next received bytes."""
        if self._large is not None:
            return self._large[self._large_received :]
        if len(self._buffer) < (wanted := min(_BUFFER_BYTES, 2 * self.max_bytes)):
            buffer = memoryview(bytearray(wanted))
            buffer[: self._buffered] = self._buffer[: self._buffered]
            self._buffer = buffer
        return self._buffer[self._buffered :]

    def buffer_updated(self, count: int) -> None:
        """Process `count` newly received bytes."""
        self.received_bytes += count
        if self._large is None:
            self._buffered += count
            self._parse_frames()
            return
        self._large_received += count
        # Not the last ones, as TLS may hold some of them back already.
        if self._wake_bytes > 1 and self._large_bytes - self._large_received <= 2 * _WAKE_BYTES:
            self._wake_after(1)
        if self._large_received == self._large_bytes:
            message, self._large = self._large, None
            self._note_rate()
            self._deliver(message)
        elif self._large_received == len(self._large):
            self._resize_large(2 * len(self._large), self._large)

    def _flush(self) -> None:
        parts, self._outgoing = self._outgoing, []
        if not parts or self._transport is None or self.closed.done():
            return
        if sum(map(len, parts)) <= _JOIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def _parse_frames(self) -> None:
        buffer, position, end = self._buffer, 0, self._buffered
        while (start := position + _LENGTH_BYTES) <= end and not self.closed.done():
            size = int.from_bytes(buffer[position:start], "little")
            if size > self.max_bytes:
                self.close(
                    InvalidInput(
                        f"received a message of {size:,} bytes on a work socket; "
                        f"the limit is {self.max_bytes:,}"
                    )
                )
                return
            if start + size > end:
                if size > len(buffer) - _LENGTH_BYTES:
                    self._begin_large(size, buffer[start:end])
                    self._buffered = 0
                    return
                break
            position = start + size
            self._deliver(bytes(buffer[start:position]))
        if position == end:
            self._buffered = 0
        elif position:
            rest = bytes(buffer[position:end])
            buffer[: len(rest)] = rest
            self._buffered = len(rest)

    def _begin_large(self, size: int, received: memoryview) -> None:
        """Receive the rest of a message that is larger than the buffer."""
        self._large_bytes, self._large_received = size, len(received)
        self._large_begun = time.monotonic(), len(received)
        self._resize_large(max(_FIRST_BYTES, 2 * len(received)), received)
        if size - len(received) > 2 * _WAKE_BYTES:
            self._wake_after(_WAKE_BYTES)

    def _note_rate(self) -> None:
        """Note the rate at which the large message has arrived behind its first bytes."""
        begun_at, first = self._large_begun
        rest, seconds = self._large_bytes - first, time.monotonic() - begun_at
        if rest >= _LEAST_BYTES and seconds >= _LEAST_S:
            self._rates.append(rest / seconds)

    def _wake_after(self, size: int) -> None:
        """Let the kernel wake this process once so many bytes have arrived."""
        self._wake_bytes = size
        if self._transport is not None:
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _resize_large(self, size: int, received: memoryview) -> None:
        """Allocate memory for the large message, at most `size`, and copy what has arrived.

        It is overwritten by the message before anyone reads it.
        """
        self._large = memoryview(_uninitialised(None, min(size, self._large_bytes)))
        self._large[: len(received)] = received

    def _deliver(self, message: Buffer) -> None:
        try:
            self.on_message(message)
        except SynergaiError as error:
            self.close(error)
        except DecodeError:
            self.close(InvalidInput("received data that is not a message of the work stream"))

    def _set_closed(self, error: SynergaiError | None) -> None:
        self._writable.set()
        set_closed(self.closed, error)


class WorkSocketServer:
    """Server that accepts work sockets.

    `on_authenticated` takes over a socket with the id that it presented. If it raises a
    `SynergaiError`, the socket is closed. `setting` is the option for the port.
    """

    def __init__(
        self,
        on_authenticated: Callable[[str, WorkSocket], None],
        tls: ssl.SSLContext | None = None,
        *,
        setting: str = "--work-port",
    ) -> None:
        self._setting = setting
        self._on_authenticated = on_authenticated
        self._servers: list[asyncio.Server] = []
        self._listener = (
            None if tls is None else _TlsListener(self._accept, tls, _AUTHENTICATE_WITHIN_S)
        )
        self._sockets: set[WorkSocket] = set()
        self._unauthenticated: dict[WorkSocket, None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen on `port`, or on a free one if it is 0; return the port."""
        try:
            sockets = bind(f"{host}:{port}")
        except Unavailable as error:
            raise Unavailable(f"{error} with {self._setting}") from None
        if self._listener is not None:
            self._listener.start(sockets)
        else:
            loop = asyncio.get_running_loop()
            for each in sockets:
                self._servers.append(await loop.create_server(self._accept, sock=each))
        bound: int = sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        for server in self._servers:
            server.close()
        for each in list(self._sockets):
            each.close()
        for server in self._servers:
            await server.wait_closed()

    def _accept(self) -> WorkSocket:
        """Return the protocol of a new socket, which must present a connection id in time."""

        def on_id(connection_id: Buffer) -> None:
            timer.cancel()
            self._unauthenticated.pop(accepted, None)
            self._on_authenticated(bytes(connection_id).decode("ascii", "replace"), accepted)

        def on_timeout() -> None:
            accepted.close(InvalidInput(f"no connection id within {_AUTHENTICATE_WITHIN_S:g} s"))

        def on_ended(_: asyncio.Future[None]) -> None:
            timer.cancel()
            self._sockets.discard(accepted)
            self._unauthenticated.pop(accepted, None)

        accepted = WorkSocket(on_id, _MAX_ID_BYTES)
        timer = asyncio.get_running_loop().call_later(_AUTHENTICATE_WITHIN_S, on_timeout)
        accepted.closed.add_done_callback(on_ended)
        self._sockets.add(accepted)
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.close(Unavailable("too many work sockets have no connection id"))
        self._unauthenticated[accepted] = None
        return accepted


class _TlsListener:
    """Accepts TLS connections, whose handshakes end when their protocols are closed."""

    def __init__(
        self, make: Callable[[], WorkSocket], tls: ssl.SSLContext, handshake_timeout_s: float
    ) -> None:
        self._make = make
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._listeners: list[socket.socket] = []
        self._tasks = TaskBag()

    def start(self, sockets: list[socket.socket]) -> None:
        self._listeners = sockets
        for listener in sockets:
            listener.setblocking(False)
            listener.listen(_BACKLOG)
            self._tasks.start(self._accept(listener))

    async def close(self) -> None:
        """Stop listening, and end the handshakes."""
        await self._tasks.close()
        self._close_listeners()

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("cannot accept a work socket: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            protocol = self._make()
            handshake = self._tasks.start(self._shake_hands(protocol, connection))
            protocol.closed.add_done_callback(partial(_end, handshake))

    async def _shake_hands(self, protocol: WorkSocket, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Failed handshakes are routine: a port scan, or a certificate that has expired.
            with suppress(OSError):
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._handshake_timeout_s,
                )
                return
            protocol.close()
        except asyncio.CancelledError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise


def _end(handshake: asyncio.Task[None], _closed: asyncio.Future[None]) -> None:
    handshake.cancel()
