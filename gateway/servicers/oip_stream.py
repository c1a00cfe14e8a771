"""One call of ModelStreamInfer: many requests, each answered by itself."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from gateway.outbox import Outbox
from gateway.requests.parameters import flag
from synergai.errors import Cancelled, InvalidInput, SynergaiError, Unavailable
from synergai.oip import inference_pb2 as oip
from synergai.protocol import rpc
from synergai.protocol.oip_stream import WINDOW_METADATA, is_cancel_request
from synergai.protocol.request_codec import wrap_stream_response
from synergai.protocol.status import stream_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from gateway.requests.inference import Inference, Request
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import Malformed, RawRequest

STREAM_WINDOW: Final = 64
"""How many requests of one stream may be under way where its client does not say; beyond, the
stream is not read from, which slows a client down that sends all that it has."""
WIDEST_WINDOW: Final = 16_384
"""However many a client says. More than a gateway takes by default, so that who asks for it is
refused instead of slowed down."""
UNREAD_BYTES: Final = 64 << 20
"""Beyond so many bytes of answers that wait for the client to read them, its stream is not read
from: what is under way is bounded by admission, and what is done by this."""
_WINDOW: Final = re.compile("[1-9][0-9]{0,18}")
FINAL_PARAMETER: Final = "triton_enable_empty_final_response"
"""With it, a request asks for its last response to be marked. It has only one here."""
_FINAL_RESPONSE: Final = oip.ModelInferResponse(
    parameters={"triton_final_response": oip.InferParameter(bool_param=True)}
).SerializeToString()


def window_of(metadata: Iterable[tuple[str, str | bytes]]) -> int:
    """How many requests of a stream with these metadata may be under way.

    Raises:
        InvalidInput: what they say is no number from 1 on.
    """
    for key, value in metadata:
        if key == WINDOW_METADATA:
            if _WINDOW.fullmatch(str(value)) is None:
                raise InvalidInput(f"the header {key!r} must be a number from 1 on, not {value!r}")
            return min(int(value), WIDEST_WINDOW)
    return STREAM_WINDOW


class InferenceStream:
    """The requests of one stream and their answers, in the order in which they are ready.

    Args:
        inference: runs the requests.
        budget_s: what is left of the call's deadline; None if it has none.
        tenant: whom the requests are for that do not say so themselves.
        window: how many may be unanswered; beyond, the stream is not read from.
        ends_with_error: the first request that fails ends the whole stream with its code;
            otherwise its answer holds the error, and the others go on.

    Attributes:
        answers: serialised ``ModelStreamInferResponse``s.
        failure: what the stream has ended with, if with an error.
    """

    def __init__(
        self,
        inference: Inference,
        budget_s: float | None,
        tenant: str,
        *,
        window: int,
        ends_with_error: bool,
    ) -> None:
        self._inference = inference
        self._began = asyncio.get_running_loop().time()
        self._budget_s = budget_s
        self._tenant = tenant
        self._window = window
        self._ends_with_error = ends_with_error
        self._under_way: set[Request] = set()
        self._by_id: dict[str, Request] = {}
        self._unanswered = self._unread_bytes = 0
        self._room = asyncio.Event()
        self._all_read = False
        self.answers: Outbox[bytes] = Outbox(2 * window)
        self.failure: SynergaiError | None = None

    async def read(self, requests: AsyncIterator[RawRequest[RequestHeader] | Malformed]) -> None:
        """Begin every request, and wait where too much is unanswered or unread."""
        async for raw in requests:
            if isinstance(raw, rpc.RawRequest) and is_cancel_request(raw.parsed.message):
                self._call_off(raw.parsed.message.id)
                continue
            while self._unanswered >= self._window or self._unread_bytes > UNREAD_BYTES:
                self._room.clear()
                await self._room.wait()
            self._unanswered += 1
            if isinstance(raw, rpc.Malformed):
                self._fail("", raw.error())
            else:
                self._begin(raw)

    def _begin(self, raw: RawRequest[RequestHeader]) -> None:
        message = raw.parsed.message
        request_id = message.id
        try:
            wants_final = (
                bool(message.parameters)
                and FINAL_PARAMETER in message.parameters
                and flag(message.parameters[FINAL_PARAMETER], FINAL_PARAMETER)
            )
            request = self._inference.begin(raw, self._budget_left(), self._tenant)
        except SynergaiError as error:
            self._fail(request_id, error)
            return
        except Exception:  # noqa: BLE001 - one message's fault of ours must not end the others
            self._fail(request_id, rpc.log_internal_error("ModelStreamInfer"))
            return
        self._under_way.add(request)
        self._by_id[request_id] = request

        def done(result: asyncio.Future[Buffer]) -> None:
            self._under_way.discard(request)
            if self._by_id.get(request_id) is request:  # ids are the client's, who may repeat them
                del self._by_id[request_id]
            if result.cancelled():
                self._fail(request_id, Cancelled("the request was called off"))
                return
            error = result.exception()
            if error is None:
                final = _FINAL_RESPONSE if wants_final else b""
                self._put(wrap_stream_response(result.result(), final))
            elif isinstance(error, SynergaiError):
                self._fail(request_id, error)

        request.result.add_done_callback(done)

    def _call_off(self, request_id: str) -> None:
        """Nobody waits for the request any more; one that is not under way needs nothing."""
        request = self._by_id.get(request_id)
        if request is not None:
            self._inference.abandon(request)

    def _fail(self, request_id: str, error: SynergaiError) -> None:
        """A request has failed; its id tells which."""
        if self.answers.closed:
            return
        if not self._ends_with_error:
            self._put(stream_error(error, request_id).SerializeToString())
        elif self.failure is None:
            self.failure = error
            self.answers.close()  # after what is ready

    def _put(self, answer: bytes) -> None:
        self._unread_bytes += len(answer)
        self.answers.put(answer)

    def answered(self, answer: bytes) -> None:
        """An answer has been handed to the stream."""
        self._unanswered -= 1
        self._unread_bytes -= len(answer)
        self._room.set()
        self._close_if_done()

    def reader_ended(self, reader: asyncio.Task[None]) -> None:
        """No more requests will come; a callback for the task that reads them."""
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self.answers.close(error)
            return
        self._all_read = True
        self._close_if_done()

    def abandon(self) -> None:
        """Nobody waits for the answers any more."""
        self.answers.close()
        for request in list(self._under_way):
            self._inference.abandon(request)

    def stop(self) -> None:
        """End the stream after what is ready, because the gateway stops."""
        if self.failure is None:
            self.failure = Unavailable("the gateway is stopping; try another one, or later")
        self.answers.close()

    def _close_if_done(self) -> None:
        if self._all_read and not self._unanswered:
            self.answers.close()

    def _budget_left(self) -> float | None:
        if self._budget_s is None:
            return None
        return self._budget_s - (asyncio.get_running_loop().time() - self._began)
