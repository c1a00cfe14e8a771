"""Tensors between stages: those that this machine holds for other agents, and pulls from them.

The outputs of a stage stay with the agent until a worker pulls them for the next stage. A puller
sends tokens, each as a message of a work socket. The answer is the token, and behind it the tensors
if they are held. A connection that begins with another token is closed.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput, Overloaded, PermissionDenied, TensorsLost
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.runtime.send_queue import SendQueue
from synergai.runtime.tasks import TaskBag
from synergai.v1.hub_pb2 import Wanted
from synergai.wire.credentials import server_context
from synergai.wire.limits import MAX_HELD_BYTES, PROBE_BYTES
from synergai.wire.request_codec import iter_fields, request_parts, split_response
from synergai.wire.validation import EXIT
from synergai.wire.work_messages import RelayedTensors, Reports
from synergai.wire.work_socket import WorkSocket, WorkSocketServer
from worker_agent.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from synergai.v1.hub_pb2 import Pull
    from synergai.wire.request_codec import Buffer

LEAST_BYTES: Final = 16 << 10
"""Smaller responses are reported with their contents, which costs less than to pull them."""
_LIMIT_SHARE: Final = 8
"""Part of the limit of the worker's memory that held tensors may take."""
HELD_S: Final = 1800.0
"""The gateway drops tensors as soon as nobody needs them; older ones, it may have forgotten.

A query that waits for its next stage longer than that begins again.
"""
_TOKEN_BYTES: Final = 16
MOST_PULLS: Final = 64
"""Pulls of one connection that wait for others."""
_RELAYED_S: Final = 10.0
"""Longest time until the gateway has relayed tensors."""


class Holding(NamedTuple):
    """A response whose contents are held.

    Attributes:
        response: the serialised ``ModelInferResponse`` without its contents.
    """

    response: bytes
    token: str
    size: int


class _Entry(NamedTuple):
    owner: object
    parts: Sequence[Buffer]
    size: int
    at: float


