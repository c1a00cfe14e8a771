"""Inference for clients, and ``inference.GRPCInferenceService``, KServe's and Triton's protocol."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gateway.calls.requests.inference import Inference, Request
from gateway.calls.requests.parameters import InferenceCall, RequestId, window_from_metadata
from gateway.calls.servicers.inference_stream import InferenceStream
from gateway.entry.access.caller import current_caller
from gateway.entry.audit import REFUSALS, record_refusal
from synergai.errors import (
    EnginePending,
    InvalidInput,
    PermissionDenied,
    SynergaiError,
    Unauthenticated,
)
from synergai.oip import inference_pb2 as oip
from synergai.oip import model_config_pb2, repository_pb2, statistics_pb2
from synergai.runtime.tasks import TaskBag
from synergai.wire import rpc
from synergai.wire.memory_bounds import COUNTED_BYTES, UnreadResponses
from synergai.wire.parameters import (
    NO_IDS,
    TRACEPARENT,
    CallIds,
    ids_from_metadata,
    tenant_from_metadata,
    valid_id,
)
from synergai.wire.request_codec import RequestDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.calls.requests.held import HeldRequests
    from gateway.calls.requests.staged import StagedRequests
    from gateway.calls.servicers.engines import EngineCalls
    from gateway.fleet.stages import StageChains
    from gateway.monitoring.tracing import Trace, Tracing
    from synergai.wire.request_codec import Buffer, RequestHeader
    from synergai.wire.rpc import Malformed, PendingCall, RawRequest
    from synergai.wire.server_call import ServerCall

STREAM_ERROR_METADATA: Final = ("triton_grpc_error", "true")
"""Metadata with which a client asks to end its stream at the first error."""


@lru_cache(maxsize=64)
def _read_metadata(metadata: tuple[tuple[str, str | bytes], ...]) -> tuple[str, CallIds]:
    """Return the tenant and the ids of a call; most clients send the same with every call."""
    return tenant_from_metadata(metadata), ids_from_metadata(metadata)


class InferenceCalls:
    """Runs requests for gRPC and REST alike, whole, in stages or held.

    Args:
        stages: of which an engine may be made up.
    """

    def __init__(
        self,
        inference: Inference,
        held: HeldRequests,
        staged: StagedRequests,
        stages: StageChains,
        tracing: Tracing | None = None,
    ) -> None:
        self._inference = inference
        self._held = held
        self._staged = staged
        self._stages = stages
        self._tracing = tracing

    async def infer(
        self,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        ids: CallIds = NO_IDS,
    ) -> Buffer:
        """Run one request and return the serialised response; cancelling cancels it."""
        pending = self.begin_call(raw, budget_s, tenant, ids)
        try:
            return await pending.result
        except asyncio.CancelledError:
            pending.abandon()
            raise

    def begin_call(
        self,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        ids: CallIds = NO_IDS,
    ) -> PendingCall:
        """Accept a request, and start it or hold it while its engine is being inspected.

        The `ids` of the call precede the message's.
        """
        message = raw.parsed.message
        request_id = RequestId(
            self._inference.new_id(),
            ids.chosen or (message.id and valid_id(message.id)),
            None if self._tracing is None else self._trace(self._tracing, ids, message),
        )
        call = InferenceCall(current_caller(), raw, budget_s, tenant, request_id)
        try:
            try:
                if self._stages.any and (staged := self._staged.begin_staged(call)):
                    return staged
                return self._inference.begin_request(call)
            except EnginePending:
                return self._held.hold(call)
        except SynergaiError as error:
            error.request_id = request_id.job
            if request_id.trace is not None:
                shown = request_id.client or request_id.job
                request_id.trace.refuse(message.model_name, shown, error)
            if isinstance(error, REFUSALS):
                record_refusal(error, message.model_name)
            raise

    def _trace(
        self, tracing: Tracing, ids: CallIds, message: oip.ModelInferRequest
    ) -> Trace | None:
        """Return the trace of a request, if it is sampled."""
        traceparent = ids.traceparent
        if not traceparent and TRACEPARENT in message.parameters:
            traceparent = message.parameters[TRACEPARENT].string_param
        return tracing.begin_trace(traceparent)


class InferenceServicer:
    """Serves ``inference.GRPCInferenceService``."""

    def __init__(
        self, calls: InferenceCalls, engines: EngineCalls, unread: UnreadResponses
    ) -> None:
        self._calls = calls
        self._engines = engines
        self._unread = unread
        self._slow_calls = rpc.SlowCalls()
        self._streams: set[InferenceStream] = set()
        self._reading = TaskBag()

    def handler(self) -> rpc.Service:
        read = RequestDecoder().parse
        return rpc.Service(
            "inference.GRPCInferenceService",
            {
                "ServerLive": rpc.unary(self.server_live, oip.ServerLiveRequest),
                "ServerReady": rpc.unary(self.server_ready, oip.ServerReadyRequest),
                "ModelReady": rpc.unary(self.model_ready, oip.ModelReadyRequest),
                "ServerMetadata": rpc.unary(self.server_metadata, oip.ServerMetadataRequest),
                "ModelMetadata": rpc.unary(self.model_metadata, oip.ModelMetadataRequest),
                "ModelConfig": rpc.unary(self.config, model_config_pb2.ModelConfigRequest),
                "ModelStatistics": rpc.unary(
                    self.statistics, statistics_pb2.ModelStatisticsRequest
                ),
                "RepositoryIndex": rpc.unary(self.index, repository_pb2.RepositoryIndexRequest),
                "RepositoryModelLoad": rpc.unary(
                    self.load, repository_pb2.RepositoryModelLoadRequest
                ),
                "RepositoryModelUnload": rpc.unary(
                    self.unload, repository_pb2.RepositoryModelUnloadRequest
                ),
                "ModelInfer": rpc.BegunUnary(
                    self.model_infer, self.finish, read, oip.ModelInferRequest
                ),
                "ModelStreamInfer": rpc.raw_written_stream(
                    self.model_stream_infer, read, oip.ModelInferRequest
                ),
            },
        )

    async def server_live(
        self, _request: oip.ServerLiveRequest, _context: ServerCall
    ) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    async def server_ready(
        self, _request: oip.ServerReadyRequest, _context: ServerCall
    ) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=self._engines.is_ready())

    async def model_ready(
        self, request: oip.ModelReadyRequest, _context: ServerCall
    ) -> oip.ModelReadyResponse:
        """Report whether the version of the engine is in service; an unknown one is not."""
        try:
            self._engines.find_engine(request.name, request.version)
        except (InvalidInput, Unauthenticated, PermissionDenied):
            raise
        except SynergaiError:
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=True)

    async def server_metadata(
        self, _request: oip.ServerMetadataRequest, _context: ServerCall
    ) -> oip.ServerMetadataResponse:
        return self._engines.metadata

    async def model_metadata(
        self, request: oip.ModelMetadataRequest, context: ServerCall
    ) -> oip.ModelMetadataResponse:
        budget_s = context.time_remaining()
        return await self._engines.model_metadata(request.name, request.version, budget_s)

    async def config(
        self, request: model_config_pb2.ModelConfigRequest, _context: ServerCall
    ) -> model_config_pb2.ModelConfigResponse:
        config = self._engines.model_config(request.name, request.version)
        return model_config_pb2.ModelConfigResponse(config=config)

    async def statistics(
        self, request: statistics_pb2.ModelStatisticsRequest, _context: ServerCall
    ) -> statistics_pb2.ModelStatisticsResponse:
        return self._engines.statistics(request.name, request.version)

    async def index(
        self, request: repository_pb2.RepositoryIndexRequest, _context: ServerCall
    ) -> repository_pb2.RepositoryIndexResponse:
        return self._engines.index(only_ready=request.ready)

    async def load(
        self, request: repository_pb2.RepositoryModelLoadRequest, context: ServerCall
    ) -> repository_pb2.RepositoryModelLoadResponse:
        name = request.model_name or request.repository_name  # Triton's field, KServe's
        await self._engines.load(name, request.parameters, context.time_remaining())
        return repository_pb2.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def unload(
        self, request: repository_pb2.RepositoryModelUnloadRequest, _context: ServerCall
    ) -> repository_pb2.RepositoryModelUnloadResponse:
        name = request.model_name or request.repository_name
        await self._engines.unload(name, request.parameters)
        return repository_pb2.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    def model_infer(
        self,
        raw: RawRequest[RequestHeader],
        context: ServerCall,
        on_response: Callable[[Buffer], None] | None,
    ) -> PendingCall:
        """Begin one request; its tensors are not decoded."""
        tenant, ids = _read_metadata(context.invocation_metadata())
        request = self._calls.begin_call(raw, context.time_remaining(), tenant, ids)
        if isinstance(request, Request):
            request.on_response = on_response
        return request

    def finish(self, result: Buffer, context: ServerCall) -> bytes:
        """Return a response for its client, which is to read it in time."""
        response = bytes(result)
        if len(response) >= COUNTED_BYTES:
            rpc.count_unread(self._unread, context, len(response))
        return response

    async def model_stream_infer(
        self,
        requests: AsyncIterator[RawRequest[RequestHeader] | Malformed],
        context: ServerCall,
    ) -> None:
        """Run a stream of independent requests; write responses as they complete."""
        metadata = context.invocation_metadata()
        budget_s = context.time_remaining()
        tenant, window = tenant_from_metadata(metadata), window_from_metadata(metadata)
        stream = InferenceStream(
            self._calls.begin_call,
            budget_s,
            tenant,
            window=window,
            end_on_error=STREAM_ERROR_METADATA in metadata,
            unread=self._unread,
            on_disconnected=await self._slow_calls.ending(context),
        )
        stream.write_at_once = context.write_at_once
        context.take_at_once(stream.take_request)
        self._streams.add(stream)
        reader = self._reading.start_awaited(stream.read(requests))
        reader.add_done_callback(stream.on_reader_done)
        try:
            while (response := await stream.next_to_send()) is not None:
                await context.write(response)
                stream.on_sent(response)
                del response  # the next one may be a long time coming
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
