"""The Open Inference Protocol (KServe V2), with the streaming call that Triton added."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import grpc

from gateway.outbox import Outbox
from synergai import rpc
from synergai.envelope import parse_envelope, stream_response
from synergai.errors import InvalidInput, SynergaiError
from synergai.oip import inference_pb2 as oip
from synergai.status import stream_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gateway.admission import Admission
    from gateway.fleet import Catalogue
    from gateway.inference import Inference, Request
    from synergai.domain import TensorSpec
    from synergai.envelope import Buffer, Envelope
    from synergai.rpc import Context, Malformed, Raw

SERVICE: Final = "inference.GRPCInferenceService"
STREAM_WINDOW: Final = 64
"""How many requests of one stream may be under way; beyond, the stream is not read from."""
_EXTENSIONS: Final = ("model_stream_infer", "schedule_policy")
_FINAL_RESPONSE: Final = oip.ModelInferResponse(
    parameters={"triton_final_response": oip.InferParameter(bool_param=True)}
).SerializeToString()


class InferenceServicer:
    """Serves ``inference.GRPCInferenceService``."""

    def __init__(self, inference: Inference, catalogue: Catalogue, admission: Admission) -> None:
        self._inference = inference
        self._catalogue = catalogue
        self._admission = admission

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's methods, for a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ServerLive": rpc.unary(self.server_live, oip.ServerLiveRequest),
                "ServerReady": rpc.unary(self.server_ready, oip.ServerReadyRequest),
                "ModelReady": rpc.unary(self.model_ready, oip.ModelReadyRequest),
                "ServerMetadata": rpc.unary(self.server_metadata, oip.ServerMetadataRequest),
                "ModelMetadata": rpc.unary(self.model_metadata, oip.ModelMetadataRequest),
                "ModelInfer": rpc.raw_unary(
                    self.model_infer, parse_envelope, oip.ModelInferRequest
                ),
                "ModelStreamInfer": rpc.raw_stream(
                    self.model_stream_infer, parse_envelope, oip.ModelInferRequest
                ),
            },
        )

    async def server_live(
        self, _request: oip.ServerLiveRequest, _context: Context
    ) -> oip.ServerLiveResponse:
        """The process is there."""
        return oip.ServerLiveResponse(live=True)

    async def server_ready(
        self, _request: oip.ServerReadyRequest, _context: Context
    ) -> oip.ServerReadyResponse:
        """Requests are taken."""
        return oip.ServerReadyResponse(ready=self._admission.open)

    async def model_ready(
        self, request: oip.ModelReadyRequest, _context: Context
    ) -> oip.ModelReadyResponse:
        """Some worker serves the engine now."""
        try:
            engine = self._catalogue.find(request.name)
        except SynergaiError:
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=request.version in ("", engine.version))

    async def server_metadata(
        self, _request: oip.ServerMetadataRequest, _context: Context
    ) -> oip.ServerMetadataResponse:
        """Name, version and extensions."""
        return oip.ServerMetadataResponse(
            name="synergai", version=version("synergai"), extensions=_EXTENSIONS
        )

    async def model_metadata(
        self, request: oip.ModelMetadataRequest, _context: Context
    ) -> oip.ModelMetadataResponse:
        """The engine's inputs and outputs."""
        engine = self._catalogue.find(request.name)
        if request.version not in ("", engine.version):
            raise InvalidInput(
                f"engine {engine.name!r} is here in version {engine.version!r}, "
                f"not {request.version!r}"
            )
        return oip.ModelMetadataResponse(
            name=engine.name,
            versions=[engine.version] if engine.version else [],
            platform=engine.backend,
            inputs=map(_tensor, engine.inputs),
            outputs=map(_tensor, engine.outputs),
            properties={"digest": engine.digest} if engine.digest else {},
        )

    async def model_infer(self, request: Raw[Envelope], context: Context) -> bytes:
        """One request, one response; the tensors' bytes pass through."""
        return await self._inference.infer(request, context.time_remaining())

    async def model_stream_infer(
        self,
        requests: AsyncIterator[Raw[Envelope] | Malformed],
        context: Context,
    ) -> AsyncGenerator[bytes, None]:
        """Requests as they come, answers as they are ready; one fails without the others."""
        stream = _Stream(self._inference, context.time_remaining())
        reader = asyncio.create_task(stream.read(requests))
        reader.add_done_callback(stream.reader_ended)
        try:
            while answers := await stream.answers.take():
                for answer in answers:
                    yield answer
                    stream.answered()
        finally:
            reader.cancel()
            stream.abandon()
            await asyncio.wait([reader])


class _Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, inference: Inference, budget_s: float | None) -> None:
        self._inference = inference
        self._began = asyncio.get_running_loop().time()
        self._budget_s = budget_s
        self._under_way: set[Request] = set()
        self._unanswered = 0
        self._room = asyncio.Event()
        self._all_read = False
        self.answers: Outbox[bytes] = Outbox(2 * STREAM_WINDOW)

    async def read(self, requests: AsyncIterator[Raw[Envelope] | Malformed]) -> None:
        """Begin every request, and wait where too many are unanswered."""
        async for raw in requests:
            while self._unanswered >= STREAM_WINDOW:
                self._room.clear()
                await self._room.wait()
            self._unanswered += 1
            if isinstance(raw, rpc.Malformed):
                self.answers.put(_error("", raw.error()))
            else:
                self._begin(raw)

    def _begin(self, raw: Raw[Envelope]) -> None:
        header = raw.message.header
        request_id = header.id
        wants_final = (
            bool(header.parameters) and "triton_enable_empty_final_response" in header.parameters
        )
        try:
            request = self._inference.begin(raw, self._budget_left())
        except SynergaiError as error:
            self.answers.put(_error(request_id, error))
            return
        except Exception:  # noqa: BLE001 - one message's fault of ours must not end the others
            self.answers.put(_error(request_id, rpc.unexpected("ModelStreamInfer")))
            return
        self._under_way.add(request)

        def done(result: asyncio.Future[Buffer]) -> None:
            self._under_way.discard(request)
            if result.cancelled():
                return
            error = result.exception()
            if error is None:
                final = _FINAL_RESPONSE if wants_final else b""
                self.answers.put(stream_response(result.result(), final))
            elif isinstance(error, SynergaiError):
                self.answers.put(_error(request_id, error))

        request.result.add_done_callback(done)

    def answered(self) -> None:
        """An answer has been handed to the stream."""
        self._unanswered -= 1
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
        for request in list(self._under_way):
            self._inference.abandon(request)

    def _close_if_done(self) -> None:
        if self._all_read and not self._unanswered:
            self.answers.close()

    def _budget_left(self) -> float | None:
        if self._budget_s is None:
            return None
        return self._budget_s - (asyncio.get_running_loop().time() - self._began)


def _tensor(spec: TensorSpec) -> oip.ModelMetadataResponse.TensorMetadata:
    return oip.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=spec.shape
    )


def _error(request_id: str, error: SynergaiError) -> bytes:
    """The stream's answer to one request that failed; its id tells which."""
    return stream_error(error, request_id).SerializeToString()
