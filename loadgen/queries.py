"""What is sent: one serialised request for each sample of a sample set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engines.model_directory import EngineDefinition, ModelDirectory
from engines.samples import load_samples, random_samples
from synergai import arrays
from synergai.domain import EngineName, TensorSpec
from synergai.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.settings import LoadgenSettings
    from synergai.oip import inference_pb2


@dataclass(frozen=True, slots=True)
class Queries:
    """Requests by sample, ready to be sent.

    Attributes:
        requests: serialised ``inference.ModelInferRequest``s.
        origin: where the samples are from, for people.
    """

    requests: Sequence[bytes]
    origin: str


def queries_for(
    settings: LoadgenSettings, metadata: inference_pb2.ModelMetadataResponse
) -> Queries:
    """The queries of the engine's sample set, or of seeded random inputs if there is none.

    Raises:
        InvalidInput: the sample set is not one, or not for this engine.
    """
    specs = [
        TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in metadata.inputs
    ]
    definition = _definition(settings)
    if definition is None or definition.samples is None:
        samples = random_samples(specs)
        origin = f"{len(samples)} random inputs"
    else:
        samples = load_samples(definition, specs)
        origin = f"{len(samples)} samples of {definition.samples}"
    timeout = _timeout_us(settings)
    parameters = {} if timeout is None else {"timeout": timeout}
    requests = [
        arrays.request_of(settings.engine, inputs, parameters=parameters).SerializeToString()
        for inputs in samples.inputs
    ]
    return Queries(requests, origin)


def _definition(settings: LoadgenSettings) -> EngineDefinition | None:
    """The engine as the model directory here describes it, if it does."""
    if settings.samples is not None:
        name = EngineName(settings.engine)
        return EngineDefinition(name=name, file=settings.samples, samples=settings.samples)
    try:
        return ModelDirectory(settings.models).get(settings.engine)
    except NotFound:
        return None


def _timeout_us(settings: LoadgenSettings) -> int | None:
    if not settings.enforce or settings.qos_ms is None:
        return None
    return max(1, round(settings.qos_ms * 1e3))
