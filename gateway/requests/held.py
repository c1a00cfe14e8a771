"""Requests held until their engine has been inspected, or until a worker serves it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gateway.access.roles import Role
from gateway.requests.parameters import parse_options
from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from gateway.access.caller import Caller
    from gateway.admission.admission import Admission
    from gateway.fleet.versions import Versions
    from gateway.requests.inference import Inference, RequestId
    from synergai.oip.inference_pb2 import ModelInferRequest
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import RawRequest


class HeldRequest:
    """A held request, as its server sees it."""

    def __init__(self, result: asyncio.Future[Buffer]) -> None:
        self.result = result

    def abandon(self) -> None:
        """Cancel the request, because its client is gone or has cancelled it."""
        self.result.cancel()


class HeldRequests:
    """Begins requests once their engines have been inspected."""

    def __init__(
        self,
        inference: Inference,
        versions: Versions,
        admission: Admission,
    ) -> None:
        self._inference = inference
        self._versions = versions
        self._admission = admission
        self._running = TaskBag()
        self._waiting = TaskBag()

    @property
    def count(self) -> int:
        """Number of requests that are held."""
        return len(self._waiting)

    def close(self) -> None:
        """Fail the held requests, because the gateway is stopping."""
        self._waiting.cancel()

    def hold(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
    ) -> HeldRequest:
        """Accept a request whose engine is pending; for the arguments see `Inference.begin`."""
        options = parse_options(raw.parsed.message.parameters)
        if options.timeout_s is not None:
            budget_s = options.timeout_s if budget_s is None else min(budget_s, options.timeout_s)
        engine = raw.parsed.message.model_name
        tenant = caller.tenant_of(options.tenant or tenant, Role.INFER, engine=engine)
        room = ExitStack()
        try:
            caller.check_priority(options.priority)
            self._admission.acquire(len(raw.data))
            room.callback(self._admission.release, len(raw.data))
            usage = self._admission.start_request(tenant, len(raw.data))
        except SynergaiError as error:
            room.close()
            self._count_rejected(raw, request_id, tenant, error)
            raise
        if usage is not None:
            room.callback(usage.end_request)
        run = self._run(caller, raw, budget_s, tenant, request_id, room)
        held = HeldRequest(self._running.start_awaited(run))
        # In case it is cancelled before it starts.
        held.result.add_done_callback(lambda _: room.close())
        return held

    async def _run(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
        room: ExitStack,
    ) -> Buffer:
        """Wait, free the request's `room` and run it."""
        loop = asyncio.get_running_loop()
        deadline = None if budget_s is None else loop.time() + budget_s
        try:
            await self._wait_inspected(raw.parsed.message, budget_s)
        except SynergaiError as error:
            error.request_id = request_id.job
            self._count_rejected(raw, request_id, tenant, error)
            raise
        remaining_s = None if deadline is None else deadline - loop.time()
        room.close()
        try:
            request = self._inference.begin(
                caller, raw, remaining_s, tenant, request_id, charged=True
            )
        except SynergaiError as error:
            error.request_id = request_id.job
            raise
        try:
            return await request.result
        except asyncio.CancelledError:
            request.abandon()
            raise

    async def _wait_inspected(self, message: ModelInferRequest, timeout_s: float | None) -> None:
        """Wait until the engine of a request is inspected, or `close` is called."""
        inspected = self._versions.wait_inspected(
            message.model_name, message.model_version, timeout_s
        )
        waiting = self._waiting.start_awaited(inspected)
        try:
            await asyncio.wait([waiting])
            if waiting.cancelled():
                raise Unavailable("the gateway is stopping; try another one, or later")
            waiting.result()
        finally:
            waiting.cancel()

    def _count_rejected(
        self,
        raw: RawRequest[RequestHeader],
        request_id: RequestId,
        tenant: str,
        error: SynergaiError,
    ) -> None:
        message = raw.parsed.message
        engine = self._versions.resolve(message.model_name, message.model_version, message.id)
        self._inference.count_rejected(request_id, engine, tenant, error)
