"""What is sent: samples of an engine's inputs, and what their answers are worth.

MLPerf calls it the query sample library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from engines.model_directory import EngineDefinition, ModelDirectory
from engines.postprocess import CLASSES
from engines.samples import Samples, load_samples, random_samples
from loadgen.accuracy_log import read_answers
from synergai.domain import EngineName
from synergai.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loadgen.settings import LoadgenSettings
    from synergai.domain import Engine

    Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How right an engine's answers were.

    Attributes:
        measure: what was measured, such as ``top-1``.
        value: the figure, from 0 to 1.
        samples: how many answers it rests on.
    """

    measure: str
    value: float
    samples: int


class SampleLibrary(Protocol):
    """Samples by index, from 0."""

    @property
    def origin(self) -> str:
        """Where they are from, for people."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def outputs(self) -> Sequence[str]:
        """The outputs to ask for; all if empty."""

    @property
    def performance_count(self) -> int:
        """How many of them are held in memory at a time."""

    def load(self, indices: Sequence[int]) -> None:
        """Have these samples in memory."""

    def unload(self, indices: Sequence[int]) -> None:
        """Have these samples in memory no more."""

    def inputs(self, index: int) -> Mapping[str, Array]:
        """The arrays of a loaded sample, by input name."""

    def answer(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """What LoadGen's accuracy log is to keep of a sample's outputs."""

    def evaluate(self, log: Path) -> Accuracy | None:
        """How right the answers in an accuracy log are; None if nobody knows.

        Raises:
            InvalidInput: it is not such a log, or not of these samples.
        """


class SampleSet:
    """A sample set that is in memory as a whole.

    What is logged of an answer is its class if the samples have labels, as float32: what the engine
    says as its output ``classes``, or the place of the largest number of its first output. Without
    labels it is that first output as it is.

    Args:
        samples: the samples.
        origin: where they are from, for people.
        output: name of the engine's first output.
        has_classes: the engine has an output ``classes``; see ``engines.postprocess``.
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


def library_for(settings: LoadgenSettings, engine: Engine) -> SampleLibrary:
    """The samples of a LoadGen run.

    Raises:
        InvalidInput: they are not samples, or not for this engine.
        NotFound: the data set is not where it should be.
    """
    if settings.dataset is not None:
        # pycocotools is for those alone who have such a data set.
        from loadgen.dataset_library import dataset_library

        return dataset_library(settings.dataset, settings.data, engine)
    samples, origin = samples_for(engine, settings.models, settings.samples)
    has_classes = engine.postprocess == CLASSES
    return SampleSet(samples, origin, engine.outputs[0].name, has_classes=has_classes)


def samples_for(engine: Engine, models: Path, samples: Path | None) -> tuple[Samples, str]:
    """The samples to send, and where they are from.

    Args:
        engine: what it takes.
        models: the model directory, where the engine's own sample set is, if there is one.
        samples: an ``.npz`` to take instead; see ``engines.samples``.

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
