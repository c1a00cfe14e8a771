"""Requests held until their engine has been inspected, or until a worker serves it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway.calls.requests.inference import Admitted, Inference
from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.calls.requests.inference import Inference
    from gateway.calls.requests.parameters import InferenceCall
    from gateway.entry.admission import Admission
    from gateway.fleet.versions import Versions
    from synergai.oip.inference_pb2 import ModelInferRequest
    from synergai.wire.request_codec import Buffer


class HeldRequest:
    """A held request, as its server sees it."""

    def __init__(self, result: asyncio.Future[Buffer]) -> None:
        self.result = result

    def abandon(self) -> None:
        self.result.cancel()


class HeldRequests:
    """Begins requests once their engines have been inspected.

    Args:
        begin_staged: begins one whose engine runs in stages by then; returns None for others.
    """

    def __init__(
        self,
        inference: Inference,
        begin_staged: Callable[[InferenceCall], HeldRequest | None],
        versions: Versions,
        admission: Admission,
    ) -> None:
        self._inference = inference
        self._begin_staged = begin_staged
        self._versions = versions
        self._admission = admission
        self._running = TaskBag()
        self._waiting = TaskBag()

    @property
    def count(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Fail the held requests, because the gateway is stopping."""
        self._waiting.cancel()

    def hold(self, call: InferenceCall) -> HeldRequest:
        """Accept a request whose engine is pending."""
        call, options = call.resolved()
        room, size = ExitStack(), len(call.raw.data)
        try:
            call.caller.check_priority(options.priority)
            self._admission.acquire(size)
            room.callback(self._admission.release, size)
            usage = self._admission.start_request(call.tenant, size)
        except SynergaiError as error:
            room.close()
            self._count_rejected(call, error)
            raise
        if usage is not None:
            room.callback(usage.end_request)
        held = HeldRequest(self._running.start_awaited(self._run(call, room)))
        # In case it is cancelled before it starts.
        held.result.add_done_callback(lambda _: room.close())
        return held

    async def _run(self, call: InferenceCall, room: ExitStack) -> Buffer:
        """Wait, free the request's `room` and run it."""
        loop = asyncio.get_running_loop()
        deadline = None if call.budget_s is None else loop.time() + call.budget_s
        try:
            await self._wait_inspected(call.raw.parsed.message, call.budget_s)
        except SynergaiError as error:
            error.request_id = call.request_id.job
            self._count_rejected(call, error)
            raise
        remaining_s = None if deadline is None else deadline - loop.time()
        room.close()
        call = replace(call, budget_s=remaining_s)
        try:
            request = self._begin_staged(call) or self._inference.begin_request(call, charged=True)
        except SynergaiError as error:
            error.request_id = call.request_id.job
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

    def _count_rejected(self, call: InferenceCall, error: SynergaiError) -> None:
        message = call.raw.parsed.message
        engine = self._versions.resolve(message.model_name, message.model_version, message.id)
        self._inference.count_rejected(Admitted(call, engine, call.tenant), error)
