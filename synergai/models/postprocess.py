"""From a model's outputs to answers: classes, or boxes in images.

Classes are counted as ImageNet's validation labels are. MLPerf's networks have one class more in
front of them, the background: of an output with 1001 values per image, index 208 is class 207.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from synergai.errors import EngineUnusable, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import TensorSpec

    Array: TypeAlias = NDArray[Any]

CLASSES: Final = "classes"
BOXES: Final = "boxes"
"""The outputs that can be derived, by the names of an engine.toml and of requests."""
CLASSES_WITH_BACKGROUND: Final = 1001
BOX_FIELDS: Final = ("image", "ymin", "xmin", "ymax", "xmax", "score", "class")
"""Columns of the output ``boxes``, in the order of MLPerf's accuracy log."""
_DETECTION_OUTPUTS: Final = (
    "num_detections",
    "detection_boxes",
    "detection_scores",
    "detection_classes",
)


class Postprocessor(Protocol):
    """Derives one output from those of a model."""

    @property
    def required_outputs(self) -> tuple[str, ...]:
        """Names of the model's outputs that it is derived from."""

    def derive(self, outputs: Mapping[str, Array]) -> Array:
        """The derived output.

        Raises:
            InvalidInput: the model's outputs are not what it could be derived from; the request
                asks for too much, for the outputs themselves can be had.
        """


class ClassPostprocessor:
    """The best class of each image: int64 [images], from a model's first output.

    That output has the probabilities of each image's classes, or, where the network ends in an
    arg max, the index of the best.
    """

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        self.required_outputs: Final = (outputs[0].name,)

    def derive(self, outputs: Mapping[str, Array]) -> NDArray[np.int64]:
        """The classes; -1 is the background. See `Postprocessor`."""
        rows = _rows_per_image(outputs[self.required_outputs[0]])
        if not rows.size:
            raise InvalidInput(f"the model's output {self.required_outputs[0]!r} is empty")
        if rows.shape[1] == 1:
            return np.asarray(rows[:, 0], np.int64) - 1
        best = rows.argmax(axis=1) - _background_offset(rows)
        return np.asarray(best, np.int64)


class BoxPostprocessor:
    """The objects found in all images: float32 [objects, 7], see `BOX_FIELDS`.

    `image` is the image's place in the request, coordinates are from 0 to 1, and `class` is as the
    model numbers it: those of COCO are numbered from 1.

    Raises:
        EngineUnusable: on construction, if the model does not have the four outputs of detection
            networks.
    """

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        # TensorFlow writes names of tensors with the index of the operation's output.
        names = {spec.name.partition(":")[0]: spec.name for spec in outputs}
        if missing := [name for name in _DETECTION_OUTPUTS if name not in names]:
            raise EngineUnusable(
                f"postprocess = 'boxes' needs the outputs {', '.join(_DETECTION_OUTPUTS)}; "
                f"the model lacks {', '.join(missing)}"
            )
        self.required_outputs: Final = tuple(names[name] for name in _DETECTION_OUTPUTS)

    def derive(self, outputs: Mapping[str, Array]) -> NDArray[np.float32]:
        """The objects, image by image in the model's order. See `Postprocessor`."""
        counts, boxes, scores, classes = (outputs[name] for name in self.required_outputs)
        if (
            boxes.ndim != 3
            or boxes.shape[2] != 4
            or not (
                boxes.shape[:2] == scores.shape == classes.shape and 0 < counts.size == len(boxes)
            )
        ):
            raise InvalidInput(
                "the model's detections have shapes that do not belong together: "
                + ", ".join(str(list(outputs[name].shape)) for name in self.required_outputs)
            )
        # A count beyond the places, below none, or that is no number must not lead anywhere.
        there = np.arange(scores.shape[1]) < np.nan_to_num(counts).reshape(-1, 1)
        image, place = np.nonzero(there)
        found = (image, boxes[image, place], scores[image, place], classes[image, place])
        return np.column_stack(found).astype(np.float32)


def create_postprocessor(kind: str, outputs: Sequence[TensorSpec]) -> Postprocessor:
    """What an engine.toml means by ``postprocess``.

    Raises:
        EngineUnusable: the model's outputs do not allow it.
    """
    if any(spec.name == kind for spec in outputs):
        raise EngineUnusable(
            f"postprocess = {kind!r} would derive an output of that name, but the model has one"
        )
    return ClassPostprocessor(outputs) if kind == CLASSES else BoxPostprocessor(outputs)


def top_classes(output: Array, count: int, *, as_imagenet: bool = False) -> Array:
    """The largest values of an output, as the protocol's classification extension writes them.

    Args:
        output: any numbers; the leading axis of several is the batch's.
        count: how many are wanted; at most as many as there are will come.
        as_imagenet: count classes as the output ``classes`` does.

    Returns:
        ``value:index`` by falling value: an object array of bytes, [batch, count], or [count] if
        there is no batch.

    Raises:
        InvalidInput: the output's elements are no numbers.
    """
    if output.dtype.kind not in "biuf":
        raise InvalidInput("an output of texts cannot be asked for as classes")
    rows = _rows_per_image(output) if output.ndim > 1 else output.reshape(1, -1)
    first = _background_offset(rows) if as_imagenet else 0
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    best = np.empty(order.shape, object)
    for row, column in np.ndindex(order.shape):
        index = order[row, column]
        best[row, column] = b"%f:%d" % (rows[row, index], index - first)
    return best if output.ndim > 1 else best[0]


def _rows_per_image(output: Array) -> Array:
    """One row of values per image."""
    if not output.size:
        return output.reshape(0, 0)
    return output.reshape(len(output) if output.ndim else 1, -1)


def _background_offset(rows: Array) -> int:
    """How many of an image's values precede those of the classes."""
    return 1 if rows.shape[1] == CLASSES_WITH_BACKGROUND else 0
