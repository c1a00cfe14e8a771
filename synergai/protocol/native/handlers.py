"""The handlers of a native server, by method."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from synergai.protocol.rpc import Service
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import grpc

    from synergai.protocol.native.headers import CallHeaders, Metadata


class _Details(NamedTuple):
    """What handlers are found by; in place of ``grpc.HandlerCallDetails``."""

    method: str
    invocation_metadata: Metadata


class Handlers:
    """The handlers, and the calls that they handle.

    Args:
        interceptors: as for `grpc.aio.server`.
        max_bytes: largest message of a client.

    Attributes:
        loop: the event loop.
        max_bytes: as given.
        tasks: the calls.
    """

    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor], max_bytes: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_bytes = max_bytes
        self.tasks = TaskBag()
        self._interceptors: Sequence[Any] = interceptors
        self._methods: dict[str, Any] = {}
        self._others: list[Any] = []

    def add(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add handlers; of several that suit a call, the first one is used."""
        for handler in handlers:
            if isinstance(handler, Service):
                for name, method in handler.methods.items():
                    self._methods.setdefault(f"/{handler.name}/{name}", method)
            else:
                self._others.append(handler)

    def find(self, path: str) -> Any:
        """Return the handler of a method; None without one, and if there are interceptors."""
        return None if self._interceptors else self._methods.get(path)

    async def intercept(self, headers: CallHeaders) -> Any:
        """Return the handler of a call, which interceptors may replace; None without one."""
        return await self._intercept(0, _Details(headers.path, headers.metadata))

    async def _intercept(self, passed: int, details: _Details) -> Any:
        if passed == len(self._interceptors):
            found = (each.service(details) for each in self._others)
            return self._methods.get(details.method) or next(filter(None, found), None)

        async def continue_with(details: _Details) -> Any:
            return await self._intercept(passed + 1, details)

        return await self._interceptors[passed].intercept_service(continue_with, details)
