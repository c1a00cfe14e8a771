"""The protocol's calls, independent of their transport: gRPC servicers and REST routes use them."""

from __future__ import annotations

import asyncio
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported, SynergaiError
from synergai.oip import inference_pb2, model_config_pb2, repository_pb2, statistics_pb2
from synergai.protocol.oip_server.messages import (
    engine_config,
    engine_metadata,
    engine_statistics,
)
from synergai.versions import split_variant, split_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import EngineName
    from synergai.protocol.oip_server.backend import InferenceBackend
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import RawRequest
    from synergai.runtime.clock import Clock

COMMON_EXTENSIONS: Final = (
    "classification",
    "model_configuration",
    "model_repository",
    "model_stream_infer",
    "statistics",
    "synergai_cancel",
    "synergai_window",
)
"""Extensions that every server supports."""
_READY: Final = "READY"
_IGNORED_PARAMETERS: Final = frozenset({"unload_dependents"})
"""Parameters of model control without effect: no engine consists of others."""


def server_metadata(
    name: str, extensions: Iterable[str] = ()
) -> inference_pb2.ServerMetadataResponse:
    """Return name, version and extensions of a server.

    Args:
        name: name of the server.
        extensions: its extensions beside `COMMON_EXTENSIONS`.
    """
    return inference_pb2.ServerMetadataResponse(
        name=name,
        version=package_version("synergai"),
        extensions=sorted((*COMMON_EXTENSIONS, *extensions)),
    )


async def infer(
    backend: InferenceBackend, raw: RawRequest[RequestHeader], budget_s: float | None, tenant: str
) -> Buffer:
    """Run one request and return the serialised ``ModelInferResponse``; cancelling cancels it.

    Args:
        backend: runs the request.
        raw: the request.
        budget_s: seconds until the call's deadline; None if it has none.
        tenant: the tenant, if the request's parameters name none.

    Raises:
        SynergaiError: the request is rejected or fails.
    """
    pending = backend.begin(raw, budget_s, tenant)
    try:
        return await pending.result
    except asyncio.CancelledError:
        pending.abandon()
        raise


async def model_metadata(
    backend: InferenceBackend, name: str, wanted_version: str, budget_s: float | None
) -> inference_pb2.ModelMetadataResponse:
    """Return an engine's inputs and outputs, once it has been inspected.

    Raises:
        SynergaiError: see `InferenceBackend.find_engine`.
        DeadlineExceeded: the budget ran out.
    """
    await backend.wait_inspected(name, wanted_version, budget_s)
    engine = backend.find_engine(name, wanted_version)
    return engine_metadata(engine, backend.versions_in_service(name))


def model_config(
    backend: InferenceBackend, name: str, wanted_version: str
) -> model_config_pb2.ModelConfig:
    """Return an engine's configuration in Triton's format.

    Raises:
        SynergaiError: see `InferenceBackend.find_engine`.
    """
    return engine_config(backend.find_engine(name, wanted_version))


def model_statistics(
    backend: InferenceBackend, clock: Clock, name: str, wanted_version: str
) -> statistics_pb2.ModelStatisticsResponse:
    """Return the statistics of an engine's versions, or of all engines if `name` is empty.

    Those of a version include those of its variants, which follow it.

    Args:
        backend: engines and their statistics.
        clock: clock of the statistics.
        name: name of the engine; empty for all in service.
        wanted_version: the version; empty for all in service.

    Raises:
        SynergaiError: see `InferenceBackend.find_engine`.
    """
    if not name:
        found = [
            (name, version)
            for name in dict.fromkeys(
                split_version(each)[0] for each in backend.engines_in_service()
            )
            for version in backend.versions_in_service(name)
        ]
    elif wanted_version:
        found = [(name, wanted_version)]
    else:  # the empty version is not found, and raises the reason
        found = [(name, version) for version in backend.versions_in_service(name) or ("",)]
    engines = [backend.find_engine(*each) for each in found]
    return statistics_pb2.ModelStatisticsResponse(
        model_stats=[
            engine_statistics(
                engine, backend.statistics(engine.name, split_variant(engine.version)[1]), clock
            )
            for engine in engines
        ]
    )


def repository_index(
    backend: InferenceBackend, *, only_ready: bool
) -> repository_pb2.RepositoryIndexResponse:
    """Return every known engine, or those in service, with its state."""
    models = (_index_entry(backend, engine) for engine in backend.known_engines())
    return repository_pb2.RepositoryIndexResponse(
        models=[model for model in models if model.state == _READY or not only_ready]
    )


def _index_entry(
    backend: InferenceBackend, engine: EngineName
) -> repository_pb2.RepositoryIndexResponse.ModelIndex:
    name, version = split_version(engine)
    state, reason = _READY, ""
    try:
        found = backend.find_engine(name, version)
        reason = found.unverified and f"unverified: {found.unverified}"
    except SynergaiError as error:
        state, reason = backend.state_out_of_service(engine), str(error)
    return repository_pb2.RepositoryIndexResponse.ModelIndex(
        name=name, version=version, state=state, reason=reason
    )


def check_control_parameters(parameters: Iterable[str]) -> None:
    """Check the names of the parameters of a call that loads or unloads an engine.

    Raises:
        NotSupported: a parameter would change the engine.
    """
    for parameter in parameters:
        if parameter not in _IGNORED_PARAMETERS:
            raise NotSupported(
                f"the parameter {parameter!r} is not supported: engines are defined in the "
                "workers' model directories; add or change them there"
            )
