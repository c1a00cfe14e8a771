"""An engine's own sample set, or a file like it, as what is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from synergai.domain import EngineName
from synergai.errors import NotFound
from synergai.loadgen.accuracy_log import read_answers
from synergai.loadgen.library import Accuracy
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
    """A sample set that is in memory as a whole; see ``synergai.loadgen.library.SampleLibrary``.

    What is logged of an answer is its class if the samples have labels, as float32: what the engine
    says as its output ``classes``, or the place of the largest number of its first output. Without
    labels it is that first output as it is.

    Args:
        samples: the samples.
        origin: where they are from, for people.
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
        """They are in memory already."""

    def unload(self, _indices: Sequence[int]) -> None:
        """They stay."""

    def inputs(self, index: int) -> Mapping[str, Array]:
        """The arrays of a sample, by input name."""
        return self._samples.inputs[index]

    def answer(self, _index: int, outputs: Mapping[str, Array]) -> bytes:
        """See the class."""
        if CLASSES in self.outputs:
            return outputs[CLASSES].astype(np.float32).tobytes()
        output = outputs[self._output]
        if self._samples.labels is None:
            return output.tobytes()
        return np.float32(output.argmax()).tobytes()

    def evaluate(self, log: Path) -> Accuracy | None:
        """The share of answers that are their samples' labels; None without labels.

        Raises:
            InvalidInput: `log` is no accuracy log, or not of these samples.
        """
        labels = self._samples.labels
        if labels is None:
            return None
        answers = read_answers(log, self.count)
        right = sum(
            np.frombuffer(data, np.float32).tolist() == [labels[index]]
            for index, data in answers.items()
        )
        return Accuracy(measure="top-1", value=right / len(answers), samples=len(answers))


def samples_for(engine: Engine, models: Path, samples: Path | None) -> tuple[Samples, str]:
    """The samples to send, and where they are from.

    Args:
        engine: what it takes.
        models: the model directory, where the engine's own sample set is, if there is one.
        samples: an ``.npz`` to take instead; see ``synergai.models.samples``.

    Raises:
        InvalidInput: the sample set is not one, or not for this engine.
    """
    definition = _definition(engine.name, models, samples)
    if definition is None or definition.samples is None:
        found = random_samples(engine.inputs)
        return found, f"{len(found)} random inputs"
    found = load_samples(definition, engine.inputs)
    return found, f"{len(found)} samples of {definition.samples}"


def _definition(name: str, models: Path, samples: Path | None) -> EngineDefinition | None:
    """The engine as the model directory here describes it, if it does."""
    if samples is not None:
        return EngineDefinition(name=EngineName(name), file=samples, samples=samples)
    try:
        return ModelDirectory(models).get(name)
    except NotFound:
        return None
