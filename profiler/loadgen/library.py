"""Sample libraries: input samples of an engine, and the evaluation of its responses.

MLPerf's term is query sample library (QSL).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from synergai.domain import EngineName
from synergai.errors import InvalidInput, NotFound
from synergai.models.directory import EngineDefinition, ModelDirectory
from synergai.models.postprocess import CLASSES
from synergai.models.samples import Samples, load_samples, random_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.domain import Engine

    Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Accuracy of an engine's responses.

    Attributes:
        measure: name of the measure, such as ``top-1``.
    """

    measure: str
    value: float
    samples: int


class SampleLibrary(Protocol):
    """Samples by index, from 0."""

    @property
    def origin(self) -> str:
        """Human-readable description of their source."""

    @property
    def count(self) -> int:
        """Number of samples."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs to request; empty for all."""

    @property
    def performance_count(self) -> int:
        """Number of samples held in memory at a time."""

    def load(self, indices: Sequence[int]) -> None:
        """Load samples into memory."""

    def unload(self, indices: Sequence[int]) -> None:
        """Drop samples from memory."""

    def inputs(self, index: int) -> Mapping[str, Array]:
        """Return the arrays of a loaded sample by input name."""

    def encode_response(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """Return the bytes that LoadGen's accuracy log stores for a sample's outputs."""

    def evaluate(self, log: Path) -> Accuracy | None:
        """Return the accuracy of the responses in an accuracy log; None without ground truth."""


ACCURACY_FILE: Final = "mlperf_log_accuracy.json"


def read_accuracy_log(path: Path, count: int) -> dict[int, bytes]:
    """Return the logged bytes by sample index."""
    try:
        entries = json.loads(path.read_text("utf-8"))
        responses = {int(entry["qsl_idx"]): bytes.fromhex(entry["data"]) for entry in entries}
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is not an accuracy log of LoadGen") from None
    if not responses:
        raise InvalidInput(f"{path} has no responses; LoadGen logs them in accuracy mode only")
    if not all(0 <= index < count for index in responses):
        raise InvalidInput(f"{path} is of another sample set: this one has {count:,} samples")
    return responses


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
