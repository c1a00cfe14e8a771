"""A user's own copy of ImageNet or COCO: images by index, and what answers to them are worth.

Neither may be passed on, so nothing of them is here. The folders are laid out as MLPerf's reference
application expects them.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from synergai.errors import InvalidInput, NotFound
from synergai.models.postprocess import BOX_FIELDS, BOXES, CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Predictions: TypeAlias = Mapping[int, NDArray[np.float32]]

VAL_MAP: Final = "val_map.txt"
INSTANCES: Final = Path("annotations", "instances_val2017.json")
COCO_IMAGES: Final = "val2017"


class Dataset(Protocol):
    """Images whose right answers are known.

    Attributes:
        asks: the output that answers are taken from, see ``synergai.models.postprocess``.
        measure: what `evaluate` measures.
        origin: where they are from, for people.
    """

    output: str
    metric: str
    origin: str

    def __len__(self) -> int:
        """How many images there are."""

    def image(self, index: int) -> bytes:
        """An image's file.

        Raises:
            NotFound: it cannot be read.
        """

    def evaluate(self, predictions: Predictions) -> float:
        """How right answers are, from 0 to 1.

        Args:
            predictions: float32, by index: a class, or rows of boxes; empty where there was none.

        Raises:
            InvalidInput: an answer is of another form.
        """


class ImageNet:
    """The validation images and ``val_map.txt``, which has a name and a class in each line.

    Images that are listed but absent are left out, so that a part of the set can be used.

    Args:
        folder: where all of them lie.

    Raises:
        NotFound: on construction, if the list or all of its images are absent.
        InvalidInput: the list is none.
    """

    output = CLASSES
    metric = "top-1"

    def __init__(self, folder: Path) -> None:
        self._images: list[Path] = []
        self._labels: list[int] = []
        lines = _read_file(folder / VAL_MAP).decode(errors="replace").splitlines()
        present = _file_names(folder)
        for number, line in enumerate(lines, start=1):
            name, _, label = line.strip().rpartition(" ")
            if not name or not label.isdecimal():
                raise InvalidInput(
                    f"{folder / VAL_MAP}, line {number}: expected is an image's name and its "
                    f"class, not {line[:100]!r}"
                )
            if name in present:
                self._images.append(folder / name)
                self._labels.append(int(label))
        self.origin = _origin(folder, len(self._images), len(lines))

    def __len__(self) -> int:
        """See `Dataset`."""
        return len(self._images)

    def image(self, index: int) -> bytes:
        """See `Dataset`."""
        return _read_file(self._images[index])

    def evaluate(self, predictions: Predictions) -> float:
        """The share of answers that are the right class."""
        right = sum(
            prediction.tolist() == [self._labels[i]] for i, prediction in predictions.items()
        )
        return float(right / len(predictions))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CocoImage:
    """An image of COCO: its id, file, and size in pixels."""

    id: int
    file: Path
    height: int
    width: int


class Coco:
    """The images of ``val2017`` and their annotations.

    Images that are annotated but absent are left out, so that a part of the set can be used.

    Args:
        folder: has both, ``val2017/`` and ``annotations/instances_val2017.json``.

    Raises:
        NotFound: on construction, if the annotations or all of the images are absent.
        InvalidInput: the annotations are none.
    """

    output = BOXES
    metric = "mAP"

    def __init__(self, folder: Path) -> None:
        self._instances = folder / INSTANCES
        images = folder / COCO_IMAGES
        present = _file_names(images)
        try:
            entries = json.loads(_read_file(self._instances))["images"]
            self._images = [
                _CocoImage(
                    id=int(entry["id"]),
                    file=images / entry["file_name"],
                    height=int(entry["height"]),
                    width=int(entry["width"]),
                )
                for entry in entries
                if entry["file_name"] in present
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{self._instances} has no annotations of COCO's form") from error
        self.origin = _origin(folder, len(self._images), len(entries))

    def __len__(self) -> int:
        """See `Dataset`."""
        return len(self._images)

    def image(self, index: int) -> bytes:
        """See `Dataset`."""
        return _read_file(self._images[index].file)

    def evaluate(self, predictions: Predictions) -> float:
        """The mean average precision over overlaps from 0.5 to 0.95, as COCO defines it."""
        rows = [self._results(index, prediction) for index, prediction in predictions.items()]
        results = np.concatenate(rows)
        if not len(results):
            return 0.0
        # Both print what they do.
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
            return self._mean_average_precision(results, [self._images[i].id for i in predictions])

    def _results(self, index: int, prediction: NDArray[np.float32]) -> NDArray[np.float64]:
        """Rows of image id, x, y, width, height in pixels, score and category."""
        if prediction.size % len(BOX_FIELDS):
            raise InvalidInput(f"the answer to image {index} has no rows of {len(BOX_FIELDS)}")
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
        # -1 says that nothing is annotated in these images.
        return max(0.0, float(evaluation.stats[0]))


DATASETS: Final[dict[str, Callable[[Path], Dataset]]] = {"imagenet": ImageNet, "coco": Coco}
"""By the names of the command line."""


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


def _origin(folder: Path, present: int, listed: int) -> str:
    if not present:
        raise NotFound(f"{folder} has none of the {listed:,} images that are listed there")
    return f"{present:,} of {listed:,} images of {folder}"
