"""The Open Inference Protocol (KServe V2): its six core calls, and Triton's stream."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import grpc

from gateway.requests.parameters import tenant_from_metadata
from gateway.servicers.oip_stream import InferenceStream, window_from_metadata
from synergai.errors import InvalidInput, SynergaiError
from synergai.oip import inference_pb2 as oip
from synergai.protocol import rpc
from synergai.protocol.request_codec import RequestDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gateway.admission.limits import Admission
    from gateway.fleet.catalogue import Catalogue
    from gateway.requests.inference import Inference
    from synergai.domain import Engine, TensorSpec
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import Context, Malformed, RawRequest

SERVICE: Final = "inference.GRPCInferenceService"
STREAM_ERROR_METADATA: Final = ("triton_grpc_error", "true")
"""Metadata with which a client asks to end its stream at the first error."""
_EXTENSIONS: Final = (
    "classification",
    "model_configuration",
    "model_repository",
    "model_stream_infer",
    "parameters",
    "schedule_policy",
    "statistics",
    "synergai_cancel",
    "synergai_tenant",
    "synergai_timings",
    "synergai_window",
)


class InferenceServicer:
    """Serves ``inference.GRPCInferenceService``."""

    def __init__(self, inference: Inference, catalogue: Catalogue, admission: Admission) -> None:
        self._inference = inference
        self._catalogue = catalogue
        self._admission = admission
        self._streams: set[InferenceStream] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        read = RequestDecoder().parse
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ServerLive": rpc.unary(self.server_live, oip.ServerLiveRequest),
                "ServerReady": rpc.unary(self.server_ready, oip.ServerReadyRequest),
                "ModelReady": rpc.unary(self.model_ready, oip.ModelReadyRequest),
                "ServerMetadata": rpc.unary(self.server_metadata, oip.ServerMetadataRequest),
                "ModelMetadata": rpc.unary(self.model_metadata, oip.ModelMetadataRequest),
                "ModelInfer": rpc.raw_unary(self.model_infer, read, oip.ModelInferRequest),
                "ModelStreamInfer": rpc.raw_stream(
                    self.model_stream_infer, read, oip.ModelInferRequest
                ),
            },
        )

    async def server_live(
        self, _request: oip.ServerLiveRequest, _context: Context
    ) -> oip.ServerLiveResponse:
        """Report that the process is running."""
        return oip.ServerLiveResponse(live=True)

    async def server_ready(
        self, _request: oip.ServerReadyRequest, _context: Context
    ) -> oip.ServerReadyResponse:
        """Report whether requests are accepted."""
        return oip.ServerReadyResponse(ready=self._admission.open)

    async def model_ready(
        self, request: oip.ModelReadyRequest, _context: Context
    ) -> oip.ModelReadyResponse:
        """Report whether a worker serves the engine."""
        try:
            engine = self._catalogue.find(request.name)
        except SynergaiError:
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=request.version in ("", engine.version))

    async def server_metadata(
        self, _request: oip.ServerMetadataRequest, _context: Context
    ) -> oip.ServerMetadataResponse:
        """Return name, version and extensions."""
        return oip.ServerMetadataResponse(
            name="synergai", version=version("synergai"), extensions=_EXTENSIONS
        )

    async def model_metadata(
        self, request: oip.ModelMetadataRequest, _context: Context
    ) -> oip.ModelMetadataResponse:
        """Return an engine's inputs and outputs."""
        engine = find_engine(self._catalogue, request.name, request.version)
        return oip.ModelMetadataResponse(
            name=engine.name,
            versions=[engine.version] if engine.version else [],
            platform=engine.backend,
            inputs=map(_tensor, engine.inputs),
            outputs=map(_tensor, engine.outputs),
            properties=engine_properties(engine),
        )

    async def model_infer(self, request: RawRequest[RequestHeader], context: Context) -> bytes:
        """Run one request; its tensors are not decoded."""
        tenant = tenant_from_metadata(context.invocation_metadata() or ())
        return await self._inference.infer(request, context.time_remaining(), tenant)

    async def model_stream_infer(
        self,
        requests: AsyncIterator[RawRequest[RequestHeader] | Malformed],
        context: Context,
    ) -> AsyncGenerator[bytes, None]:
        """Run a stream of independent requests; yield responses as they complete."""
        metadata = context.invocation_metadata() or ()
        stream = InferenceStream(
            self._inference,
            context.time_remaining(),
            tenant_from_metadata(metadata),
            window=window_from_metadata(metadata),
            end_on_error=STREAM_ERROR_METADATA in metadata,
        )
        self._streams.add(stream)
        reader = asyncio.create_task(stream.read(requests))
        reader.add_done_callback(stream.on_reader_done)
        try:
            while responses := await stream.responses.get_batch():
                for response in responses:
                    yield response
                    stream.on_sent(response)
            if stream.failure is not None:
                raise stream.failure
        finally:
            self._streams.discard(stream)
            reader.cancel()
            stream.abandon()
            await asyncio.wait([reader])

    def stop_streams(self) -> None:
        """End all streams, which clients keep open and would delay the server's shutdown."""
        for stream in self._streams:
            stream.stop()


def _tensor(spec: TensorSpec) -> oip.ModelMetadataResponse.TensorMetadata:
    return oip.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=spec.shape
    )


def engine_properties(engine: Engine) -> dict[str, str]:
    """Return the engine's nonempty properties beyond the protocol's own fields."""
    properties = {
        "digest": engine.digest,
        "preprocess": engine.preprocess,
        "postprocess": engine.postprocess,
    }
    return {name: value for name, value in properties.items() if value}


def find_engine(catalogue: Catalogue, name: str, wanted_version: str) -> Engine:
    """Return the engine in service under `name`; an empty version matches any.

    Raises:
        NotFound, Unavailable, EngineUnusable: see `Catalogue.find`.
        InvalidInput: the fleet serves another version.
    """
    engine = catalogue.find(name)
    if wanted_version not in ("", engine.version):
        raise InvalidInput(
            f"engine {engine.name!r} has version {engine.version!r}, not {wanted_version!r}"
        )
    return engine
