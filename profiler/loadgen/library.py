"""Sample libraries: input samples of an engine, and the evaluation of its responses.

MLPerf's term is query sample library (QSL).
"""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np

from synergai.domain import EngineName
from synergai.errors import InvalidInput, NotFound
from synergai.models.directory import EngineDefinition, ModelDirectory
from synergai.models.processing import BOX_FIELDS, BOXES, CLASSES
from synergai.models.samples import Samples, load_samples, random_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import Engine

    Array: TypeAlias = NDArray[Any]
    Predictions: TypeAlias = Mapping[int, NDArray[np.float32]]


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
        has_classes: the engine has an output ``classes``; see ``synergai.models.processing``.
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
        found = random_samples(engine.inputs)
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


# Neither dataset may be redistributed, so none of it is included here. The folders have the layout
# that MLPerf's reference application expects.

VAL_MAP: Final = "val_map.txt"
INSTANCES: Final = Path("annotations", "instances_val2017.json")
COCO_IMAGES: Final = "val2017"
PERFORMANCE_COUNT: Final = 1024
"""Images in memory at a time, MLPerf's number for ResNet-50; an image has some 100 kB."""


class _ImageLibrary(ABC):
    """Implements `SampleLibrary` for a data set's images, which are sent as files.

    Responses are logged in the format of MLPerf's accuracy scripts: float32, one number for a
    class, rows of seven for boxes with the image's index in the first column. Images that are
    listed but missing are skipped, so that a subset of the data set works.

    Attributes:
        output: the engine output to evaluate, see `synergai.models.processing`.
        metric: name of the measure that `score` computes.

    Args:
        listed: number of images that the data set lists.
    """

    output: ClassVar[str]
    metric: ClassVar[str]

    def __init__(self, folder: Path, files: Sequence[Path], listed: int, image_input: str) -> None:
        if not files:
            raise NotFound(f"{folder} contains none of the {listed:,} listed images")
        self._files = files
        self._input = image_input
        self._loaded: dict[int, bytes] = {}
        self.origin = f"{len(files):,} of {listed:,} images of {folder}"
        self.outputs: Sequence[str] = (self.output,)
        self.count = len(files)
        self.performance_count = min(self.count, PERFORMANCE_COUNT)

    def image(self, index: int) -> bytes:
        return _read_file(self._files[index])

    def load(self, indices: Sequence[int]) -> None:
        self._loaded.update((index, self.image(index)) for index in indices)

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._loaded.pop(index, None)

    def inputs(self, index: int) -> Mapping[str, Array]:
        return {self._input: np.array([self._loaded[index]], object)}

    def encode_response(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """Return classes or boxes as MLPerf's scripts read them."""
        rows = outputs[self.output].astype(np.float32)
        if rows.ndim == 2:
            rows[:, 0] = index
        return rows.tobytes()

    def evaluate(self, log: Path) -> Accuracy:
        logged = read_accuracy_log(log, self.count)
        responses = {index: np.frombuffer(data, np.float32) for index, data in logged.items()}
        value = self.score(responses)
        return Accuracy(measure=self.metric, value=value, samples=len(responses))

    @abstractmethod
    def score(self, predictions: Predictions) -> float:
        """Score predictions, from 0 to 1.

        Args:
            predictions: by image index, float32: a class, or rows of boxes; empty if the engine
                returned nothing.
        """


class ImageNet(_ImageLibrary):
    """The ImageNet validation images and ``val_map.txt``, with a file name and a class per line."""

    output = CLASSES
    metric = "top-1"

    def __init__(self, folder: Path, image_input: str = "") -> None:
        images: list[Path] = []
        self._labels: list[int] = []
        lines = os.fsdecode(_read_file(folder / VAL_MAP)).splitlines()
        present = _file_names(folder)
        for number, line in enumerate(lines, start=1):
            name, _, label = line.strip().rpartition(" ")
            if not name or not label.isdecimal():
                raise InvalidInput(
                    f"{folder / VAL_MAP}, line {number}: expected a file name and a class, "
                    f"not {line[:100]!r}"
                )
            if name in present:
                images.append(folder / name)
                self._labels.append(int(label))
        super().__init__(folder, images, len(lines), image_input)

    def score(self, predictions: Predictions) -> float:
        right = sum(
            prediction.tolist() == [self._labels[i]] for i, prediction in predictions.items()
        )
        return float(right / len(predictions))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CocoImage:
    """A COCO image: id, and size in pixels."""

    id: int
    height: int
    width: int


class Coco(_ImageLibrary):
    """The COCO ``val2017`` images and their annotations.

    Args:
        folder: Contains ``val2017/`` and ``annotations/instances_val2017.json``.
    """

    output = BOXES
    metric = "mAP"

    def __init__(self, folder: Path, image_input: str = "") -> None:
        self._instances = folder / INSTANCES
        images = folder / COCO_IMAGES
        present = _file_names(images)
        try:
            listed = json.loads(_read_file(self._instances))["images"]
            entries = [entry for entry in listed if entry["file_name"] in present]
            files = [images / entry["file_name"] for entry in entries]
            self._images = [
                _CocoImage(
                    id=int(entry["id"]), height=int(entry["height"]), width=int(entry["width"])
                )
                for entry in entries
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{self._instances} is not a COCO annotations file") from error
        super().__init__(folder, files, len(listed), image_input)

    def score(self, predictions: Predictions) -> float:
        """Return the mean average precision over IoU 0.5 to 0.95, as defined by COCO."""
        rows = [self._results(index, prediction) for index, prediction in predictions.items()]
        results = np.concatenate(rows)
        if not len(results):
            return 0.0
        # pycocotools prints its progress.
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
            return self._mean_average_precision(results, [self._images[i].id for i in predictions])

    def _results(self, index: int, prediction: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return rows of image id, x, y, width and height in pixels, score and category."""
        if prediction.size % len(BOX_FIELDS):
            raise InvalidInput(
                f"the prediction for image {index} does not have rows of {len(BOX_FIELDS)}"
            )
        image = self._images[index]
        rows = prediction.reshape(-1, len(BOX_FIELDS)).astype(np.float64)
        _, top, left, bottom, right, score, category = rows.T
        return np.column_stack(
            (
                np.full(len(rows), image.id),
                left * image.width,
                top * image.height,
                (right - left) * image.width,
                (bottom - top) * image.height,
                score,
                category,
            )
        )

    def _mean_average_precision(self, results: NDArray[np.float64], images: list[int]) -> float:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth = COCO(str(self._instances))
        evaluation: Any = COCOeval(truth, truth.loadRes(results), iouType="bbox")
        evaluation.params.imgIds = images
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        # pycocotools returns -1 if none of these images is annotated.
        return max(0.0, float(evaluation.stats[0]))


DATASETS: Final[dict[str, type[ImageNet | Coco]]] = {"imagenet": ImageNet, "coco": Coco}
"""Dataset classes by their name on the command line."""


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from error


def _file_names(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except OSError as error:
        raise NotFound(f"{folder} cannot be read: {error.strerror}") from error


def dataset_library(name: str, folder: Path, engine: Engine) -> ImageNet | Coco:
    dataset = DATASETS[name]
    if not engine.preprocess or engine.postprocess != dataset.output:
        raise InvalidInput(
            f"engine {engine.name!r} does not map images to {dataset.output}: its engine.toml "
            f'needs preprocess, and postprocess = "{dataset.output}"'
        )
    return dataset(folder, engine.inputs[0].name)
