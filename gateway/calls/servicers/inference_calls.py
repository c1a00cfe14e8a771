"""The calls of the Open Inference Protocol, independent of their transport, for the caller."""

from __future__ import annotations

import asyncio
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.calls.requests.parameters import InferenceCall, RequestId
from gateway.calls.servicers.engine_messages import (
    engine_config,
    engine_metadata,
    engine_statistics,
)
from gateway.entry.access.caller import current_caller
from gateway.entry.access.engines import READERS, visible_engines
from gateway.entry.access.roles import Role
from gateway.entry.audit.calls import REFUSALS, record_refusal
from gateway.fleet.stages import EngineInStages
from synergai.core.route import Route
from synergai.errors import EnginePending, NotSupported, SynergaiError
from synergai.oip import inference_pb2, model_config_pb2, repository_pb2, statistics_pb2
from synergai.versions import (
    parse_version,
    split_variant,
    split_version,
    versioned,
    versioned_variant,
)
from synergai.wire.call_metadata import NO_IDS, TRACEPARENT, valid_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.calls.requests.held import HeldRequests
    from gateway.calls.requests.inference import Inference
    from gateway.calls.requests.staged import StagedRequests
    from gateway.entry.admission.admission import Admission
    from gateway.fleet.versions import Versions
    from gateway.hub.model_control import ModelControl
    from gateway.monitoring.metrics import Metrics
    from gateway.monitoring.tracing import Trace, Tracing
    from synergai.domain import Engine, EngineName
    from synergai.runtime.clock import Clock
    from synergai.wire.call_metadata import CallIds
    from synergai.wire.request_codec import Buffer, RequestHeader
    from synergai.wire.rpc import PendingCall, RawRequest

_EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_stream_infer",
    "parameters",
    "schedule_policy",
    "statistics",
    "synergai_cancel",
    "synergai_min_accuracy",
    "synergai_tenant",
    "synergai_timings",
    "synergai_window",
)
_READY: Final = "READY"
_IGNORED_PARAMETERS: Final = frozenset({"unload_dependents"})
"""Parameters of model control without effect: no engine consists of others."""


def server_metadata() -> inference_pb2.ServerMetadataResponse:
    """Return name, version and extensions of the server."""
    return inference_pb2.ServerMetadataResponse(
        name="synergai", version=package_version("synergai"), extensions=_EXTENSIONS
    )


