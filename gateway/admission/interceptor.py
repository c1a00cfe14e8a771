"""Quotas of streams and connections on a gRPC server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from gateway.access.caller import current_caller
from gateway.access.handlers import surrounded
from gateway.access.methods import KNOWN, METHODS
from synergai.errors import Overloaded
from synergai.protocol import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from gateway.access.handlers import Handler
    from gateway.admission.quotas import TenantQuotas


class QuotaInterceptor(grpc.aio.ServerInterceptor):
    """Counts calls, connections and streams for the tenants of their callers.

    It comes after the interceptor that binds the callers. Calls that everyone may make do not
    count.

    Args:
        quotas: counts them.
    """

    def __init__(self, quotas: TenantQuotas) -> None:
        self._quotas = quotas

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a call, which counts it."""
        handler: Handler = await continuation(handler_call_details)
        if METHODS.get(handler_call_details.method, KNOWN).public:
            return handler
        stream = bool(handler.request_streaming)
        return surrounded(handler, partial(self._counted, stream))

    @asynccontextmanager
    async def _counted(
        self, stream: bool, _request: object, context: rpc.Context
    ) -> AsyncGenerator[None, None]:
        peer, tenant = context.peer(), current_caller().tenant
        try:
            with self._quotas.call(tenant, peer, stream=stream):
                yield
        except Overloaded as error:
            await rpc.abort(context, error)
