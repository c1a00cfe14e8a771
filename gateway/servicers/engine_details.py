"""Triton's ModelConfig and ModelStatistics calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from gateway.servicers.oip import SERVICE, engine_properties, find_engine
from synergai.oip import model_config_pb2, statistics_pb2
from synergai.protocol import rpc

if TYPE_CHECKING:
    from gateway.fleet.catalogue import Catalogue
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import Engine
    from synergai.protocol.oip_server.statistics import Duration, EngineStatistics
    from synergai.protocol.rpc import Context
    from synergai.runtime.clock import Clock

_STRING: Final = "BYTES"


class EngineDetailsServicer:
    """Serves ModelConfig and ModelStatistics of ``inference.GRPCInferenceService``."""

    def __init__(self, catalogue: Catalogue, metrics: Metrics, clock: Clock) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._clock = clock

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ModelConfig": rpc.unary(self.model_config, model_config_pb2.ModelConfigRequest),
                "ModelStatistics": rpc.unary(
                    self.model_statistics, statistics_pb2.ModelStatisticsRequest
                ),
            },
        )

    async def model_config(
        self, request: model_config_pb2.ModelConfigRequest, _context: Context
    ) -> model_config_pb2.ModelConfigResponse:
        """Return an engine's configuration in Triton's format."""
        engine = find_engine(self._catalogue, request.name, request.version)
        return model_config_pb2.ModelConfigResponse(config=engine_config(engine))

    async def model_statistics(
        self, request: statistics_pb2.ModelStatisticsRequest, _context: Context
    ) -> statistics_pb2.ModelStatisticsResponse:
        """Return the statistics of one engine, or of all in service."""
        if request.name:
            engines = [find_engine(self._catalogue, request.name, request.version)]
        else:
            engines = [self._catalogue.find(name) for name in self._catalogue.in_service()]
        return statistics_pb2.ModelStatisticsResponse(
            model_stats=[
                engine_statistics(engine, self._metrics.engine(engine.name).statistics, self._clock)
                for engine in engines
            ]
        )


def engine_config(engine: Engine) -> model_config_pb2.ModelConfig:
    """Return the configuration of `engine` as Triton's ``ModelConfig``.

    As in Triton, shapes exclude the batch dimension if the engine supports batching; otherwise
    ``max_batch_size`` is 0 and shapes are complete.
    """
    batched = engine.max_batch > 1
    leading = 1 if batched else 0
    return model_config_pb2.ModelConfig(
        name=engine.name,
        platform=engine.backend,
        backend=engine.backend,
        version_policy=_version_policy(engine.version),
        max_batch_size=engine.max_batch if batched else 0,
        dynamic_batching=model_config_pb2.ModelDynamicBatching() if batched else None,
        input=[
            model_config_pb2.ModelInput(
                name=spec.name, data_type=_data_type(spec.datatype), dims=spec.shape[leading:]
            )
            for spec in engine.inputs
        ],
        output=[
            model_config_pb2.ModelOutput(
                name=spec.name, data_type=_data_type(spec.datatype), dims=spec.shape[leading:]
            )
            for spec in engine.outputs
        ],
        parameters={
            name: model_config_pb2.ModelParameter(string_value=value)
            for name, value in engine_properties(engine).items()
        },
        model_transaction_policy=model_config_pb2.ModelTransactionPolicy(decoupled=False),
    )


def _version_policy(version: str) -> model_config_pb2.ModelVersionPolicy:
    """Return a policy for the single version; Triton's are integers, ours any text."""
    policy = model_config_pb2.ModelVersionPolicy
    if version.isdecimal():
        return policy(specific=policy.Specific(versions=[int(version)]))
    return policy(latest=policy.Latest(num_versions=1))


def _data_type(datatype: str) -> model_config_pb2.DataType.ValueType:
    name = "STRING" if datatype == _STRING else datatype
    return model_config_pb2.DataType.Value(f"TYPE_{name}")


def engine_statistics(
    engine: Engine, statistics: EngineStatistics, clock: Clock
) -> statistics_pb2.ModelStatistics:
    """Convert `statistics` to Triton's ``ModelStatistics``."""
    last = statistics.last_query_at
    infer, queries = _message(statistics.compute), statistics.compute.count
    executions = statistics.executions()
    transfer = _message(statistics.transfer)
    output = statistics_pb2.StatisticDuration(count=statistics.transfer.count)
    return statistics_pb2.ModelStatistics(
        name=engine.name,
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
