"""Triton's and KServe's calls about engines: configuration, statistics and model repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from synergai.errors import NotSupported, SynergaiError
from synergai.oip import model_config_pb2, repository_pb2, statistics_pb2
from synergai.protocol import rpc
from synergai.protocol.oip_server.messages import (
    engine_config,
    engine_statistics,
    matching_engine,
)
from synergai.protocol.oip_server.servicer import SERVICE

if TYPE_CHECKING:
    from synergai.domain import EngineName
    from synergai.protocol.oip_server.backend import InferenceBackend
    from synergai.protocol.rpc import Context
    from synergai.runtime.clock import Clock

_READY: Final = "READY"
_IGNORED_PARAMETERS: Final = frozenset({"unload_dependents"})
"""Parameters without effect: no engine consists of others."""


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
        engine = matching_engine(self._backend, request.name, request.version)
        return model_config_pb2.ModelConfigResponse(config=engine_config(engine))

    async def statistics(
        self, request: statistics_pb2.ModelStatisticsRequest, _context: Context
    ) -> statistics_pb2.ModelStatisticsResponse:
        """Return the statistics of one engine, or of all in service."""
        if request.name:
            engines = [matching_engine(self._backend, request.name, request.version)]
        else:
            engines = [
                self._backend.find_engine(name) for name in self._backend.engines_in_service()
            ]
        return statistics_pb2.ModelStatisticsResponse(
            model_stats=[
                engine_statistics(engine, self._backend.statistics(engine.name), self._clock)
                for engine in engines
            ]
        )

    async def index(
        self, request: repository_pb2.RepositoryIndexRequest, _context: Context
    ) -> repository_pb2.RepositoryIndexResponse:
        """Return every known engine with its state."""
        models = map(self._index_entry, self._backend.known_engines())
        return repository_pb2.RepositoryIndexResponse(
            models=[model for model in models if model.state == _READY or not request.ready]
        )

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

    def _index_entry(self, name: EngineName) -> repository_pb2.RepositoryIndexResponse.ModelIndex:
        version, state, reason = "", _READY, ""
        try:
            engine = self._backend.find_engine(name)
            version = engine.version
            reason = engine.unverified and f"unverified: {engine.unverified}"
        except SynergaiError as error:
            state, reason = self._backend.state_out_of_service(name), str(error)
        return repository_pb2.RepositoryIndexResponse.ModelIndex(
            name=name, version=version, state=state, reason=reason
        )


def _model_name(
    request: repository_pb2.RepositoryModelLoadRequest
    | repository_pb2.RepositoryModelUnloadRequest,
) -> str:
    """Return the engine named in a request in Triton's or in KServe's field.

    Raises:
        NotSupported: the request has parameters that would change the engine.
    """
    for parameter in request.parameters:
        if parameter not in _IGNORED_PARAMETERS:
            raise NotSupported(
                f"the parameter {parameter!r} is not supported: engines are defined in the "
                "workers' model directories; add or change them there"
            )
    return request.model_name or request.repository_name
