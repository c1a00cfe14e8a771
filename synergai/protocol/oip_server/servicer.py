"""The protocol's core calls and Triton's stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc

from synergai.errors import InvalidInput, PermissionDenied, SynergaiError, Unauthenticated
from synergai.oip import inference_pb2 as oip
from synergai.protocol import rpc
from synergai.protocol.local_peers import bind_peer
from synergai.protocol.oip_server import calls
from synergai.protocol.oip_server.parameters import tenant_from_metadata, window_from_metadata
from synergai.protocol.oip_server.stream import InferenceStream
from synergai.protocol.request_codec import RequestDecoder
from synergai.protocol.unread import COUNTED_BYTES, UnreadResponses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from synergai.protocol.oip_server.backend import InferenceBackend
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import Context, Malformed, RawRequest

SERVICE: Final = "inference.GRPCInferenceService"
STREAM_ERROR_METADATA: Final = ("triton_grpc_error", "true")
"""Metadata with which a client asks to end its stream at the first error."""


class InferenceServicer:
    """Serves the inference calls of ``inference.GRPCInferenceService``.

    Args:
        backend: engines and requests.
        name: name of the server.
        extensions: extensions beside those of every server.
        ordered_streams: send a stream's responses in the order of its requests.
        unread: counts the responses that clients have not read yet; by default, those of this
            server alone.
    """

    def __init__(
        self,
        backend: InferenceBackend,
        name: str,
        extensions: Sequence[str] = (),
        *,
        ordered_streams: bool = False,
        unread: UnreadResponses | None = None,
    ) -> None:
        self._backend = backend
        self._unread = UnreadResponses() if unread is None else unread
        self._calls = rpc.SlowCalls()
        self._metadata = calls.server_metadata(name, extensions)
        self._ordered_streams = ordered_streams
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
                "ModelStreamInfer": rpc.raw_written_stream(
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
        return oip.ServerReadyResponse(ready=self._backend.is_ready())

    async def model_ready(
        self, request: oip.ModelReadyRequest, _context: Context
    ) -> oip.ModelReadyResponse:
        """Report whether the version of the engine is in service; an unknown one is not.

        A malformed version is an error, as for every other call.
        """
        try:
            self._backend.find_engine(request.name, request.version)
        except (InvalidInput, Unauthenticated, PermissionDenied):
            raise
        except SynergaiError:
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=True)

    async def server_metadata(
        self, _request: oip.ServerMetadataRequest, _context: Context
    ) -> oip.ServerMetadataResponse:
        """Return name, version and extensions."""
        return self._metadata

    async def model_metadata(
        self, request: oip.ModelMetadataRequest, context: Context
    ) -> oip.ModelMetadataResponse:
        """Return an engine's inputs and outputs."""
        budget_s = context.time_remaining()
        return await calls.model_metadata(self._backend, request.name, request.version, budget_s)

    async def model_infer(self, request: RawRequest[RequestHeader], context: Context) -> bytes:
        """Run one request; its tensors are not decoded."""
        bind_peer(context.peer)
        tenant = tenant_from_metadata(context.invocation_metadata() or ())
        budget_s = context.time_remaining()
        response = bytes(await calls.infer(self._backend, request, budget_s, tenant))
        if len(response) >= COUNTED_BYTES:
            rpc.count_unread(self._unread, context, len(response))
        return response

    async def model_stream_infer(
        self,
        requests: AsyncIterator[RawRequest[RequestHeader] | Malformed],
        context: Context,
    ) -> None:
        """Run a stream of independent requests; write responses as they complete."""
        bind_peer(context.peer)
        metadata = context.invocation_metadata() or ()
        stream = InferenceStream(
            self._backend,
            context.time_remaining(),
            tenant_from_metadata(metadata),
            window=window_from_metadata(metadata),
            end_on_error=STREAM_ERROR_METADATA in metadata,
            ordered=self._ordered_streams,
            unread=self._unread,
        )
        stream.on_disconnected = await self._calls.ending(context)
        self._streams.add(stream)
        reader = asyncio.create_task(stream.read(requests))
        reader.add_done_callback(stream.on_reader_done)
        try:
            while (response := await stream.next_to_send()) is not None:
                await context.write(response)
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
