"""Conversion between domain types and protobuf messages.

The ``*_from_proto`` functions validate: an invalid message raises `InvalidInput`, so domain objects
are always valid. Fields with the same name and type on both sides are copied without being named
here; what occurs in each assignment is converted field by field, which takes less time.
"""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import structs

from synergai.domain import (
    MAX_BATCH,
    MAX_THREADS,
    MAX_VARIANTS,
    UNKNOWN_RANK,
    BatchTimes,
    Configuration,
    Engine,
    EngineName,
    Exit,
    Origin,
    Session,
    TensorSpec,
    UnusableSession,
    UnusedVariant,
    Variant,
    WorkerId,
)
from synergai.errors import InvalidInput
from synergai.jobs import Execution, JobSpec, JobState, JobStatus
from synergai.names import (
    parse_version,
    split_version,
    validate_engine,
    validate_name,
    validate_variant,
)
from synergai.profiles.dictionary import ProfileEntry
from synergai.v1 import common_pb2, jobs_pb2
from synergai.wire.validation import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.message import Message

    from synergai.oip import inference_pb2

T = TypeVar("T")

_MAX_TENSORS: Final = 1024
_MAX_RANK: Final = 64
UNKNOWN_RANK_PROPERTY: Final = "unknown_rank"
"""Property of an engine's metadata: JSON list of the tensors that may have any rank."""
_MAX_TEXT: Final = 4096
_CONVERTED: Final = frozenset({"spec", "state", "executions", "submitted_at", "finished_at"})
"""Fields of a job's status with other types in its message."""


def from_message(kind: type[T], message: Message, **converted: Any) -> T:
    """Return a `kind` with the fields that the message has as well, and those `converted`.

    Fields that are optional and absent become None.
    """
    for field in message.DESCRIPTOR.fields:
        name = field.name
        if name not in converted and hasattr(kind, name):
            absent = field.has_presence and not message.HasField(name)
            converted[name] = None if absent else getattr(message, name)
    return kind(**converted)


def configuration_to_proto(configuration: Configuration) -> common_pb2.Configuration:
    return common_pb2.Configuration(
        threads=configuration.threads,
        power_mode=configuration.power_mode,
        execution_provider=configuration.execution_provider,
        variant=configuration.variant,
    )


def configuration_from_proto(message: common_pb2.Configuration) -> Configuration:
    if message.threads > MAX_THREADS:
        raise InvalidInput(f"threads must be from 0 to {MAX_THREADS}, not {message.threads}")
    if message.power_mode:
        validate_name(message.power_mode, "power mode")
    if message.execution_provider:
        validate_name(message.execution_provider, "execution provider")
    if message.variant:
        validate_variant(message.variant)
    return Configuration(
        message.threads, message.power_mode, message.execution_provider, message.variant
    )


def unusable_session_to_proto(unusable: UnusableSession) -> common_pb2.UnusableSession:
    return common_pb2.UnusableSession(
        session=session_to_proto(unusable.session), reason=unusable.reason
    )


def unusable_session_from_proto(message: common_pb2.UnusableSession) -> UnusableSession:
    return UnusableSession(session_from_proto(message.session), message.reason)


def session_to_proto(session: Session) -> common_pb2.Session:
    return common_pb2.Session(
        engine=session.engine, configuration=configuration_to_proto(session.configuration)
    )


def session_from_proto(message: common_pb2.Session) -> Session:
    engine = validate_engine(message.engine)
    return Session(engine, configuration_from_proto(message.configuration))


