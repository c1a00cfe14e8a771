"""The calls on the server and its engines, for gRPC and REST alike."""

from __future__ import annotations

from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gateway.entry.access.caller import READERS, Role, current_caller, visible_engines
from gateway.fleet.stages import EngineInStages
from synergai.core.route import Route
from synergai.domain import UNKNOWN_RANK, Engine, EngineName, TensorSpec
from synergai.errors import NotSupported, SynergaiError
from synergai.names import parse_version, split_variant, split_version, versioned, versioned_variant
from synergai.oip import inference_pb2, model_config_pb2, repository_pb2, statistics_pb2
from synergai.wire.converters import UNKNOWN_RANK_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.entry.admission import Admission
    from gateway.fleet.versions import Versions
    from gateway.hub.model_control import ModelControl
    from gateway.monitoring.counts import Duration, EngineStatistics
    from gateway.monitoring.metrics import Metrics
    from synergai.runtime.clock import Clock

_STRING: Final = "BYTES"
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
    return inference_pb2.ServerMetadataResponse(
        name="synergai", version=package_version("synergai"), extensions=_EXTENSIONS
    )


class EngineCalls:
    """The calls; gRPC servicers and REST routes convert what they return.

    All that concern an engine raise `Unauthenticated` or `PermissionDenied` if the caller may not
    make them, and for an engine the errors of `Versions.find`.
    """

    def __init__(
        self,
        versions: Versions,
        admission: Admission,
        metrics: Metrics,
        model_control: ModelControl,
        clock: Clock,
    ) -> None:
        self.metadata = server_metadata()
        self._versions = versions
        self._catalogue = versions.catalogue
        self._admission = admission
        self._metrics = metrics
        self._model_control = model_control
        self._clock = clock

    def is_ready(self) -> bool:
        """Return whether requests are accepted."""
        return self._admission.open

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


# --- messages ---------------------------------------------------------------------------------


def engine_metadata(engine: Engine, versions: Sequence[str]) -> inference_pb2.ModelMetadataResponse:
    # Clients of the protocol do not learn otherwise which version the tensors are of.
    described = {"version": engine.version} if len(versions) > 1 else {}
    return inference_pb2.ModelMetadataResponse(
        name=split_version(engine.name)[0],
        versions=versions,
        platform=engine.backend,
        inputs=map(_tensor_metadata, engine.inputs),
        outputs=map(_tensor_metadata, engine.outputs),
        properties=engine_properties(engine) | described,
    )


def _tensor_metadata(spec: TensorSpec) -> inference_pb2.ModelMetadataResponse.TensorMetadata:
    return inference_pb2.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=_shape(spec)
    )


def _shape(spec: TensorSpec, leading: int = 0) -> tuple[int, ...]:
    """Return a shape without its `leading` dimensions.

    The protocol knows no unknown rank: one dynamic dimension is the closest shape, and a property
    names these tensors.
    """
    return (-1,) if spec.shape == UNKNOWN_RANK else spec.shape[leading:]


def engine_properties(engine: Engine) -> dict[str, str]:
    """Return the engine's nonempty properties beyond the protocol's own fields."""
    tensors = (*engine.inputs, *engine.outputs)
    unranked = [spec.name for spec in tensors if spec.shape == UNKNOWN_RANK]
    properties = {
        UNKNOWN_RANK_PROPERTY: msgspec.json.encode(unranked).decode() if unranked else "",
        "digest": engine.digest,
        "preprocess": engine.preprocess,
        "postprocess": engine.postprocess,
        "unverified": engine.unverified,
    }
    return {name: value for name, value in properties.items() if value}


def engine_config(engine: Engine) -> model_config_pb2.ModelConfig:
    """Return the configuration of `engine` as Triton's ``ModelConfig``.

    As in Triton, shapes exclude the batch dimension if the engine supports batching; otherwise
    ``max_batch_size`` is 0 and shapes are complete.
    """
    batched = engine.max_batch > 1
    leading = 1 if batched else 0
    return model_config_pb2.ModelConfig(
        name=split_version(engine.name)[0],
        platform=engine.backend,
        backend=engine.backend,
        version_policy=model_config_pb2.ModelVersionPolicy(
            specific=model_config_pb2.ModelVersionPolicy.Specific(
                versions=[int(split_variant(engine.version)[0])]
            )
        ),
        max_batch_size=engine.max_batch if batched else 0,
        dynamic_batching=model_config_pb2.ModelDynamicBatching() if batched else None,
        input=[
            model_config_pb2.ModelInput(
                name=spec.name, data_type=_data_type(spec.datatype), dims=_shape(spec, leading)
            )
            for spec in engine.inputs
        ],
        output=[
            model_config_pb2.ModelOutput(
                name=spec.name, data_type=_data_type(spec.datatype), dims=_shape(spec, leading)
            )
            for spec in engine.outputs
        ],
        parameters={
            name: model_config_pb2.ModelParameter(string_value=value)
            for name, value in engine_properties(engine).items()
        },
        model_transaction_policy=model_config_pb2.ModelTransactionPolicy(decoupled=False),
    )


def _data_type(datatype: str) -> model_config_pb2.DataType.ValueType:
    name = "STRING" if datatype == _STRING else datatype
    return model_config_pb2.DataType.Value(f"TYPE_{name}")


def engine_statistics(
    engine: Engine, statistics: EngineStatistics, clock: Clock
) -> statistics_pb2.ModelStatistics:
    last = statistics.last_query_at
    infer, queries = _message(statistics.compute), statistics.compute.count
    executions = statistics.executions()
    transfer = _message(statistics.transfer)
    output = statistics_pb2.StatisticDuration(count=statistics.transfer.count)
    return statistics_pb2.ModelStatistics(
        name=split_version(engine.name)[0],
        version=engine.version,
        last_inference=0 if last is None else round(clock.to_unix(last) * 1e3),
        inference_count=queries,
        execution_count=sum(duration.count for duration in executions.values()),
        inference_stats=statistics_pb2.InferStatistics(
            success=_message(statistics.success),
            fail=_message(statistics.fail),
            queue=_message(statistics.queue),
            compute_input=transfer,
            compute_infer=infer,
            compute_output=output,
            rejected=_message(statistics.rejected),
            expired=_message(statistics.expired),
            cancelled=_message(statistics.cancelled),
        ),
        batch_stats=[
            statistics_pb2.InferBatchStatistics(
                batch_size=size,
                # Transfer time is not known by batch size.
                compute_input=transfer if size == 1 else None,
                compute_infer=_message(duration),
                compute_output=output if size == 1 else None,
            )
            for size, duration in executions.items()
        ],
        # Triton's own tools read cancellations from here.
        response_stats={
            "0": statistics_pb2.InferResponseStatistics(
                success=_message(statistics.success),
                fail=_message(statistics.fail),
                cancel=_message(statistics.cancelled),
            )
        },
    )


def _message(duration: Duration) -> statistics_pb2.StatisticDuration:
    return statistics_pb2.StatisticDuration(count=duration.count, ns=round(duration.seconds * 1e9))
