"""A call as its handler sees it, whichever gRPC server has received it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

import grpc

from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
    Interceptor: TypeAlias = Callable[["ServerCall", str, Any], Awaitable[Any]]
    """Called with a call, the path of its method and its handler; returns a handler, or aborts."""
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    import asyncio
    import ssl


class Peer:
    """The other end of a TCP connection.

    Attributes:
        host: its IP address; empty if it has left already.
        address: its socket, such as ``ipv4:127.0.0.1:1234``.
        is_encrypted: whether the connection is.
        certificate: its certificate, which TLS has verified, as DER; None without one.
    """

    def __init__(
        self, host: str, port: int, *, is_encrypted: bool = False, certificate: bytes | None = None
    ) -> None:
        self.host = host
        mapped = host.removeprefix("::ffff:")
        self.address = f"ipv6:[{host}]:{port}" if ":" in mapped else f"ipv4:{mapped}:{port}"
        self.is_encrypted = is_encrypted
        self.certificate = certificate

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host)

    def disconnect(self) -> None:
        """Close the connection, if the server can close a single one."""


class SocketPeer(Peer):
    """The other end of a connection of this process's event loop."""

    def __init__(self, transport: asyncio.Transport) -> None:
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        super().__init__(host, port, is_encrypted=tls is not None, certificate=certificate)
        self.transport = transport

    def disconnect(self) -> None:
        """Close the connection at once."""
        self.transport.abort()


class ServerCall(Protocol):
    """A call, passed to its handler as the context.

    Handlers use no other method of a server's own class.
    """

    @property
    def peer(self) -> Peer:
        """The client."""

    @property
    def unread_s(self) -> float:
        """Time for which responses have waited of which the client has taken nothing, if known."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None if there is none."""

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the client."""

    async def send_initial_metadata(self, metadata: Metadata, /) -> None:
        """Begin the response with metadata, unless it has begun."""

    def set_trailing_metadata(self, metadata: Metadata, /) -> None:
        """Send metadata behind the status."""

    async def write(self, message: Any, /) -> None:
        """Send a response of a stream, and wait until the client takes it."""

    def write_at_once(self, data: bytes, /) -> bool:
        """Send a response if the client takes it now; return whether it does."""

    def take_at_once(self, take: Callable[[Any], bool], /) -> None:
        """Offer requests to `take` as they arrive; the handler gets those that it refuses.

        A server may do nothing, and leave all of them to the handler.
        """

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = (), /
    ) -> NoReturn:
        """End the call with a status, behind its responses.

        Raises:
            grpc.aio.AbortError: always; the handler has to let it pass.
        """


_MAKERS: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Constructors of handlers by whether requests and responses are streamed."""


def find_handler(handlers: Iterable[grpc.GenericRpcHandler], path: str) -> Any:
    """Return the handler of a method, the first of several; None without one."""
    details: Any = SimpleNamespace(method=path)  # a grpc.HandlerCallDetails
    return next(filter(None, (each.service(details) for each in handlers)), None)


def with_behaviour(handler: Handler, behaviour: Any) -> Handler:
    """Return a handler of the same kind and messages with another function."""
    make: Any = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    made: Handler = make(behaviour, handler.request_deserializer, handler.response_serializer)
    return made
