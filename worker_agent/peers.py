"""Connections to the peer ports of other agents."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.tasks import TaskBag
from synergai.wire.work_socket import WorkSocket

if TYPE_CHECKING:
    from synergai.v1.hub_pb2 import Pull
    from synergai.wire.request_codec import Buffer

_DIAL_S: Final = 2.0
STALLED_S: Final = 2.0
"""Time without a byte after which a pull has stalled."""
_AVOIDED_S: Final = 5.0
"""Time for which an address is not tried again after it could not be reached, or a stall."""
MOST_PULLS: Final = 16
"""Pulls that wait for their answers on one connection."""
MOST_LINKS: Final = 256
"""Links that are remembered, those that were used last; the gateway refuses more than 1024."""
_LEAST_BYTES: Final = 64 << 10
"""Of smaller transfers, the time is that of their round trip."""
_WEIGHT: Final = 0.25
"""Of the latest transfer in the rate of a link."""


class MeasuredLink(NamedTuple):
    """What is known of the link from another worker."""

    bytes_per_s: float
    round_trip_s: float


class Peers:
    """Pulls tensors from other agents.

    Attributes:
        links: from the workers that tensors were pulled from, by worker, the latest last.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._connections: dict[tuple[str, bytes], asyncio.Future[_Connection]] = {}
        self._avoided_until: dict[str, float] = {}
        self._tasks = TaskBag()
        self.links: dict[str, MeasuredLink] = {}

    async def close(self) -> None:
        await self._tasks.close()

    async def pull(self, pull: Pull, address: str) -> Buffer | None:
        """Return tensors from an address, empty if they are gone; None if it cannot be reached.

        A pull from an address that has failed lately gets None at once, and starts a new attempt in
        the background.
        """
        if address not in self._avoided_until:
            return await self._pull(pull, address)
        if self._avoided_until[address] <= time.monotonic():
            self._avoid(address)
            self._tasks.start(self._pull(pull, address))
        return None

    async def _pull(self, pull: Pull, address: str) -> Buffer | None:
        try:
            connection = await self._connect(address, pull.certificate)
            contents, bytes_per_s = await connection.pull(pull.token)
        except SynergaiError:
            return None
        except OSError:
            self._avoid(address)
            return None
        self._avoided_until.pop(address, None)
        if len(contents) >= _LEAST_BYTES:
            before = self.links.pop(pull.worker_id, None)
            if before is not None:
                bytes_per_s = before.bytes_per_s + _WEIGHT * (bytes_per_s - before.bytes_per_s)
            self.links[pull.worker_id] = MeasuredLink(bytes_per_s, connection.round_trip_s)
            if len(self.links) > MOST_LINKS:
                del self.links[next(iter(self.links))]
        return contents

    def _avoid(self, address: str) -> None:
        self._avoided_until[address] = time.monotonic() + _AVOIDED_S

    async def _connect(self, address: str, certificate: bytes) -> _Connection:
        """Return the connection to an address, which is opened if there is none."""
        key = address, certificate
        if key not in self._connections:
            self._connections[key] = asyncio.get_running_loop().create_future()
            self._tasks.start(self._keep(key, self._connections[key]))
        # Not cancelled with the pull: others wait for it, too.
        return await asyncio.shield(self._connections[key])

    async def _keep(self, key: tuple[str, bytes], opened: asyncio.Future[_Connection]) -> None:
        """Open a connection, and keep it until it is closed."""
        try:
            address, certificate = key
            connection = await _Connection.open(address, certificate, self._max_message_bytes)
            opened.set_result(connection)
            try:
                await asyncio.wait([connection.closed])
            finally:
                connection.close()
        except Exception as error:  # noqa: BLE001 - it is one of the pulls
            opened.set_exception(error)
            opened.exception()  # mark as retrieved: the pull may have been cancelled
        finally:
            opened.cancel()
            del self._connections[key]


class _Connection:
    """A connection to a peer port, which answers in the order of the pulls."""

    def __init__(self, max_message_bytes: int) -> None:
        self.socket = WorkSocket(self._on_answer, max_message_bytes)
        self.closed = self.socket.closed
        self.round_trip_s = 0.0
        self._room = asyncio.Semaphore(MOST_PULLS)
        self._waiting: deque[tuple[str, float, asyncio.Future[tuple[Buffer, float]]]] = deque()
        self._answered_at = 0.0
        self.closed.add_done_callback(self._on_closed)

    @classmethod
    async def open(cls, address: str, certificate: bytes, max_message_bytes: int) -> _Connection:
        """Dial an address; with a certificate, it must be the one that the agent presents."""
        host, _, port = address.rpartition(":")
        connection = cls(max_message_bytes)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_DIAL_S):
            transport, _ = await loop.create_connection(
                lambda: connection.socket,
                host.strip("[]"),
                int(port),
                ssl=_pinning_context() if certificate else None,
            )
        if certificate:
            presented = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if sha256(presented).digest() != certificate:
                connection.close()
                raise ConnectionRefusedError(f"{address} presents another certificate")
        return connection

    def close(self) -> None:
        self.socket.close()

    async def pull(self, token: str) -> tuple[Buffer, float]:
        """Return tensors, and the bytes per second that they came with."""
        async with self._room:
            if self.closed.done():
                raise Unavailable("the connection is closed")
            answer = asyncio.get_running_loop().create_future()
            sent_at, received = time.monotonic(), self.socket.received_bytes
            self._waiting.append((token, sent_at, answer))
            self.socket.send((token.encode(),))
            try:
                while not (await asyncio.wait([answer], timeout=STALLED_S))[0]:
                    if self.socket.received_bytes == received:
                        self.close()
                        raise TimeoutError("a pull has stalled")
                    received = self.socket.received_bytes
                found: tuple[Buffer, float] = answer.result()
                return found
            finally:
                answer.cancel()

    def _on_answer(self, data: Buffer) -> None:
        if not self._waiting:
            self.close()
            return
        token, sent_at, answer = self._waiting.popleft()
        view = memoryview(data)
        if bytes(view[: len(token)]) != token.encode():
            self.close()
            return
        now = time.monotonic()
        seconds = now - max(sent_at, self._answered_at)
        if sent_at >= self._answered_at:
            self.round_trip_s = self.socket.measure_round_trip() or self.round_trip_s
            seconds -= self.round_trip_s
        self._answered_at = now
        if not answer.done():
            contents = view[len(token) :]
            answer.set_result((contents, len(contents) / max(seconds, 1e-6)))

    def _on_closed(self, _closed: asyncio.Future[None]) -> None:
        for _, _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(Unavailable("the connection was closed"))
        self._waiting.clear()


def _pinning_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate: its digest is compared instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
