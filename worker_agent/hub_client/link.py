"""Interfaces of the link between an agent and its gateway.

The link of an agent that runs in its gateway's process is a pair of method calls; see
``gateway.serve.server``. All others connect over the network; see
``worker_agent.hub_client.remote``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from synergai.v1 import hub_pb2
    from synergai.wire.work_messages import Orders
    from synergai.wire.work_transport import WorkTransport


class HubConnection(Protocol):
    """An open connection: the control stream, and the work stream after the registration."""

    def authenticate(self, register: hub_pb2.Register) -> None:
        """Add what proves the worker's identity to its registration."""

    async def read(self) -> hub_pb2.GatewayControl:
        """Return the next control message."""

    async def write(self, data: bytes) -> None:
        """Send a serialised ``AgentControl``; block forever once the stream has ended."""

    async def open_work(
        self, registered: hub_pb2.Registered, on_orders: Callable[[Orders], None]
    ) -> WorkTransport:
        """Open the work stream; a `SynergaiError` raised by `on_orders` closes it."""

    def fetch(self, session: str, sha256: str, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield the content of the gateway's store with this digest, from an offset to its end."""

    def close(self) -> None:
        """Close the control stream immediately."""


class HubLink(Protocol):
    """Way to reach the hub of a gateway, or of the leader among several.

    Attributes:
        target: address of the current gateway.
    """

    target: str
    gateways: int

    def connect(self) -> AbstractAsyncContextManager[HubConnection]:
        """Return a context manager that opens a connection, or raises why not, and closes it."""

    async def find_other(self) -> str:
        """Return the address of another gateway that agents can connect to, and try it next."""
