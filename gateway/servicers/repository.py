"""Triton's and KServe's model repository calls: list, load and unload engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from gateway.servicers.oip import SERVICE
from synergai.errors import NotSupported, SynergaiError
from synergai.oip import repository_pb2
from synergai.protocol import rpc

if TYPE_CHECKING:
    from gateway.fleet.catalogue import Catalogue
    from gateway.hub.model_control import ModelControl
    from synergai.domain import EngineName
    from synergai.protocol.rpc import Context

_READY: Final = "READY"
_IGNORED_PARAMETERS: Final = frozenset({"unload_dependents"})
"""Parameters without effect: no engine consists of others."""


class RepositoryServicer:
    """Serves the model repository calls of ``inference.GRPCInferenceService``."""

    def __init__(self, control: ModelControl, catalogue: Catalogue) -> None:
        self._control = control
        self._catalogue = catalogue

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "RepositoryIndex": rpc.unary(self.index, repository_pb2.RepositoryIndexRequest),
                "RepositoryModelLoad": rpc.unary(
                    self.load, repository_pb2.RepositoryModelLoadRequest
                ),
                "RepositoryModelUnload": rpc.unary(
                    self.unload, repository_pb2.RepositoryModelUnloadRequest
                ),
            },
        )

    async def index(
        self, request: repository_pb2.RepositoryIndexRequest, _context: Context
    ) -> repository_pb2.RepositoryIndexResponse:
        """Return every known engine with its state."""
        models = map(self._entry, self._catalogue.known_engines())
        return repository_pb2.RepositoryIndexResponse(
            models=[model for model in models if model.state == _READY or not request.ready]
        )

    async def load(
        self, request: repository_pb2.RepositoryModelLoadRequest, context: Context
    ) -> repository_pb2.RepositoryModelLoadResponse:
        """Load an engine on the workers that have it, and put it in service."""
        name = _model_name(request)
        await self._control.load(name, context.time_remaining())
        return repository_pb2.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def unload(
        self, request: repository_pb2.RepositoryModelUnloadRequest, _context: Context
    ) -> repository_pb2.RepositoryModelUnloadResponse:
        """Take an engine out of service, and unload it once idle."""
        name = _model_name(request)
        await self._control.unload(name)
        return repository_pb2.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    def _entry(self, name: EngineName) -> repository_pb2.RepositoryIndexResponse.ModelIndex:
        version, state, reason = "", _READY, ""
        try:
            version = self._catalogue.find(name).version
        except SynergaiError as error:
            state, reason = "UNAVAILABLE", str(error)
            if self._control.is_loading(name):
                state = "LOADING"
            elif name in self._catalogue.unloaded and self._control.is_resident(name):
                state = "UNLOADING"
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
