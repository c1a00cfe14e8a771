"""Health service: limits of what everyone may call."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, cast

import pytest
from grpc_health.v1 import health_pb2

from gateway.calls.servicers.health import MAX_WATCHERS, HealthServicer
from gateway.entry.admission import Admission
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import Versions
from synergai.errors import Overloaded
from synergai.runtime.clock import Clock

if TYPE_CHECKING:
    from synergai.wire.server_call import ServerCall


async def test_watchers_are_limited_and_leave_their_room() -> None:
    health = HealthServicer(Versions(Catalogue()), Admission(1, 1, Clock()), lambda: True)
    request, context = health_pb2.HealthCheckRequest(), cast("ServerCall", None)
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            watcher = await stack.enter_async_context(aclosing(health.watch(request, context)))
            assert (await anext(watcher)).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(Overloaded, match="1,024 streams"):
            await anext(health.watch(request, context))
    async with aclosing(health.watch(request, context)) as watcher:
        assert (await anext(watcher)).status == health_pb2.HealthCheckResponse.SERVING
