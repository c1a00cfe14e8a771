"""One stream of inference requests to an agent that is asked without a gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import SynergaiError
from synergai.protocol import rpc
from synergai.protocol.oip_stream import is_cancel_request
from synergai.protocol.request_codec import wrap_stream_response
from synergai.protocol.status import stream_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from synergai.oip import inference_pb2 as oip
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import Malformed, RawRequest
    from worker_agent.runner import Runner, WorkItem

    PendingRequest: TypeAlias = tuple[WorkItem, asyncio.Future[bytes]]
    """Work, and its response to come."""

STREAM_WINDOW: Final = 1024
"""Requests of one stream that may be unanswered, as many as a client of ours sends by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A message of the stream, and what comes of it."""

    request_id: str
    begun: PendingRequest | SynergaiError

    async def answer(self) -> bytes | oip.ModelStreamInferResponse:
        if isinstance(self.begun, SynergaiError):
            return stream_error(self.begun, self.request_id)
        try:
            return wrap_stream_response(await self.begun[1])
        except SynergaiError as error:
            return stream_error(error, self.request_id)


class RequestStream:
    """The requests of one stream, each answered by itself, in the order in which they came.

    Args:
        begin: starts a request.
        runner: runs them.
    """

    def __init__(
        self, begin: Callable[[RawRequest[RequestHeader]], PendingRequest], runner: Runner
    ) -> None:
        self._begin = begin
        self._runner = runner
        self._entries: asyncio.Queue[_Entry | None] = asyncio.Queue(STREAM_WINDOW)
        self._under_way: set[_Entry] = set()

    async def answers(
        self, requests: AsyncIterator[RawRequest[RequestHeader] | Malformed]
    ) -> AsyncGenerator[bytes | oip.ModelStreamInferResponse, None]:
        """The answers to `requests`; leaving early abandons what is under way."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while (entry := await self._entries.get()) is not None:
                yield await entry.answer()
                self._under_way.discard(entry)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            for entry in self._under_way:
                if not isinstance(entry.begun, SynergaiError):
                    self._runner.abandon(entry.begun[0])

    async def _read(self, requests: AsyncIterator[RawRequest[RequestHeader] | Malformed]) -> None:
        async for request in requests:
            if isinstance(request, rpc.RawRequest) and is_cancel_request(request.parsed.message):
                self._call_off(request.parsed.message.id)
                continue
            entry = self._entry(request)
            self._under_way.add(entry)
            await self._entries.put(entry)
        await self._entries.put(None)

    def _entry(self, request: RawRequest[RequestHeader] | Malformed) -> _Entry:
        """What comes of one message; its failure must not end the others."""
        if isinstance(request, rpc.Malformed):
            return _Entry("", request.error())
        request_id = request.parsed.message.id
        try:
            return _Entry(request_id, self._begin(request))
        except SynergaiError as error:
            return _Entry(request_id, error)
        except Exception:  # noqa: BLE001 - nor may a fault of ours leave the others waiting
            return _Entry(request_id, rpc.log_internal_error("ModelStreamInfer"))

    def _call_off(self, request_id: str) -> None:
        for entry in self._under_way:
            if entry.request_id == request_id and not isinstance(entry.begun, SynergaiError):
                self._runner.stop(entry.begun[0])