class InferenceCalls:
    """The calls, which gRPC servicers and REST routes convert.

    All that concern an engine raise `Unauthenticated` or `PermissionDenied` if the caller may not
    make them, and for an engine the errors of `Versions.find`.
    """

    def __init__(
        self,
        inference: Inference,
        held: HeldRequests,
        staged: StagedRequests,
        versions: Versions,
        admission: Admission,
        metrics: Metrics,
        model_control: ModelControl,
        clock: Clock,
        tracing: Tracing | None = None,
    ) -> None:
        self.metadata = server_metadata()
        self._inference = inference
        self._held = held
        self._staged = staged
        self._versions = versions
        self._catalogue = versions.catalogue
        self._admission = admission
        self._metrics = metrics
        self._model_control = model_control
        self._clock = clock
        self._tracing = tracing

    def is_ready(self) -> bool:
        """Return whether requests are accepted."""
        return self._admission.open

    # --- inference ------------------------------------------------------------------------------

    async def infer(
        self,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        ids: CallIds = NO_IDS,
    ) -> Buffer:
        """Run one request and return the serialised response; cancelling cancels it."""
        pending = self.begin(raw, budget_s, tenant, ids)
        try:
            return await pending.result
        except asyncio.CancelledError:
            pending.abandon()
            raise

    def begin(
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
                if self._catalogue.stages.any and (staged := self._staged.begin(call)):
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
        self, tracing: Tracing, ids: CallIds, message: inference_pb2.ModelInferRequest
    ) -> Trace | None:
        """Return the trace of a request, if it is sampled."""
        traceparent = ids.traceparent
        if not traceparent and TRACEPARENT in message.parameters:
            traceparent = message.parameters[TRACEPARENT].string_param
        return tracing.begin(traceparent)

    # --- engines --------------------------------------------------------------------------------

    def find_engine(self, name: str, version: str) -> Engine:
        """Return a version of an engine in service, or a variant of it."""
        current_caller().check(*READERS, engine=name)
        try:
            engine = self._versions.find(name, version)
        except EngineInStages as error:
            return Route(error.stages).whole
        return of_variant(engine, parse_version(version)[1]) if "." in version else engine

    async def model_metadata(
        self, name: str, version: str, budget_s: float | None
    ) -> inference_pb2.ModelMetadataResponse:
        """Return an engine's inputs and outputs, once it has been inspected."""
        current_caller().check(*READERS, engine=name)
        await self._versions.wait_inspected(name, version, budget_s)
        return engine_metadata(self.find_engine(name, version), self.versions_of(name))

    def model_config(self, name: str, version: str) -> model_config_pb2.ModelConfig:
        """Return an engine's configuration in Triton's format."""
        return engine_config(self.find_engine(name, version))

    def statistics(self, name: str, version: str) -> statistics_pb2.ModelStatisticsResponse:
        """Return the statistics of an engine's versions and their variants, or of all engines."""
        if not name:
            visible = visible_engines(current_caller(), self._catalogue.in_service())
            names = dict.fromkeys(split_version(each)[0] for each in visible)
            found = [(name, version) for name in names for version in self.versions_of(name)]
        elif version:
            found = [(name, version)]
        else:  # the empty version is not found, and raises the reason
            found = [(name, each) for each in self.versions_of(name) or ("",)]
        models = []
        for engine in [self.find_engine(*each) for each in found]:
            metrics = self._metrics.engines[engine.name]
            variant = split_variant(engine.version)[1]
            statistics = metrics.variant(variant).statistics if variant else metrics.statistics
            models.append(engine_statistics(engine, statistics, self._clock))
        return statistics_pb2.ModelStatisticsResponse(model_stats=models)

    def index(self, *, only_ready: bool) -> repository_pb2.RepositoryIndexResponse:
        """Return every known engine, or those in service, with its state."""
        known = visible_engines(current_caller(), self._catalogue.known_engines())
        models = map(self._index_entry, known)
        return repository_pb2.RepositoryIndexResponse(
            models=[model for model in models if model.state == _READY or not only_ready]
        )

    def versions_of(self, name: str) -> Sequence[str]:
        """Return the versions of an engine that accept requests, each before its variants."""
        return with_variants(
            (version, [each.name for each in self._catalogue.variants_of(versioned(name, version))])
            for version in self._versions.in_service(name)
        )

    def _index_entry(self, engine: EngineName) -> repository_pb2.RepositoryIndexResponse.ModelIndex:
        name, version = split_version(engine)
        state, reason = _READY, ""
        try:
            found = self.find_engine(name, version)
            reason = found.unverified and f"unverified: {found.unverified}"
        except SynergaiError as error:
            state, reason = self._state_out_of_service(engine), str(error)
        return repository_pb2.RepositoryIndexResponse.ModelIndex(
            name=name, version=version, state=state, reason=reason
        )

    def _state_out_of_service(self, name: EngineName) -> str:
        if self._model_control.is_loading(name):
            return "LOADING"
        if name in self._catalogue.unloaded and self._model_control.is_resident(name):
            return "UNLOADING"
        return "UNAVAILABLE"

    # --- model control --------------------------------------------------------------------------

    async def load(self, name: str, parameters: Iterable[str], budget_s: float | None) -> None:
        """Load an engine ``NAME``, or a version ``NAME/N``, and put it in service."""
        _check_control_parameters(parameters)
        current_caller().check(Role.OPERATE, engine=name)
        await self._model_control.load_any(self._versions.selected(name), budget_s)

    async def unload(self, name: str, parameters: Iterable[str]) -> None:
        """Take an engine ``NAME``, or ``NAME/N``, out of service, and unload it once idle."""
        _check_control_parameters(parameters)
        current_caller().check(Role.OPERATE, engine=name)
        for engine in self._versions.selected(name):
            await self._model_control.unload(engine)


def with_variants(versions: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return versions with the names of their variants, such as ``2`` and then ``2.int8``."""
    return [
        versioned_variant(version, name)
        for version, variants in versions
        for name in ("", *variants)
    ]


def of_variant(engine: Engine, variant: str) -> Engine:
    """Return the description of an engine with only one of its variants, which it has."""
    [found] = [each for each in engine.variants if each.name == variant]
    return replace(
        engine,
        version=versioned_variant(engine.version, variant),
        digest=found.digest,
        variants=(found,),
    )


def _check_control_parameters(parameters: Iterable[str]) -> None:
    """Refuse parameters that would change the engine."""
    for parameter in parameters:
        if parameter not in _IGNORED_PARAMETERS:
            raise NotSupported(
                f"the parameter {parameter!r} is not supported: engines are defined in the "
                "workers' model directories; add or change them there"
            )
