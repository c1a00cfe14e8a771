"""Conversion of engines and their statistics to the protocol's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from synergai.domain import UNKNOWN_RANK
from synergai.oip import inference_pb2, model_config_pb2, statistics_pb2
from synergai.versions import split_variant, split_version
from synergai.wire.converters import UNKNOWN_RANK_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.monitoring.counts import Duration, EngineStatistics
    from synergai.domain import Engine, TensorSpec
    from synergai.runtime.clock import Clock

_STRING: Final = "BYTES"


def engine_metadata(engine: Engine, versions: Sequence[str]) -> inference_pb2.ModelMetadataResponse:
    """Convert an engine to the protocol's metadata."""
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
    """Convert `statistics` to Triton's ``ModelStatistics``."""
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
