"""The agent's own Open Inference Protocol server, for use without a gateway.

It does no scheduling: requests run in order of arrival, in a resident session of the engine or else
with the most threads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc

from synergai.domain import EngineName, Fault, Outcome, Session
from synergai.errors import (
    Cancelled,
    EngineNotFound,
    EngineUnusable,
    InvalidInput,
    SynergaiError,
    Unavailable,
)
from synergai.oip import inference_pb2 as oip
from synergai.protocol import rpc
from synergai.protocol.request_codec import RequestDecoder
from worker_agent.runner.work_item import WorkItem
from worker_agent.standalone.stream import RequestStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from synergai.domain import Configuration, Engine
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import Context, Malformed, RawRequest
    from worker_agent.hosts.pool import HostPool
    from worker_agent.ipc.frames import Tally
    from worker_agent.runner.runner import Runner
    from worker_agent.standalone.stream import PendingRequest

SERVICE: Final = "inference.GRPCInferenceService"
_GRACE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _PendingResponse:
    """Response of one request; implements `WorkHandler`."""

    engine: str
    future: asyncio.Future[bytes] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def on_started(self, setup_s: float) -> None:
        """Ignore the end of the setup."""

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        """Ignore progress, which a single query does not make."""

    def on_ended(
        self,
        outcome: Outcome,
        _tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        """Complete the future with the response or the error."""
        if self.future.done():
            return
        if outcome is Outcome.COMPLETED:
            self.future.set_result(responses[0])
        else:
            self.future.set_exception(_error(self.engine, outcome, fault, detail))
            # The waiting call may have been cancelled; mark the exception as retrieved.
            self.future.exception()


class StandaloneServer:
    """The agent's own server of the Open Inference Protocol.

    Args:
        runner: runs the requests.
        hosts: the pool of engine hosts.
        engines: engines of this worker.
        configurations: available configurations, by increasing number of threads.
    """

    def __init__(
        self,
        runner: Runner,
        hosts: HostPool,
        engines: Mapping[EngineName, Engine],
        configurations: Sequence[Configuration],
    ) -> None:
        self._runner = runner
        self._hosts = hosts
        self._engines = engines
        self._configurations = configurations
        self._server: grpc.aio.Server | None = None
        self._draining = False

    async def start(self, address: str, max_message_bytes: int) -> str:
        """Listen on `address`; return it with the actual port.

        Raises:
            Unavailable: the port is in use.
        """
        server = grpc.aio.server(options=rpc.server_options(max_message_bytes))
        server.add_generic_rpc_handlers((self._handler(),))
        bound = rpc.bind(server, address)
        await server.start()
        self._server = server
        return bound

    def drain(self) -> None:
        """Refuse new requests."""
        self._draining = True

    async def stop(self) -> None:
        """Cancel outstanding requests and stop listening."""
        self._draining = True
        if self._server is not None:
            await self._server.stop(_GRACE_S)

    def _handler(self) -> grpc.GenericRpcHandler:
        read = RequestDecoder().parse
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "ServerLive": rpc.unary(self._server_live, oip.ServerLiveRequest),
            "ServerReady": rpc.unary(self._server_ready, oip.ServerReadyRequest),
            "ServerMetadata": rpc.unary(self._server_metadata, oip.ServerMetadataRequest),
            "ModelReady": rpc.unary(self._model_ready, oip.ModelReadyRequest),
            "ModelMetadata": rpc.unary(self._model_metadata, oip.ModelMetadataRequest),
            "ModelInfer": rpc.raw_unary(self._infer, read, oip.ModelInferRequest),
            "ModelStreamInfer": rpc.raw_stream(self._stream_infer, read, oip.ModelInferRequest),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # --- the protocol -----------------------------------------------------------------------

    async def _server_live(
        self, _request: oip.ServerLiveRequest, _context: Context
    ) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    async def _server_ready(
        self, _request: oip.ServerReadyRequest, _context: Context
    ) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=not self._draining)

    async def _server_metadata(
        self, _request: oip.ServerMetadataRequest, _context: Context
    ) -> oip.ServerMetadataResponse:
        return oip.ServerMetadataResponse(
            name="synergai-agent", extensions=["model_stream_infer", "synergai_cancel"]
        )

    async def _model_ready(
        self, request: oip.ModelReadyRequest, _context: Context
    ) -> oip.ModelReadyResponse:
        engine = self._engine(request.name)
        ready = not engine.fault and request.version in ("", engine.version)
        return oip.ModelReadyResponse(ready=ready)

    async def _model_metadata(
        self, request: oip.ModelMetadataRequest, _context: Context
    ) -> oip.ModelMetadataResponse:
        engine = self._usable_engine(request.name)
        if request.version not in ("", engine.version):
            raise InvalidInput(
                f"engine {engine.name!r} is available in version {engine.version!r} only"
            )
        inputs, outputs = (
            [
                oip.ModelMetadataResponse.TensorMetadata(
                    name=spec.name, datatype=spec.datatype, shape=spec.shape
                )
                for spec in specs
            ]
            for specs in (engine.inputs, engine.outputs)
        )
        return oip.ModelMetadataResponse(
            name=engine.name,
            versions=[engine.version],
            platform=engine.backend,
            inputs=inputs,
            outputs=outputs,
        )

    async def _infer(self, request: RawRequest[RequestHeader], _context: Context) -> bytes:
        work, answer = self._begin(request)
        try:
            return await answer
        finally:
            self._runner.stop(work)

    def _stream_infer(
        self,
        requests: AsyncIterator[RawRequest[RequestHeader] | Malformed],
        _context: Context,
    ) -> AsyncGenerator[bytes | oip.ModelStreamInferResponse, None]:
        return RequestStream(self._begin, self._runner).responses(requests)

    # --- running ----------------------------------------------------------------------------

    def _begin(self, request: RawRequest[RequestHeader]) -> PendingRequest:
        if self._draining:
            raise Unavailable("this worker is shutting down")
        engine = self._usable_engine(request.parsed.message.model_name)
        response = _PendingResponse(engine.name)
        work = WorkItem(
            session=self._session(engine.name), handler=response, requests=[request.data]
        )
        self._runner.add(work)
        return work, response.future

    def _session(self, engine: EngineName) -> Session:
        resident = (
            session for session in self._hosts.resident_sessions() if session.engine == engine
        )
        return next(resident, Session(engine, self._configurations[-1]))

    def _engine(self, name: str) -> Engine:
        engine = self._engines.get(EngineName(name))
        if engine is None:
            raise EngineNotFound(name)
        return engine

    def _usable_engine(self, name: str) -> Engine:
        engine = self._engine(name)
        if engine.fault:
            raise EngineUnusable(engine.fault)
        return engine


def _error(engine: str, outcome: Outcome, fault: Fault, detail: str) -> SynergaiError:
    match outcome, fault:
        case Outcome.STOPPED, _:
            return Cancelled("the request was cancelled")
        case _, Fault.BAD_INPUT:
            return InvalidInput(detail)
        case _, Fault.ENGINE_BROKEN:
            return EngineUnusable(detail)
        case _, Fault.UNKNOWN_ENGINE:
            return EngineNotFound(engine)
        case _:
            return Unavailable(detail)
