"""Triton's and KServe's calls about engines: configuration, statistics and model repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from synergai.oip import model_config_pb2, repository_pb2, statistics_pb2
from synergai.protocol import rpc
from synergai.protocol.oip_server import calls
from synergai.protocol.oip_server.servicer import SERVICE

if TYPE_CHECKING:
    from synergai.protocol.oip_server.backend import InferenceBackend
    from synergai.protocol.rpc import Context
    from synergai.runtime.clock import Clock


class ModelServicer:
    """Serves the calls of ``inference.GRPCInferenceService`` about engines.

    Args:
        backend: the engines.
        clock: clock of their statistics.
    """

    def __init__(self, backend: InferenceBackend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
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
            },
        )

    async def config(
        self, request: model_config_pb2.ModelConfigRequest, _context: Context
    ) -> model_config_pb2.ModelConfigResponse:
        """Return an engine's configuration in Triton's format."""
        config = calls.model_config(self._backend, request.name, request.version)
        return model_config_pb2.ModelConfigResponse(config=config)

    async def statistics(
        self, request: statistics_pb2.ModelStatisticsRequest, _context: Context
    ) -> statistics_pb2.ModelStatisticsResponse:
        """Return the statistics of one engine, or of all in service."""
        return calls.model_statistics(self._backend, self._clock, request.name, request.version)

    async def index(
        self, request: repository_pb2.RepositoryIndexRequest, _context: Context
    ) -> repository_pb2.RepositoryIndexResponse:
        """Return every known engine with its state."""
        return calls.repository_index(self._backend, only_ready=request.ready)

    async def load(
        self, request: repository_pb2.RepositoryModelLoadRequest, context: Context
    ) -> repository_pb2.RepositoryModelLoadResponse:
        """Load an engine and put it in service."""
        name = _model_name(request)
        await self._backend.load(name, context.time_remaining())
        return repository_pb2.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def unload(
        self, request: repository_pb2.RepositoryModelUnloadRequest, _context: Context
    ) -> repository_pb2.RepositoryModelUnloadResponse:
        """Take an engine out of service, and unload it once idle."""
        name = _model_name(request)
        await self._backend.unload(name)
        return repository_pb2.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)


def _model_name(
    request: repository_pb2.RepositoryModelLoadRequest
    | repository_pb2.RepositoryModelUnloadRequest,
) -> str:
    """Return the engine named in a request in Triton's or in KServe's field.

    Raises:
        NotSupported: the request has parameters that would change the engine.
    """
    calls.check_control_parameters(request.parameters)
    return request.model_name or request.repository_name
