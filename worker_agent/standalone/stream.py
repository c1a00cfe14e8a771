"""Handling of one ``ModelStreamInfer`` stream by the agent's own server."""

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
    from worker_agent.runner.runner import Runner
    from worker_agent.runner.work_item import WorkItem

    PendingRequest: TypeAlias = tuple[WorkItem, asyncio.Future[bytes]]
    """A work item and its future response."""

STREAM_WINDOW: Final = 1024
"""Maximum number of requests in flight per stream; our client sends no more by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A received request, and its pending response or error."""

    request_id: str
    result: PendingRequest | SynergaiError

    async def response(self) -> bytes | oip.ModelStreamInferResponse:
        if isinstance(self.result, SynergaiError):
            return stream_error(self.result, self.request_id)
        try:
            return wrap_stream_response(await self.result[1])
        except SynergaiError as error:
            return stream_error(error, self.request_id)


class RequestStream:
    """The requests of one stream; responses are sent in the order of the requests.

    Args:
        begin: starts a request.
        runner: runs the requests.
    """

    def __init__(
        self, begin: Callable[[RawRequest[RequestHeader]], PendingRequest], runner: Runner
    ) -> None:
        self._begin = begin
        self._runner = runner
        self._entries: asyncio.Queue[_Entry | None] = asyncio.Queue(STREAM_WINDOW)
        self._in_flight: set[_Entry] = set()

    async def responses(
        self, requests: AsyncIterator[RawRequest[RequestHeader] | Malformed]
    ) -> AsyncGenerator[bytes | oip.ModelStreamInferResponse, None]:
        """Yield the responses to `requests`; closing the generator abandons those in flight."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while (entry := await self._entries.get()) is not None:
                yield await entry.response()
                self._in_flight.discard(entry)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            for entry in self._in_flight:
                if not isinstance(entry.result, SynergaiError):
                    self._runner.abandon(entry.result[0])

    async def _read(self, requests: AsyncIterator[RawRequest[RequestHeader] | Malformed]) -> None:
        async for request in requests:
            if isinstance(request, rpc.RawRequest) and is_cancel_request(request.parsed.message):
                self._cancel(request.parsed.message.id)
                continue
            entry = self._entry(request)
            self._in_flight.add(entry)
            await self._entries.put(entry)
        await self._entries.put(None)

    def _entry(self, request: RawRequest[RequestHeader] | Malformed) -> _Entry:
        """Start one request; its failure must not affect the others."""
        if isinstance(request, rpc.Malformed):
            return _Entry("", request.error())
        request_id = request.parsed.message.id
        try:
            return _Entry(request_id, self._begin(request))
        except SynergaiError as error:
            return _Entry(request_id, error)
        except Exception:  # noqa: BLE001 - not even a bug of ours may end the stream
            return _Entry(request_id, rpc.log_internal_error("ModelStreamInfer"))

    def _cancel(self, request_id: str) -> None:
        for entry in self._in_flight:
            if entry.request_id == request_id and not isinstance(entry.result, SynergaiError):
                self._runner.stop(entry.result[0])