def tensor_to_proto(spec: TensorSpec) -> common_pb2.TensorSpec:
    return common_pb2.TensorSpec(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def tensor_from_proto(message: common_pb2.TensorSpec) -> TensorSpec:
    _validate_text(message.name, "a tensor's name")
    if not message.name:
        raise InvalidInput("a tensor has no name")
    if message.datatype not in DATATYPES:
        raise InvalidInput(f"tensor {message.name!r} has the unknown datatype {message.datatype!r}")
    shape = tuple(message.shape)
    is_valid = shape == UNKNOWN_RANK or all(size >= -1 for size in shape)
    if len(shape) > _MAX_RANK or not is_valid:
        raise InvalidInput(f"tensor {message.name!r} has an invalid shape")
    return TensorSpec(message.name, message.datatype, shape)


def engine_to_proto(engine: Engine) -> common_pb2.Engine:
    """Convert an engine to its message; long reasons are truncated to what peers accept."""
    fields = structs.asdict(engine) | {
        "inputs": map(tensor_to_proto, engine.inputs),
        "outputs": map(tensor_to_proto, engine.outputs),
        "variants": map(variant_to_proto, engine.variants),
        "unused_variants": [
            common_pb2.UnusedVariant(name=each.variant, reason=each.reason[:_MAX_TEXT])
            for each in engine.unused_variants[:MAX_VARIANTS]
        ],
        "exit": None if engine.exit is None else common_pb2.Exit(**structs.asdict(engine.exit)),
    }
    for name in ("fault", "unverified"):
        fields[name] = fields[name][:_MAX_TEXT]
    return common_pb2.Engine(**fields)


def variant_to_proto(variant: Variant) -> common_pb2.Variant:
    return common_pb2.Variant(**structs.asdict(variant) | {"origin": variant.origin.value})


def variant_from_proto(message: common_pb2.Variant) -> Variant:
    try:
        origin = Origin(message.origin)
    except ValueError:
        raise InvalidInput(f"variant {message.name!r} has an unknown origin") from None
    _validate_text(message.digest, "the digest of a variant")
    return from_message(Variant, message, origin=origin)


def exit_from_proto(message: common_pb2.Exit, outputs: Iterable[TensorSpec]) -> Exit:
    """Convert a message to the early exit of a stage with these outputs."""
    if message.output not in {spec.name for spec in outputs}:
        raise InvalidInput("an early exit is at an output that its stage lacks")
    return from_message(Exit, message)


def engine_from_proto(message: common_pb2.Engine) -> Engine:
    name = validate_engine(message.name)
    where = f"engine {name!r}"
    if message.backend:
        validate_name(message.backend, "backend")
    if message.preprocess:
        validate_name(message.preprocess, "pre-processing")
    if message.postprocess:
        validate_name(message.postprocess, "post-processing")
    if message.max_batch > MAX_BATCH:
        raise InvalidInput(f"{where} has max_batch {message.max_batch}; the limit is {MAX_BATCH}")
    if max(len(message.inputs), len(message.outputs)) > _MAX_TENSORS:
        raise InvalidInput(f"{where} has more than {_MAX_TENSORS} inputs or outputs")
    inputs = tuple(map(tensor_from_proto, message.inputs))
    outputs = tuple(map(tensor_from_proto, message.outputs))
    if not message.fault and not (inputs and outputs):
        raise InvalidInput(f"{where} has no inputs or no outputs")
    for tensors in (inputs, outputs):
        if len({spec.name for spec in tensors}) != len(tensors):
            raise InvalidInput(f"{where} has two tensors of the same name")
    if max(len(message.variants), len(message.unused_variants)) > MAX_VARIANTS:
        raise InvalidInput(f"{where} has more than {MAX_VARIANTS} variants")
    variants = tuple(map(variant_from_proto, message.variants))
    if len({variant.name for variant in variants}) != len(variants):
        raise InvalidInput(f"{where} has two variants of the same name")
    texts = ("digest", "fault", "unverified", "samples_digest", "stage_of")
    for field in (*texts, "routes"):
        _validate_text(getattr(message, field), f"the field {field} of {where}")
    for each in message.unused_variants:
        _validate_text(each.reason, "the reason why a variant is left out")
    return from_message(
        Engine,
        message,
        name=name,
        version=split_version(name)[1],
        inputs=inputs,
        outputs=outputs,
        max_batch=message.max_batch or 1,
        variants=variants,
        unused_variants=tuple(
            UnusedVariant(each.name, each.reason) for each in message.unused_variants
        ),
        query_s=message.query_s if 0.0 < message.query_s < math.inf else 0.0,
        exit=exit_from_proto(message.exit, outputs) if message.HasField("exit") else None,
    )


def engine_from_metadata(message: inference_pb2.ModelMetadataResponse) -> Engine:
    unranked = msgspec.json.decode(
        message.properties.get(UNKNOWN_RANK_PROPERTY) or "[]", type=list[str]
    )
    inputs, outputs = (
        tuple(
            TensorSpec(
                tensor.name,
                tensor.datatype,
                UNKNOWN_RANK if tensor.name in unranked else tuple(tensor.shape),
            )
            for tensor in tensors
        )
        for tensors in (message.inputs, message.outputs)
    )
    return Engine(
        name=EngineName(message.name),
        version=message.properties.get("version") or "".join(message.versions[:1]),
        backend=message.platform,
        inputs=inputs,
        outputs=outputs,
        digest=message.properties.get("digest", ""),
        unverified=message.properties.get("unverified", ""),
        preprocess=message.properties.get("preprocess", ""),
        postprocess=message.properties.get("postprocess", ""),
    )


def batch_times_from_proto(seconds: Sequence[float]) -> BatchTimes | None:
    """Convert the times of batches of 1, 2, 4, 8, … queries; None if there are none."""
    if not seconds:
        return None
    if len(seconds) > MAX_BATCH.bit_length() or not all(0 <= each < math.inf for each in seconds):
        raise InvalidInput("an assignment has invalid batch times")
    return BatchTimes(tuple(seconds))


def profile_entry_to_proto(entry: ProfileEntry) -> common_pb2.ProfileEntry:
    fields = structs.asdict(entry)
    fields["configuration"] = configuration_to_proto(entry.configuration)
    return common_pb2.ProfileEntry(**fields)


def profile_entry_from_proto(message: common_pb2.ProfileEntry) -> ProfileEntry:
    fields = {name: getattr(message, name) for name in ProfileEntry.__struct_fields__}
    fields["configuration"] = configuration_from_proto(message.configuration)
    fields["batch_qps"] = tuple(message.batch_qps)
    _validate_printable(message.label, "the label of a dictionary entry")
    _validate_printable(message.measured_at, "the date of a dictionary entry")
    for name in ("digest", "runtime", "agent", "timer", "samples_digest"):
        _validate_printable(getattr(message, name), f"the {name} of a dictionary entry")
    return ProfileEntry(**fields)


def job_spec_to_proto(spec: JobSpec) -> jobs_pb2.JobSpec:
    """Convert `spec` to its message; an infinite QoS is left out."""
    fields = structs.asdict(spec)
    qos = fields.pop("qos")
    return jobs_pb2.JobSpec(qos_s=None if math.isinf(qos) else qos, **fields)


def job_spec_from_proto(message: jobs_pb2.JobSpec) -> JobSpec:
    version, variant = message.version, message.variant
    if not variant and "." in version:  # as in model_version of requests
        version, variant = parse_version(version)
    qos = message.qos_s if message.HasField("qos_s") else math.inf
    return from_message(JobSpec, message, qos=qos, version=version, variant=variant)


def execution_to_proto(execution: Execution) -> jobs_pb2.Execution:
    return jobs_pb2.Execution(
        worker_id=execution.worker_id,
        configuration=configuration_to_proto(execution.configuration),
        first=execution.first,
        count=execution.count,
        seconds=execution.seconds,
    )


def execution_from_proto(message: jobs_pb2.Execution) -> Execution:
    return Execution(
        worker_id=WorkerId(message.worker_id),
        configuration=configuration_from_proto(message.configuration),
        first=message.first,
        count=message.count,
        seconds=message.seconds,
    )


def job_status_to_proto(status: JobStatus) -> jobs_pb2.Job:
    same = (each.name for each in dataclasses.fields(status) if each.name not in _CONVERTED)
    message = jobs_pb2.Job(
        spec=job_spec_to_proto(status.spec),
        state=jobs_pb2.JobState.ValueType(status.state.value),
        executions=map(execution_to_proto, status.executions),
        **{name: getattr(status, name) for name in same},
    )
    message.submitted_at.FromDatetime(status.submitted_at)
    if status.finished_at is not None:
        message.finished_at.FromDatetime(status.finished_at)
    return message


def job_status_from_proto(message: jobs_pb2.Job) -> JobStatus:
    finished_at = message.finished_at if message.HasField("finished_at") else None
    return from_message(
        JobStatus,
        message,
        spec=job_spec_from_proto(message.spec),
        state=_job_state(message.state),
        submitted_at=message.submitted_at.ToDatetime(tzinfo=UTC),
        finished_at=None if finished_at is None else finished_at.ToDatetime(tzinfo=UTC),
        executions=tuple(map(execution_from_proto, message.executions)),
        stages=tuple(map(EngineName, message.stages)),
    )


def _job_state(number: int) -> JobState:
    try:
        return JobState(number)
    except ValueError:
        raise InvalidInput(f"the server sent the unknown job state {number}") from None


def _validate_text(text: str, name: str) -> str:
    if len(text) > _MAX_TEXT:
        raise InvalidInput(f"{name} is longer than {_MAX_TEXT} characters")
    return text


def _validate_printable(text: str, name: str) -> str:
    if not text.isprintable():
        raise InvalidInput(f"{name} contains control characters")
    return _validate_text(text, name)
