"""Images of a data set as LoadGen's samples: sent as files, answered with classes or boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from synergai.errors import InvalidInput
from synergai.loadgen.accuracy_log import read_answers
from synergai.loadgen.library import Accuracy
from synergai.models.datasets import DATASETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.domain import Engine
    from synergai.models.datasets import Dataset

    Array: TypeAlias = NDArray[Any]

PERFORMANCE_COUNT: Final = 1024
"""Images in memory at a time, as MLPerf has it for ResNet-50; one has some 100 kB."""


class DatasetLibrary:
    """See ``synergai.loadgen.library.SampleLibrary``.

    What is logged of an answer is what MLPerf's own accuracy scripts read: float32, for a class
    one number, for boxes rows of seven, of which the first is the image's index.

    Args:
        dataset: the images.
        image_input: name of the engine's input that takes them.
    """

    def __init__(self, dataset: Dataset, image_input: str) -> None:
        self._dataset = dataset
        self._input = image_input
        self._loaded: dict[int, bytes] = {}
        self.origin = dataset.origin
        self.outputs: Sequence[str] = (dataset.output,)
        self.count = len(dataset)
        self.performance_count = min(self.count, PERFORMANCE_COUNT)

    def load(self, indices: Sequence[int]) -> None:
        """Read these images."""
        self._loaded.update((index, self._dataset.image(index)) for index in indices)

    def unload(self, indices: Sequence[int]) -> None:
        """Forget these images."""
        for index in indices:
            self._loaded.pop(index, None)

    def inputs(self, index: int) -> Mapping[str, Array]:
        """One encoded image."""
        return {self._input: np.array([self._loaded[index]], object)}

    def answer(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """See the class."""
        (name,) = self.outputs
        answer = outputs[name].astype(np.float32)
        if answer.ndim == 2:
            answer[:, 0] = index
        return answer.tobytes()

    def evaluate(self, log: Path) -> Accuracy:
        """The data set's own measure of the answers.

        Raises:
            InvalidInput: `log` is no accuracy log, or not of these images.
        """
        logged = read_answers(log, self.count)
        answers = {index: np.frombuffer(data, np.float32) for index, data in logged.items()}
        value = self._dataset.evaluate(answers)
        return Accuracy(measure=self._dataset.metric, value=value, samples=len(answers))


def dataset_library(name: str, folder: Path, engine: Engine) -> DatasetLibrary:
    """A data set's images for an engine.

    Raises:
        InvalidInput: the data set is damaged, or the engine does not take images or does not give
            what the data set knows.
        NotFound: the data set is not there.
    """
    dataset = DATASETS[name](folder)
    if not engine.preprocess or engine.postprocess != dataset.output:
        raise InvalidInput(
            f"engine {engine.name!r} does not turn images into {dataset.output}: its engine.toml "
            f'needs preprocess, and postprocess = "{dataset.output}"'
        )
    return DatasetLibrary(dataset, engine.inputs[0].name)
