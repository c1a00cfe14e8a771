"""A port served by grpcio, `grpc.aio.server`, with the handlers of the native server.

It has grpcio's limits and faults: see docs/guide/security.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

import grpc

from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.addresses import cannot_listen
from synergai.runtime.tasks import TaskBag
from synergai.wire.limits import MAX_CALLS_PER_CONNECTION
from synergai.wire.rpc import behaviour_of
from synergai.wire.server_call import Peer, find_handler, with_behaviour

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.wire.server_call import Interceptor

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]

_MIN_PING_INTERVAL_MS: Final = 1_000
"""Clients that know several gateways ping every two seconds."""
_MAX_PENDING_CALLS: Final = 8192
"""Calls that have not reached their handlers: more than admission control refuses with a reason."""
_CHECK_S: Final = 2.0
"""Interval of checks whether the server still accepts calls."""
_DRAIN_S: Final = 86_400.0
"""Time for which a retired server waits for its calls, unless it is stopped."""

_log = logging.getLogger(__name__)


def _options(
    max_bytes: int, max_connections: int, age_s: float, age_grace_s: float
) -> list[tuple[str, int]]:
    """Return the options of a server: limits, an exclusive port, and pings."""
    ages = [
        ("grpc.max_connection_age_ms", age_s),
        ("grpc.max_connection_age_grace_ms", age_grace_s),
    ]
    return [
        *((name, math.ceil(1e3 * seconds)) for name, seconds in ages if seconds),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
        # It counts calls until grpcio has disposed of them, and so refuses some within the limit.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _MAX_PENDING_CALLS),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 60_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    ]


class GrpcioServer:
    """A server of grpcio. A port that was bound and never served is free once the process ends.

    Args:
        max_connections: connections at a time; further ones are closed.
        max_bytes: largest message in either direction.
        on_broken: called if grpcio has stopped to accept calls, as after a call whose path is not
            UTF-8.
        interceptor: may replace the handler of a call, or end the call. The request of a unary call
            has been read by then.
        max_connection_age_s: as of `NativeServer`, and likewise its grace.
    """

    def __init__(
        self,
        max_connections: int,
        max_bytes: int,
        on_broken: Callable[[SynergaiError], object],
        interceptor: Interceptor | None = None,
        max_connection_age_s: float = 0.0,
        max_connection_age_grace_s: float = 0.0,
    ) -> None:
        ages = max_connection_age_s, max_connection_age_grace_s
        self._server = grpc.aio.server(options=_options(max_bytes, max_connections, *ages))
        self._on_broken = on_broken
        self._interceptor = interceptor
        self._tasks = TaskBag()
        self._handling: set[asyncio.Task[Any]] = set()
        self._starting: asyncio.Task[None] | None = None
        self._address = ""

    def bind(self, address: str, credentials: grpc.ServerCredentials | None = None) -> str:
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise cannot_listen(address) from None
        self._address = f"{address.rpartition(':')[0]}:{port}"
        return self._address

    def start(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Accept calls for these handlers; of several that suit a call, the first one is used."""
        self._server.add_generic_rpc_handlers([_Handlers(handlers, self._adapted)])
        self._starting = self._tasks.start(self._server.start())
        self._tasks.start(self._watch())

    def retire(self) -> None:
        """Accept no more connections, and let clients begin no further calls. Idempotent."""
        self._tasks.start(self._end(_DRAIN_S))

    async def stop(self, grace: float) -> None:
        """Stop once all calls have been answered; end those that take longer than `grace` s."""
        await self._end(grace)
        for task in self._handling:
            task.cancel()
        if self._handling:
            await asyncio.wait(self._handling)
        await self._tasks.close()

    async def _end(self, grace: float) -> None:
        if self._starting is not None:
            await self._starting  # a server that is stopped before it has started crashes
            await self._server.stop(grace)

    async def _watch(self) -> None:
        try:
            while await self._server.wait_for_termination(_CHECK_S):
                pass
        except Exception as error:  # noqa: BLE001 - whatever has ended its loop
            _log.critical("grpcio accepts no more calls on %s: %s", self._address, error)
            self._on_broken(Unavailable(f"grpcio accepts no more calls on {self._address}"))

    def _adapted(self, path: str, handler: Handler) -> Handler:
        """Return a handler for grpcio, which passes a `GrpcioCall` to a handler of ours."""

        async def handle(request: Any, context: Any) -> Any:
            task: Any = asyncio.current_task()
            self._handling.add(task)
            call = GrpcioCall(context)
            try:
                found: Any = handler
                if self._interceptor is not None:
                    found = await self._interceptor(call, path, handler)
                responses = behaviour_of(found)(request, call)
                if not hasattr(responses, "__aiter__"):
                    return await responses
                async with aclosing(responses):
                    async for response in responses:
                        await call.write(response)
                        del response
            finally:
                self._handling.discard(task)

        return with_behaviour(handler, handle)


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a call, and adapts it."""

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        adapt: Callable[[str, Handler], Handler],
    ) -> None:
        self._handlers = handlers
        self._adapt = adapt

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        path = handler_call_details.method
        found = find_handler(self._handlers, path)
        return None if found is None else self._adapt(path, found)


class GrpcioCall:
    """A call of grpcio as a `ServerCall`.

    grpcio sends and delivers messages in turns of its own, and says nothing of those that wait.
    """

    unread_s = 0.0

    def __init__(self, context: Any) -> None:
        self._context = context
        self.time_remaining = context.time_remaining
        self.invocation_metadata = context.invocation_metadata
        self.send_initial_metadata = context.send_initial_metadata
        self.write = context.write
        self.abort = context.abort
        self.set_trailing_metadata = context.set_trailing_metadata

    @cached_property
    def peer(self) -> Peer:
        """The client, whose connection only grpcio can close."""
        # Such as ipv4:127.0.0.1:1234 or ipv6:%5B::1%5D:1234.
        _, _, address = unquote(self._context.peer()).partition(":")
        host, _, port = address.rpartition(":")
        security = self._context.auth_context()
        pem = b"".join(security.get("x509_pem_cert", ()))
        return Peer(
            host.strip("[]"),
            int(port or 0),
            is_encrypted=security.get("transport_security_type") == [b"ssl"],
            certificate=ssl.PEM_cert_to_DER_cert(pem.decode("ascii")) if pem else None,
        )

    def write_at_once(self, _data: bytes) -> bool:
        """Return False: whether the client takes anything now is not known."""
        return False

    def take_at_once(self, _take: Callable[[Any], bool]) -> None:
        """Leave all requests to the handler."""
