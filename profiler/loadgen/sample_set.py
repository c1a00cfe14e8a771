"""Sample library of an engine's own sample set, or of a file in the same format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from profiler.loadgen.library import Accuracy, read_accuracy_log
from synergai.domain import EngineName
from synergai.errors import NotFound
from synergai.models.directory import EngineDefinition, ModelDirectory
from synergai.models.postprocess import CLASSES
from synergai.models.samples import Samples, load_samples, random_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.domain import Engine

    Array: TypeAlias = NDArray[Any]


class SampleSet:
    """Implements ``profiler.loadgen.library.SampleLibrary`` for samples in memory.

    Of labelled samples, the class is logged as float32: the engine's output ``classes``, or else
    the index of the largest element of its first output. Otherwise the first output is logged
    unchanged.

    Args:
        output: name of the engine's first output.
        has_classes: the engine has an output ``classes``; see ``synergai.models.postprocess``.
    """

    def __init__(
        self, samples: Samples, origin: str, output: str, *, has_classes: bool = False
    ) -> None:
        self._samples = samples
        self._output = output
        self.origin = origin
        self.outputs: Sequence[str] = ()
        if has_classes and samples.labels is not None:
            self.outputs = (CLASSES,)
        self.count = self.performance_count = len(samples)

    def load(self, _indices: Sequence[int]) -> None:
        """Do nothing: all samples are in memory."""

    def unload(self, _indices: Sequence[int]) -> None:
        """Do nothing: all samples stay in memory."""

    def inputs(self, index: int) -> Mapping[str, Array]:
        """Return the arrays of a sample by input name."""
        return self._samples.inputs[index]

    def encode_response(self, _index: int, outputs: Mapping[str, Array]) -> bytes:
        """Return the class, or the first output of unlabelled samples."""
        if CLASSES in self.outputs:
            return outputs[CLASSES].astype(np.float32).tobytes()
        output = outputs[self._output]
        if self._samples.labels is None:
            return output.tobytes()
        return np.float32(output.argmax()).tobytes()

    def evaluate(self, log: Path) -> Accuracy | None:
        """Return the share of responses that match the labels; None without labels."""
        labels = self._samples.labels
        if labels is None:
            return None
        responses = read_accuracy_log(log, self.count)
        right = sum(
            np.frombuffer(data, np.float32).tolist() == [labels[index]]
            for index, data in responses.items()
        )
        return Accuracy(measure="top-1", value=right / len(responses), samples=len(responses))


def samples_for(engine: Engine, models: Path, samples: Path | None) -> tuple[Samples, str]:
    """Return the samples to send and a description of their source.

    Args:
        engine: the engine, whose inputs they must match.
        models: the model directory, which may hold the engine's own sample set.
        samples: an ``.npz`` file to use instead; see ``synergai.models.samples``.
    """
    definition = _definition(engine.name, models, samples)
    if definition is None or definition.samples is None:
        found = random_samples(engine.inputs, None if definition is None else definition.warmup)
        return found, f"{len(found)} synthetic inputs"
    found = load_samples(definition, engine.inputs)
    return found, f"{len(found)} samples of {definition.samples}"


def _definition(name: str, models: Path, samples: Path | None) -> EngineDefinition | None:
    """Return the engine's definition in the local model directory, if it has one."""
    if samples is not None:
        return EngineDefinition(name=EngineName(name), file=samples, samples=samples)
    try:
        return ModelDirectory(models).get(name)
    except NotFound:
        return None
