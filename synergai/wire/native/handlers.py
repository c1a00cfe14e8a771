"""The handlers of a native server, by method."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from synergai.runtime.tasks import TaskBag
from synergai.wire.limits import MAX_INCOMPLETE_BYTES
from synergai.wire.memory_bounds import IncompleteRequests
from synergai.wire.rpc import BegunUnary, Service
from synergai.wire.server_call import find_handler

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc

    from synergai.wire.server_call import Interceptor

_RECEIVED_BYTES: Final = 64 << 10


class Handlers:
    """The handlers, and the calls that they handle.

    Args:
        max_bytes: largest message of a client.
        interceptor: may replace the handler of a call, or end the call.

    Attributes:
        incomplete: the requests that have not arrived in full.
        connection_age: seconds after which a connection is retired, and after which it then ends.
        taskless: handlers, by path, of calls that need no task until they respond.
        received: memory into which connections receive what they handle at once.
    """

    def __init__(self, max_bytes: int, interceptor: Interceptor | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_bytes = max_bytes
        self.connection_age = (0.0, 0.0)
        self.incomplete = IncompleteRequests(MAX_INCOMPLETE_BYTES)
        self.received = memoryview(bytearray(_RECEIVED_BYTES))
        self.tasks = TaskBag()
        self.interceptor = interceptor
        self.taskless: dict[str, BegunUnary[Any]] = {}
        self._methods: dict[str, Any] = {}
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add handlers; of several that suit a call, the first one is used."""
        for handler in handlers:
            self._handlers.append(handler)
            if isinstance(handler, Service):
                self._methods = handler.paths | self._methods
        if self.interceptor is None:
            begun = ((p, m) for p, m in self._methods.items() if isinstance(m, BegunUnary))
            self.taskless = dict(begun)

    def find(self, path: str) -> Any:
        """Return the handler of a method; None without one."""
        return self._methods.get(path) or find_handler(self._handlers, path)
