"""The domain's words to protobuf and back.

What comes off the wire is checked by the functions that read it: a peer that sends nonsense
gets `InvalidInput`, and nothing unchecked enters the domain.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.domain import (
    MAX_BATCH,
    BatchTimes,
    Configuration,
    Engine,
    EngineName,
    Session,
    TensorSpec,
    WorkerClass,
    validate_name,
)
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ProfileEntry
from synergai.protocol.validation import DATATYPES
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.oip import inference_pb2

MAX_THREADS: Final = 1024
_MAX_TENSORS: Final = 1024
_MAX_RANK: Final = 64
_MAX_TEXT: Final = 4096


def configuration_to_proto(configuration: Configuration) -> common_pb2.Configuration:
    """The message for `configuration`."""
    return common_pb2.Configuration(
        threads=configuration.threads,
        power_mode=configuration.power_mode,
        execution_provider=configuration.execution_provider,
    )


def configuration_from_proto(message: common_pb2.Configuration) -> Configuration:
    """The configuration in `message`.

    Raises:
        InvalidInput: the number of threads or a name is out of bounds.
    """
    if message.threads > MAX_THREADS:
        raise InvalidInput(f"threads must be from 0 to {MAX_THREADS}, not {message.threads}")
    if message.power_mode:
        validate_name(message.power_mode, "power mode")
    if message.execution_provider:
        validate_name(message.execution_provider, "execution provider")
    return Configuration(message.threads, message.power_mode, message.execution_provider)


def session_to_proto(session: Session) -> common_pb2.Session:
    """The message for `session`."""
    return common_pb2.Session(
        engine=session.engine, configuration=configuration_to_proto(session.configuration)
    )


def session_from_proto(message: common_pb2.Session) -> Session:
    """The session in `message`.

    Raises:
        InvalidInput: the engine's name or the configuration is not valid.
    """
    engine = EngineName(validate_name(message.engine, "engine name"))
    return Session(engine, configuration_from_proto(message.configuration))


def tensor_to_proto(spec: TensorSpec) -> common_pb2.TensorSpec:
    """The message for `spec`."""
    return common_pb2.TensorSpec(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def tensor_from_proto(message: common_pb2.TensorSpec) -> TensorSpec:
    """The tensor in `message`.

    Raises:
        InvalidInput: it has no name, an unknown datatype, or an impossible shape.
    """
    _checked_text(message.name, "a tensor's name")
    if not message.name:
        raise InvalidInput("a tensor has no name")
    if message.datatype not in DATATYPES:
        raise InvalidInput(f"tensor {message.name!r} has the unknown datatype {message.datatype!r}")
    shape = tuple(message.shape)
    if len(shape) > _MAX_RANK or any(size < -1 for size in shape):
        raise InvalidInput(f"tensor {message.name!r} has an impossible shape")
    return TensorSpec(message.name, message.datatype, shape)


def engine_to_proto(engine: Engine) -> common_pb2.Engine:
    """The message for `engine`; a fault is shortened to what a peer takes."""
    return common_pb2.Engine(
        name=engine.name,
        version=engine.version,
        backend=engine.backend,
        inputs=map(tensor_to_proto, engine.inputs),
        outputs=map(tensor_to_proto, engine.outputs),
        digest=engine.digest,
        samples=engine.samples,
        fault=engine.fault[:_MAX_TEXT],
        preprocess=engine.preprocess,
        postprocess=engine.postprocess,
        max_batch=engine.max_batch,
    )


def engine_from_proto(message: common_pb2.Engine) -> Engine:
    """The engine in `message`.

    Raises:
        InvalidInput: a name is not valid, a tensor is impossible or named twice, or a usable
            engine has no inputs or outputs.
    """
    name = EngineName(validate_name(message.name, "engine name"))
    where = f"engine {name!r}"
    if message.version:
        validate_name(message.version, "engine version")
    if message.backend:
        validate_name(message.backend, "backend")
    if message.preprocess:
        validate_name(message.preprocess, "pre-processing")
    if message.postprocess:
        validate_name(message.postprocess, "post-processing")
    if message.max_batch > MAX_BATCH:
        raise InvalidInput(f"{where} cannot compute {message.max_batch} queries together")
    if max(len(message.inputs), len(message.outputs)) > _MAX_TENSORS:
        raise InvalidInput(f"{where} has more than {_MAX_TENSORS} inputs or outputs")
    inputs = tuple(map(tensor_from_proto, message.inputs))
    outputs = tuple(map(tensor_from_proto, message.outputs))
    if not message.fault and not (inputs and outputs):
        raise InvalidInput(f"{where} has no inputs or no outputs")
    for tensors in (inputs, outputs):
        if len({spec.name for spec in tensors}) != len(tensors):
            raise InvalidInput(f"{where} has two tensors of the same name")
    return Engine(
        name=name,
        version=message.version,
        backend=message.backend,
        inputs=inputs,
        outputs=outputs,
        digest=_checked_text(message.digest, f"the digest of {where}"),
        samples=message.samples,
        fault=_checked_text(message.fault, f"the fault of {where}"),
        preprocess=message.preprocess,
        postprocess=message.postprocess,
        max_batch=message.max_batch or 1,
    )


def engine_from_metadata(message: inference_pb2.ModelMetadataResponse) -> Engine:
    """The engine that a gateway describes to its clients."""
    inputs, outputs = (
        tuple(TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
        for tensors in (message.inputs, message.outputs)
    )
    return Engine(
        name=EngineName(message.name),
        version=message.versions[0] if message.versions else "",
        backend=message.platform,
        inputs=inputs,
        outputs=outputs,
        digest=message.properties.get("digest", ""),
        preprocess=message.properties.get("preprocess", ""),
        postprocess=message.properties.get("postprocess", ""),
    )


def batch_times_from_proto(seconds: Sequence[float]) -> BatchTimes | None:
    """The times of batches in an assignment that may share a batch; None if it may not.

    Raises:
        InvalidInput: a time is not one, or there are more than batches have sizes.
    """
    if not seconds:
        return None
    if len(seconds) > MAX_BATCH.bit_length() or not all(0 <= each < math.inf for each in seconds):
        raise InvalidInput("batches cannot take the times that an assignment says")
    return BatchTimes(tuple(seconds))


def profile_entry_to_proto(entry: ProfileEntry) -> common_pb2.ProfileEntry:
    """The message for `entry`."""
    return common_pb2.ProfileEntry(
        engine=entry.engine,
        worker_class=entry.worker_class,
        configuration=configuration_to_proto(entry.configuration),
        qps=entry.qps,
        backend_start_s=entry.backend_start_s,
        model_load_s=entry.model_load_s,
        data_preparation_s=entry.data_preparation_s,
        latency_p50_s=entry.latency_p50_s,
        latency_p90_s=entry.latency_p90_s,
        latency_p99_s=entry.latency_p99_s,
        watts=entry.watts,
        queries=entry.queries,
        label=entry.label,
        measured_at=entry.measured_at,
        batch_qps=entry.batch_qps,
    )


def profile_entry_from_proto(message: common_pb2.ProfileEntry) -> ProfileEntry:
    """The dictionary entry in `message`.

    Raises:
        InvalidInput: a name is not valid or a figure is impossible.
    """
    return ProfileEntry(
        engine=EngineName(validate_name(message.engine, "engine name")),
        worker_class=WorkerClass(validate_name(message.worker_class, "worker class")),
        configuration=configuration_from_proto(message.configuration),
        qps=message.qps,
        backend_start_s=message.backend_start_s,
        model_load_s=message.model_load_s,
        data_preparation_s=message.data_preparation_s,
        latency_p50_s=message.latency_p50_s,
        latency_p90_s=message.latency_p90_s,
        latency_p99_s=message.latency_p99_s,
        watts=message.watts,
        queries=message.queries,
        label=_checked_words(message.label, "the label of a dictionary entry"),
        measured_at=_checked_words(message.measured_at, "the date of a dictionary entry"),
        batch_qps=tuple(message.batch_qps),
    )


def _checked_text(text: str, what: str) -> str:
    if len(text) > _MAX_TEXT:
        raise InvalidInput(f"{what} is longer than {_MAX_TEXT} characters")
    return text


def _checked_words(text: str, what: str) -> str:
    """A text that people are shown on their terminals."""
    if not text.isprintable():
        raise InvalidInput(f"{what} has control characters")
    return _checked_text(text, what)
