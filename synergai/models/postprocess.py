"""Post-processing: derive classes or bounding boxes from a model's outputs.

Classes are numbered like ImageNet's validation labels. MLPerf's networks prepend a background
class: in an output with 1001 values per image, index 208 is class 207.
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
"""Names of the derived outputs, in an engine.toml and in requests."""
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
    """Derives one output from the outputs of a model."""

    @property
    def required_outputs(self) -> tuple[str, ...]:
        """Names of the model outputs it reads."""

    def derive(self, outputs: Mapping[str, Array]) -> Array:
        """Return the derived output."""


class ClassPostprocessor:
    """Best class of each image: int64 [images], from a model's first output.

    That output holds class probabilities per image or, in networks that end in an arg max, the
    index of the best class.
    """

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        self.required_outputs: Final = (outputs[0].name,)

    def derive(self, outputs: Mapping[str, Array]) -> NDArray[np.int64]:
        """Return the classes; -1 is the background. See `Postprocessor`."""
        rows = _rows_per_image(outputs[self.required_outputs[0]])
        if not rows.size:
            raise InvalidInput(f"the model's output {self.required_outputs[0]!r} is empty")
        if rows.shape[1] == 1:
            return np.asarray(rows[:, 0], np.int64) - 1
        best = rows.argmax(axis=1) - _background_offset(rows)
        return np.asarray(best, np.int64)


class BoxPostprocessor:
    """Objects detected in all images: float32 [objects, 7], see `BOX_FIELDS`.

    `image` is the image's index in the request, coordinates are from 0 to 1, and `class` is the
    model's own numbering; COCO's starts at 1.
    """

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        # TensorFlow's tensor names end in the index of the operation's output.
        names = {spec.name.partition(":")[0]: spec.name for spec in outputs}
        if missing := [name for name in _DETECTION_OUTPUTS if name not in names]:
            raise EngineUnusable(
                f"postprocess = 'boxes' needs the outputs {', '.join(_DETECTION_OUTPUTS)}; "
                f"the model lacks {', '.join(missing)}"
            )
        self.required_outputs: Final = tuple(names[name] for name in _DETECTION_OUTPUTS)

    def derive(self, outputs: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the objects by image, in the model's order. See `Postprocessor`."""
        counts, boxes, scores, classes = (outputs[name] for name in self.required_outputs)
        if (
            boxes.ndim != 3
            or boxes.shape[2] != 4
            or not (
                boxes.shape[:2] == scores.shape == classes.shape and 0 < counts.size == len(boxes)
            )
        ):
            raise InvalidInput(
                "the model's detections have inconsistent shapes: "
                + ", ".join(str(list(outputs[name].shape)) for name in self.required_outputs)
            )
        # Guards against counts that are too large, negative or NaN.
        there = np.arange(scores.shape[1]) < np.nan_to_num(counts).reshape(-1, 1)
        image, place = np.nonzero(there)
        found = (image, boxes[image, place], scores[image, place], classes[image, place])
        return np.column_stack(found).astype(np.float32)


def create_postprocessor(kind: str, outputs: Sequence[TensorSpec]) -> Postprocessor:
    """Return the postprocessor for the ``postprocess`` of an engine.toml."""
    if any(spec.name == kind for spec in outputs):
        raise EngineUnusable(
            f"postprocess = {kind!r} would derive an output of that name, but the model has one"
        )
    return ClassPostprocessor(outputs) if kind == CLASSES else BoxPostprocessor(outputs)


def top_classes(output: Array, count: int, *, as_imagenet: bool = False) -> Array:
    """Format the largest values of an output as the protocol's classification extension does.

    Args:
        output: Numbers; the leading axis is the batch if there are several axes.
        as_imagenet: Number classes as the output ``classes`` does.

    Returns:
        ``value:index`` by descending value: an object array of bytes, [batch, count], or [count]
        without a batch axis.
    """
    if output.dtype.kind not in "biuf":
        raise InvalidInput("an output of strings cannot be returned as classes")
    rows = _rows_per_image(output) if output.ndim > 1 else output.reshape(1, -1)
    first = _background_offset(rows) if as_imagenet else 0
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    best = np.empty(order.shape, object)
    for row, column in np.ndindex(order.shape):
        index = order[row, column]
        best[row, column] = b"%f:%d" % (rows[row, index], index - first)
    return best if output.ndim > 1 else best[0]


def _rows_per_image(output: Array) -> Array:
    """Reshape to one row of values per image."""
    if not output.size:
        return output.reshape(0, 0)
    return output.reshape(len(output) if output.ndim else 1, -1)


def _background_offset(rows: Array) -> int:
    return 1 if rows.shape[1] == CLASSES_WITH_BACKGROUND else 0
