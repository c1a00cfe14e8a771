"""HTTP connections with limits on their number, on request heads, and on the time without progress.

uvicorn limits neither the time to send a head nor, with httptools, its size, waits for ever for a
client that does not read its response, tells only the last of several pipelined requests that the
client is gone, and closes a connection at once on which a body still arrives, which loses the
response: the system answers the rest of the body with a reset.
"""

from __future__ import annotations

from collections import Counter, deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.calls.http.bodies import MIN_BYTES_PER_S
from gateway.entry.call_guard import PEER
from synergai.wire.server_call import SocketPeer

if TYPE_CHECKING:
    import asyncio

    from synergai.wire.memory_bounds import UnreadResponses

MAX_CONNECTIONS: Final = 512
"""Connections that may send any request. Each takes a file descriptor; where the hard limit of them
is 1024, agents and gRPC clients have to share the rest."""
RESERVED_CONNECTIONS: Final = 32
"""Connections beyond them, for health checks and metrics only."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Limit on a request line and its headers. A head that arrives in one piece may exceed it."""
MAX_PIPELINED: Final = 32
"""Unanswered requests per connection: one read may hold a thousand small ones, each of which takes
kilobytes until it is answered."""
IDLE_S: Final = 10.0
"""Time to send a head. A response has to be read at `MIN_BYTES_PER_S` on average over this time."""
LINGER_S: Final = 30.0
"""Longest time for which the rest of a body is received and dropped, for its client to read the
response."""
YIELD_AFTER_S: Final = 0.2
"""Time after which a connection without a complete request may have to give way to a new one."""
SURPLUS: Final = "surplus"
"""Key of the request's state: true if the connection is one of the reserved ones."""


class TooManyPipelined(Exception):
    """A client sends more requests than it may before it gets responses."""


class _Transport:
    """A connection's transport, as uvicorn sees it: `close` closes it in the connection's way."""

    def __init__(self, connection: LimitedConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self.write = transport.write
        self.close = connection.close

    def is_closing(self) -> bool:
        return self._connection.lingers or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection with these limits.

    Attributes:
        waiting_since: when it began to wait for a request.
        lingers: it only waits for its client to read the last response.
    """

    _surplus = False
    _accepted: asyncio.Transport
    _peer: SocketPeer
    _in_head = False
    _in_body = False
    _head_bytes = 0
    waiting_since = 0.0
    lingers = False
    _message_ended = False
    _refusal: tuple[HTTPStatus, str] | None = None
    _idle: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def __init__(self, unread: UnreadResponses, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unread = unread.open(lambda _: self.transport.abort())
        self._unfinished: deque[RequestResponseCycle] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(cast("asyncio.Transport", _Transport(self, transport)))
        self._accepted = transport
        self._peer = SocketPeer(transport)
        self.waiting_since = self.loop.time()
        count = len(self.connections)
        if count > MAX_CONNECTIONS and self._make_room():
            count -= 1
        self._surplus = count > MAX_CONNECTIONS
        if count > MAX_CONNECTIONS + RESERVED_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_head(IDLE_S)

    def _make_room(self) -> bool:
        """Close the connection whose request has been incomplete for longest, if for long enough.

        Of the clients, the one with the most such connections loses one. Return whether there was
        one.
        """
        before = self.loop.time() - YIELD_AFTER_S
        others = [each for each in self.connections if isinstance(each, LimitedConnection)]
        waiting = [
            each for each in others if each.waiting_since < before and not each.has_complete_request
        ]
        if not waiting:
            return False
        peers = Counter(each.host for each in waiting)
        oldest = min(waiting, key=lambda each: (-peers[each.host], each.waiting_since))
        oldest.give_way()
        return True

    def give_way(self) -> None:
        """Close the connection, in order if it is idle."""
        self.connections.discard(self)
        if self._in_head or self._in_body:
            self.transport.abort()
        else:
            self.transport.close()

    @property
    def has_complete_request(self) -> bool:
        """Whether the client awaits a response."""
        return any(not cycle.more_body for cycle in self._unfinished)

    @property
    def host(self) -> str:
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all requests that the client is gone."""
        self._stop_waiting()
        self._stop_watching()
        self._unread.close()
        for cycle in self._unfinished:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        # uvicorn does this only if the client has closed it in order. The timer keeps the
        # connection in memory.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.lingers:
            return
        self._message_ended = False
        super().data_received(data)
        if self._in_head and not self._head_bytes and not self._unfinished:
            self._wait_for_head(IDLE_S)
        # Data in which a message ended may have its whole body, so it does not count for a head
        # that begins after it.
        if self._in_head and not self._message_ended:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the request's head is larger than {MAX_HEAD_BYTES:,} bytes, the limit",
                )

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP; the override makes it a JSON error."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        state: dict[str, Any] = self.scope["state"]
        state[SURPLUS] = self._surplus
        state[PEER] = self._peer

    def on_headers_complete(self) -> None:
        """Handle a request whose head is complete."""
        if len(self._unfinished) >= MAX_PIPELINED:
            self._refuse(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_PIPELINED} requests of this connection are unanswered, the limit; wait",
            )
            raise TooManyPipelined
        self._in_head, self._in_body = False, True
        self._stop_waiting()
        super().on_headers_complete()
        self._unfinished.append(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._message_ended = True

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it was sent already."""
        self._unfinished.popleft()
        self.waiting_since = self.loop.time()
        super().on_response_complete()
        if self.cycle.response_complete and not self.lingers:
            self._wait_for_head(IDLE_S if self._in_head else self.timeout_keep_alive)
        self._send_refusal()

    def close(self) -> None:
        """Close the connection, once its client has read what was sent if it still sends."""
        if self.transport.is_closing() or not (self._in_body or self._refusal):
            self._accepted.close()
            return
        self.lingers = True
        if self._accepted.can_write_eof():
            self._accepted.write_eof()
        self.flow.resume_reading()
        self._stop_waiting()
        self._idle = self.loop.call_later(LINGER_S, self._accepted.abort)

    def pause_writing(self) -> None:
        """Watch whether the client reads, as its send buffer is full."""
        super().pause_writing()
        self._unread.add(self.transport.get_write_buffer_size())
        self._watch_sending()

    def resume_writing(self) -> None:
        self._stop_watching()
        self._unread.remove(self._unread.bytes)
        super().resume_writing()

    def _watch_sending(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(IDLE_S, self._on_stalled, unsent)

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _on_stalled(self, unsent: int) -> None:
        sent = unsent - self.transport.get_write_buffer_size()
        if sent >= MIN_BYTES_PER_S * IDLE_S:
            self._watch_sending()
        else:
            self.transport.abort()

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Respond without the application, and close the connection."""
        if self._refusal is None:
            self._refusal = status, text
            self._send_refusal()

    def _send_refusal(self) -> None:
        if self._refusal is None or self.has_complete_request or self.transport.is_closing():
            return
        status, text = self._refusal
        body = msgspec.json.encode({"error": text})
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _wait_for_head(self, seconds: float) -> None:
        self._stop_waiting()
        self._idle = self.loop.call_later(seconds, self._on_idle)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _on_idle(self) -> None:
        if self.transport.get_write_buffer_size() == 0:
            self.transport.close()
        elif self._stalled is not None:  # the client is still to read a large response
            self._wait_for_head(IDLE_S)
        else:
            self.transport.abort()
