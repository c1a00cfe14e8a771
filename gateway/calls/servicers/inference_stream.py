"""A ModelStreamInfer call: a stream of independent requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.calls.requests.inference import Request
from gateway.calls.requests.parameters import bool_parameter
from synergai.errors import Cancelled, SynergaiError, Unavailable
from synergai.oip import inference_pb2 as oip
from synergai.runtime.send_queue import SendQueue
from synergai.wire import rpc
from synergai.wire.parameters import is_cancel_request
from synergai.wire.request_codec import wrap_stream_response
from synergai.wire.status import stream_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from synergai.wire.memory_bounds import UnreadResponses
    from synergai.wire.request_codec import Buffer, RequestHeader
    from synergai.wire.rpc import Malformed, PendingCall, RawRequest

MAX_UNREAD_BYTES: Final = 64 << 20
"""Bytes of unread responses beyond which a stream is not read: the backend bounds requests in
flight, this bounds completed ones."""
FINAL_PARAMETER: Final = "triton_enable_empty_final_response"
"""Parameter of a request that asks for its last (here: only) response to be marked."""
_FINAL_RESPONSE: Final = oip.ModelInferResponse(
    parameters={"triton_final_response": oip.InferParameter(bool_param=True)}
).SerializeToString()


class InferenceStream:
    """The requests of one stream, and their responses.

    Args:
        begin_call: begins a request with a budget and a tenant.
        window: requests in flight beyond which the stream is not read.
        end_on_error: end the stream with the status of the first request that fails; otherwise
            its response carries the error, and the stream continues.
        on_disconnected: called if the stream has been ended because its client reads too slowly.

    Attributes:
        write_at_once: sends a response if the client takes it now; returns whether it does.
    """

    def __init__(
        self,
        begin_call: Callable[[RawRequest[RequestHeader], float | None, str], PendingCall],
        budget_s: float | None,
        tenant: str,
        *,
        window: int,
        end_on_error: bool,
        unread: UnreadResponses,
        on_disconnected: Callable[[SynergaiError], object],
    ) -> None:
        self._begin_call = begin_call
        self._unread = unread.open(self._disconnect)
        self._started_at = asyncio.get_running_loop().time()
        self._budget_s = budget_s
        self._tenant = tenant
        self._window = window
        self._end_on_error = end_on_error
        self._running: dict[object, PendingCall] = {}
        self._by_id: dict[str, PendingCall] = {}
        self._in_flight = self._unread_bytes = 0
        self._readable = asyncio.Event()
        self._all_read = False
        self._sending: list[bytes] = []
        self.responses: SendQueue[bytes] = SendQueue(2 * window)
        self.write_at_once: Callable[[bytes], bool] = _cannot_write
        self.failure: SynergaiError | None = None
        self._on_disconnected = on_disconnected

    async def read(self, requests: AsyncIterator[RawRequest[RequestHeader] | Malformed]) -> None:
        """Start requests as they arrive; pause while the window or the buffer is full."""
        async for raw in requests:
            while not self.take_request(raw):
                self._readable.clear()
                await self._readable.wait()
            del raw  # the next one may be a long time coming

    def take_request(self, raw: RawRequest[RequestHeader] | Malformed) -> bool:
        """Start a request; return False, having done nothing, while none is to be read."""
        if isinstance(raw, rpc.RawRequest) and is_cancel_request(raw.parsed.message):
            self._cancel(raw.parsed.message.id)
            return True
        if self._in_flight >= self._window or self._unread_bytes > MAX_UNREAD_BYTES:
            return False
        self._in_flight += 1
        if isinstance(raw, rpc.Malformed):
            self._fail("", raw.error())
        else:
            self._begin(raw)
        return True

    def _begin(self, raw: RawRequest[RequestHeader]) -> None:
        message = raw.parsed.message
        request_id = message.id
        try:
            wants_final = (
                bool(message.parameters)
                and FINAL_PARAMETER in message.parameters
                and bool_parameter(message.parameters[FINAL_PARAMETER], FINAL_PARAMETER)
            )
            request = self._begin_call(raw, self._budget_left(), self._tenant)
        except SynergaiError as error:
            self._fail(request_id, error)
            return
        except Exception:  # noqa: BLE001 - a bug hit by one message must not end the stream
            self._fail(request_id, rpc.log_internal_error("ModelStreamInfer"))
            return
        # What the request keeps until it ends, here and below, must not keep the request: a cycle.
        key = object()
        self._running[key] = request
        self._by_id[request_id] = request

        def forget() -> None:
            ended = self._running.pop(key)
            if self._by_id.get(request_id) is ended:  # clients may repeat ids
                del self._by_id[request_id]

        def respond(answer: Buffer) -> None:
            response = wrap_stream_response(answer, _FINAL_RESPONSE if wants_final else b"")
            forget()
            # It may disconnect the client, which abandons the requests that are still running.
            self._unread.add(len(response))
            self._put(response)

        def done(result: asyncio.Future[Buffer]) -> None:
            if result.cancelled():
                forget()
                self._fail(request_id, Cancelled("the request was cancelled"))
            elif (error := result.exception()) is None:
                respond(result.result())
            else:
                forget()
                if not isinstance(error, SynergaiError):
                    error = rpc.log_internal_error("ModelStreamInfer", error)
                self._fail(request_id, error)

        if isinstance(request, Request):
            request.on_response = respond
        request.result.add_done_callback(done)

    def _cancel(self, request_id: str) -> None:
        request = self._by_id.get(request_id)
        if request is not None:
            request.abandon()

    def _fail(self, request_id: str, error: SynergaiError) -> None:
        """Send a request's error, or end the stream with it."""
        if self.responses.closed:
            return
        if not self._end_on_error:
            response = stream_error(error, request_id).SerializeToString()
            self._unread.add(len(response))
            self._put(response)
        elif self.failure is None:
            self.failure = error
            self.responses.close()  # once the buffered responses are sent

    def _put(self, response: bytes) -> None:
        self._unread_bytes += len(response)
        if self.responses.is_awaited and self.write_at_once(response):
            self.on_sent(response)
        else:
            self.responses.put(response)

    async def next_to_send(self) -> bytes | None:
        """Wait for the next response to send; None once there are no more."""
        if not self._sending:
            self._sending = await self.responses.get_batch()
            self._sending.reverse()
        return self._sending.pop() if self._sending else None

    def on_sent(self, response: bytes) -> None:
        self._unread.remove(len(response))
        self._in_flight -= 1
        self._unread_bytes -= len(response)
        self._readable.set()
        self._close_if_done()

    def on_reader_done(self, reader: asyncio.Task[None]) -> None:
        """Handle the end of the request stream; a callback of the task that reads it."""
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self.responses.close(error)
            return
        self._all_read = True
        self._close_if_done()

    def abandon(self) -> None:
        """Cancel all requests, because the client is gone."""
        self._unread.close()
        self.responses.close()
        for request in list(self._running.values()):
            request.abandon()

    def _disconnect(self, error: SynergaiError) -> None:
        """End the stream and drop its responses, because the client reads too slowly."""
        self.abandon()
        self.responses.get_batch_nowait()
        self._sending.clear()
        self._on_disconnected(error)

    def stop(self) -> None:
        """End the stream once the buffered responses are sent, because the server is stopping."""
        if self.failure is None:
            self.failure = Unavailable("the server is stopping; try another one, or later")
        self.responses.close()

    def _close_if_done(self) -> None:
        if self._all_read and not self._in_flight:
            self.responses.close()

    def _budget_left(self) -> float | None:
        if self._budget_s is None:
            return None
        return self._budget_s - (asyncio.get_running_loop().time() - self._started_at)


def _cannot_write(_response: bytes) -> bool:
    """Send nothing: the gRPC server has no such means."""
    return False