class HeldTensorStore:
    """The held tensors of all workers of this machine, within a limit of their memory."""

    def __init__(
        self, memory_limit_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_bytes = MAX_HELD_BYTES
        if memory_limit_bytes:
            self._limit_bytes = min(MAX_HELD_BYTES, memory_limit_bytes // _LIMIT_SHARE)
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self.used_bytes = 0

    def hold(self, owner: object, response: bytes) -> Holding | None:
        """Hold the contents of a response; None if it is small, or there is no room for it."""
        size = len(response)
        if size < LEAST_BYTES or self.used_bytes + size > self._limit_bytes:
            return None
        rest, contents = split_response(response)
        if not contents or EXIT.encode() in rest:  # it is the answer of the engine
            return None
        token = secrets.token_hex(_TOKEN_BYTES)
        parts = request_parts(ModelInferRequest(), contents)
        self._entries[token] = _Entry(owner, parts, size, self._clock())
        self.used_bytes += size
        return Holding(rest, token, size)

    def hold_zeros(self, owner: object, token: str) -> None:
        """Hold zeros that measure a link, if there is room for them."""
        if self.used_bytes + PROBE_BYTES <= self._limit_bytes:
            self._entries[token] = _Entry(owner, (bytes(PROBE_BYTES),), PROBE_BYTES, self._clock())
            self.used_bytes += PROBE_BYTES

    def get(self, token: str) -> Sequence[Buffer] | None:
        """Return tensors as parts of ``raw_input_contents`` of the next stage's request."""
        entry = self._entries.get(token)
        return None if entry is None else entry.parts

    def drop(self, token: str) -> None:
        if (entry := self._entries.pop(token, None)) is not None:
            self.used_bytes -= entry.size

    def drop_all(self, owner: object) -> None:
        for token in [token for token, each in self._entries.items() if each.owner is owner]:
            self.drop(token)

    def drop_old(self) -> None:
        """Free tensors that were held too long."""
        since = self._clock() - HELD_S
        for token in [token for token, each in self._entries.items() if each.at < since]:
            self.drop(token)


class Exchange:
    """Held tensors, the port at which others pull them, and connections to other agents.

    Attributes:
        port: the peer port; 0 without one.
        certificate: SHA-256 of the certificate that it presents; empty without TLS.
    """

    def __init__(self, memory_limit_bytes: int, max_message_bytes: int) -> None:
        self.held = HeldTensorStore(memory_limit_bytes)
        self.peers = Peers(max_message_bytes)
        self.port = 0
        self.certificate = b""
        self._server: WorkSocketServer | None = None
        self._senders = TaskBag()

    async def open(self, port: int, certificate: Path | None, key: Path | None) -> None:
        """Open the peer port on all addresses, with TLS if a certificate is given."""
        # Not read again when it is renewed: others know this one by its digest.
        tls = server_context(certificate, key)
        if certificate is not None:
            self.certificate = _digest(certificate)
        self._server = WorkSocketServer(self._serve, tls, setting="--peer-port")
        self.port = await self._server.start("", port)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._senders.close()
        await self.peers.close()

    def _serve(self, token: str, socket: WorkSocket) -> None:
        if self.held.get(token) is None:
            raise PermissionDenied("no tensors are held under this token")
        pulls: SendQueue[str] = SendQueue(MOST_PULLS, on_error=socket.close)

        def on_message(data: Buffer) -> None:
            pulls.put(bytes(data).decode("ascii", "replace"))

        socket.on_message = on_message
        socket.closed.add_done_callback(lambda _: pulls.close())
        pulls.put(token)
        self._senders.start(self._send(pulls, socket))

    async def _send(self, pulls: SendQueue[str], socket: WorkSocket) -> None:
        try:
            while batch := await pulls.get_batch():
                for token in batch:
                    # One after the other: those that wait cost no memory.
                    socket.send((token.encode(), *(self.held.get(token) or ())))
                    async with asyncio.timeout(HELD_S):
                        await socket.drain()
        except (Overloaded, TimeoutError):
            pass  # the other agent asks for more than it reads, or has gone
        finally:
            socket.close()


def _digest(certificate: Path) -> bytes:
    """Return the SHA-256 of the first certificate in a PEM file."""
    try:
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        text = certificate.read_text(encoding="ascii")
        first = text[text.index(begin) : text.index(end) + len(end)]
    except (OSError, ValueError):
        raise InvalidInput(f"{certificate} contains no PEM certificate") from None
    return sha256(ssl.PEM_cert_to_DER_cert(first)).digest()


class Pulls:
    """Pulls tensors for the worker of one registration.

    Args:
        gateway_host: which stands for the host of an agent on the gateway's machine.
        send: sends a report to the gateway.
    """

    def __init__(
        self,
        held: HeldTensorStore,
        peers: Peers,
        gateway_host: str,
        send: Callable[[Reports], None],
    ) -> None:
        self._held = held
        self._peers = peers
        self._gateway_host = gateway_host
        self._send = send
        self._relayed: dict[str, asyncio.Future[Sequence[Buffer]]] = {}

    async def pull(self, pull: Pull, request: Buffer) -> bytes:
        """Return a serialised request with the tensors that belong to it."""
        contents = self._held.get(pull.token) or await self._fetch(pull)
        if not contents:
            raise TensorsLost(f"worker {pull.worker_id!r} no longer has the tensors of a stage")
        completed = b"".join((request, *contents))
        if not _are_tensors(memoryview(completed)[len(request) :]):
            raise TensorsLost(f"worker {pull.worker_id!r} sent other fields than tensors")
        return completed

    def send(self, tokens: Iterable[str]) -> None:
        """Send held tensors to the gateway, which relays them."""
        for token in tokens:
            tensors = RelayedTensors(token, self._held.get(token) or ())
            self._send(Reports(relayed=(tensors,)))

    def receive(self, tensors: RelayedTensors) -> None:
        waiting = self._relayed.get(tensors.token)
        if waiting is not None and not waiting.done():
            waiting.set_result(tensors.contents)

    async def pull_directly(self, pull: Pull) -> Buffer | None:
        """Return tensors from the agent that holds them; None if it cannot be reached."""
        if not pull.address:
            return None
        address = self._gateway_host + pull.address if pull.address[0] == ":" else pull.address
        return await self._peers.pull(pull, address)

    async def _fetch(self, pull: Pull) -> Sequence[Buffer]:
        contents = await self.pull_directly(pull)
        if contents is not None:
            return (contents,) if len(contents) else ()
        return await self._relay(pull)

    async def _relay(self, pull: Pull) -> Sequence[Buffer]:
        token = pull.token
        waiting = self._relayed.get(token)
        if waiting is None:
            waiting = self._relayed[token] = asyncio.get_running_loop().create_future()
            self._send(Reports(wanted=(Wanted(token=token, worker_id=pull.worker_id),)))
        try:
            async with asyncio.timeout(_RELAYED_S):
                return await asyncio.shield(waiting)
        except TimeoutError:
            return ()
        finally:
            self._relayed.pop(token, None)


def _are_tensors(contents: memoryview) -> bool:
    """Return whether contents set no other field of a request, such as its parameters."""
    tensors = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
    try:
        return all(number == tensors for number, *_ in iter_fields(contents))
    except DecodeError:
        return False
