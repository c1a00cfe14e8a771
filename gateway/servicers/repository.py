"""Triton's and KServe's control of models: which there are, loaded and unloaded by hand."""

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
_HARMLESS: Final = frozenset({"unload_dependents"})
"""Parameters that change nothing here: no engine consists of others."""


class RepositoryServicer:
    """Serves the repository's calls of ``inference.GRPCInferenceService``."""

    def __init__(self, control: ModelControl, catalogue: Catalogue) -> None:
        self._control = control
        self._catalogue = catalogue

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's methods, for a server."""
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
        """Every engine that is here or was, with its state."""
        models = map(self._entry, self._catalogue.known())
        return repository_pb2.RepositoryIndexResponse(
            models=[model for model in models if model.state == _READY or not request.ready]
        )

    async def load(
        self, request: repository_pb2.RepositoryModelLoadRequest, context: Context
    ) -> repository_pb2.RepositoryModelLoadResponse:
        """Have an engine in memory on the workers that have it, and in service."""
        name = _checked(request)
        await self._control.load(name, context.time_remaining())
        return repository_pb2.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def unload(
        self, request: repository_pb2.RepositoryModelUnloadRequest, _context: Context
    ) -> repository_pb2.RepositoryModelUnloadResponse:
        """Take an engine out of service, and out of memory as soon as nothing runs on it."""
        name = _checked(request)
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


def _checked(
    request: repository_pb2.RepositoryModelLoadRequest
    | repository_pb2.RepositoryModelUnloadRequest,
) -> str:
    """The engine that a request names, as Triton does or as KServe does.

    Raises:
        NotSupported: it comes with parameters that would make another engine of it.
    """
    for parameter in request.parameters:
        if parameter not in _HARMLESS:
            raise NotSupported(
                f"the parameter {parameter!r} is not offered: engines are what the workers' model "
                "directories hold; add or change them there"
            )
    return request.model_name or request.repository_name
