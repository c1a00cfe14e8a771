"""Sample library of a data set's images, sent as files and classified or detected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from profiler.loadgen.accuracy_log import read_accuracy_log
from profiler.loadgen.datasets import DATASETS
from profiler.loadgen.library import Accuracy
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from profiler.loadgen.datasets import Dataset
    from synergai.domain import Engine

    Array: TypeAlias = NDArray[Any]

PERFORMANCE_COUNT: Final = 1024
"""Images in memory at a time, MLPerf's number for ResNet-50; an image has some 100 kB."""


class DatasetLibrary:
    """Implements ``profiler.loadgen.library.SampleLibrary`` for a data set.

    Responses are logged in the format of MLPerf's accuracy scripts: float32, one number for a
    class, rows of seven for boxes with the image's index in the first column.
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
        """Read images into memory."""
        self._loaded.update((index, self._dataset.image(index)) for index in indices)

    def unload(self, indices: Sequence[int]) -> None:
        """Drop images from memory."""
        for index in indices:
            self._loaded.pop(index, None)

    def inputs(self, index: int) -> Mapping[str, Array]:
        """Return an encoded image."""
        return {self._input: np.array([self._loaded[index]], object)}

    def encode_response(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """Return classes or boxes as MLPerf's scripts read them."""
        (name,) = self.outputs
        rows = outputs[name].astype(np.float32)
        if rows.ndim == 2:
            rows[:, 0] = index
        return rows.tobytes()

    def evaluate(self, log: Path) -> Accuracy:
        """Evaluate the logged responses with the data set's measure."""
        logged = read_accuracy_log(log, self.count)
        responses = {index: np.frombuffer(data, np.float32) for index, data in logged.items()}
        value = self._dataset.evaluate(responses)
        return Accuracy(measure=self._dataset.metric, value=value, samples=len(responses))


def dataset_library(name: str, folder: Path, engine: Engine) -> DatasetLibrary:
    """Return the sample library of a data set for an engine."""
    dataset = DATASETS[name](folder)
    if not engine.preprocess or engine.postprocess != dataset.output:
        raise InvalidInput(
            f"engine {engine.name!r} does not map images to {dataset.output}: its engine.toml "
            f'needs preprocess, and postprocess = "{dataset.output}"'
        )
    return DatasetLibrary(dataset, engine.inputs[0].name)
