"""``grpc.health.v1.Health``: health of the gateway (service "") and of each engine by name.

The service ``synergai.v1.Jobs`` is not serving while new jobs cannot be recorded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health_pb2

from gateway.entry.access.caller import current_caller, is_visible
from synergai.errors import InvalidInput, NotFound, Overloaded, SynergaiError
from synergai.wire import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gateway.entry.admission import Admission
    from gateway.fleet.versions import Versions
    from synergai.wire.server_call import ServerCall

_POLL_S: Final = 0.5
"""Greatest age of the status that a watcher sees."""
MAX_WATCHERS: Final = 1024
"""Streams of `Watch` at a time: everyone may open them, and each costs time while it is idle."""
_JOBS: Final = "synergai.v1.Jobs"
_SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer:
    """Serves ``grpc.health.v1.Health``."""

    def __init__(
        self, versions: Versions, admission: Admission, accepts_jobs: Callable[[], bool]
    ) -> None:
        self._versions = versions
        self._admission = admission
        self._accepts_jobs = accepts_jobs
        self._watchers = 0

    def handler(self) -> rpc.Service:
        return rpc.Service(
            "grpc.health.v1.Health",
            {
                "Check": rpc.unary(self.check, health_pb2.HealthCheckRequest),
                "Watch": rpc.server_stream(self.watch, health_pb2.HealthCheckRequest),
            },
        )

    def status(self, service: str) -> int:
        """Return the protocol's status number of the gateway or of an engine.

        An engine that the caller may not see is as unknown as one that does not exist.
        """
        if service == _JOBS:
            if not self._accepts_jobs():
                return _NOT_SERVING
        elif service:
            if not is_visible(current_caller(), service):
                return _SERVICE_UNKNOWN
            try:
                name, _, version = service.partition("/")
                self._versions.find(name, version)
            except (NotFound, InvalidInput):
                return _SERVICE_UNKNOWN
            except SynergaiError:
                return _NOT_SERVING
        if self._admission.open:
            return _SERVING
        return _NOT_SERVING

    async def check(
        self, request: health_pb2.HealthCheckRequest, _context: ServerCall
    ) -> health_pb2.HealthCheckResponse:
        status = self.status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise NotFound(f"there is no engine {request.service!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(
        self, request: health_pb2.HealthCheckRequest, _context: ServerCall
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        if self._watchers >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS:,} streams watch the health, the limit; try later")
        self._watchers += 1
        try:
            sent = None
            while True:
                status = self.status(request.service)
                if status != sent:
                    sent = status
                    yield health_pb2.HealthCheckResponse(status=status)
                await asyncio.sleep(_POLL_S)
        finally:
            self._watchers -= 1
