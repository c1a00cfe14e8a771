"""What hosts do around a model: pixels to tensors, and tensors to classes or boxes.

Preprocessing is identical to MLPerf's reference application. Constants, interpolation and order of
the steps are as in ``dataset.py`` of ``vision/classification_and_detection``; the pixels depend on
each of them.

Classes are numbered like ImageNet's validation labels. MLPerf's networks prepend a background
class: in an output with 1001 values per image, index 208 is class 207.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from synergai.errors import EngineUnusable, InvalidInput
from synergai.wire.arrays import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import TensorSpec

    Array: TypeAlias = NDArray[Any]
    Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """Affine quantisation of a tensor: ``real = scale * (stored - zero_point)``.

    As in TensorFlow Lite's quantisation specification, with one pair for the whole tensor.

    Attributes:
        scale: The step between adjacent integers; positive.
        zero_point: The integer that represents 0.
    """

    scale: float
    zero_point: int


SIZE: Final = 224
"""Height and width of the images of ImageNet models."""
MAX_BATCH_PIXELS: Final = 128_000_000
"""Per tensor: one or two seconds of decoding."""
_MAX_RESIZED_SIDE: Final = 1 << 15
"""A resized image of this length and 256 pixels is 25 MB."""
_CROP_FRACTION: Final = 0.875
"""Share of the resized short side that the centre crop keeps."""
_CHANNEL_MEANS: Final = np.array([123.68, 116.78, 103.94], np.float32)
"""ImageNet's means of red, green and blue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """Preprocessing of a family of models.

    Attributes:
        size: Height and width of the model's input.
        centre_crop: Keep the aspect ratio and crop the centre, instead of stretching.
        use_area: Resize by averaging over areas, instead of bilinearly.
        normalise: Maps float32 pixels, possibly in place, to the range of the training data; None
            if the model takes the pixels as they are.
    """

    size: int
    centre_crop: bool
    use_area: bool
    normalise: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None


def _subtract_means(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    pixels -= _CHANNEL_MEANS
    return pixels


def _scale_to_minus_one_to_one(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    pixels /= 255.0
    pixels -= 0.5
    pixels *= 2.0
    return pixels


RESNET50: Final = Preprocessing(
    size=SIZE, centre_crop=True, use_area=True, normalise=_subtract_means
)
MOBILENET: Final = Preprocessing(
    size=SIZE, centre_crop=True, use_area=False, normalise=_scale_to_minus_one_to_one
)
SSD: Final = Preprocessing(size=300, centre_crop=False, use_area=False, normalise=None)
FAMILIES: Final = {"resnet50": RESNET50, "mobilenet": MOBILENET, "ssd": SSD}
"""By the value of ``preprocess`` in an engine.toml."""


def prepare(family: Preprocessing, image: Pixels | bytes) -> Array:
    """Prepare an image for models of a family: float32 or uint8 [size, size, 3], RGB.

    Args:
        image: uint8 [height, width, 3] in RGB order, or the contents of a JPEG or PNG file.
    """
    pixels = _decode(image)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise InvalidInput(
            f"an image is uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}"
        )
    prepared = _crop_and_resize(family, pixels)
    return prepared if family.normalise is None else family.normalise(prepared.astype(np.float32))


class ImageInput:
    """A model's input that accepts images.

    Args:
        spec: The input: N x C x H x W or N x H x W x C, with real or integer elements.
        quantisation: The quantisation of an integer input, if the model has one.
    """

    def __init__(
        self, preprocess: str, spec: TensorSpec, quantisation: Quantisation | None = None
    ) -> None:
        self.name: Final = spec.name
        self._family = FAMILIES[preprocess]
        self._channels_first = _channels_first(preprocess, self._family, spec)
        self._quantisation = quantisation
        self._dtype = DTYPES[spec.datatype]
        are_pixels = self._family.normalise is None and spec.datatype == "UINT8"
        are_steps = quantisation is not None and spec.datatype in ("UINT8", "INT8")
        if not (self._dtype.kind == "f" or are_pixels or are_steps):
            raise EngineUnusable(
                f"preprocess = {preprocess!r} does not support the model's input {spec.name!r}: "
                f"it is {spec.datatype} without quantisation parameters"
            )

    def to_tensor(self, images: Sequence[Pixels | bytes]) -> Array:
        """Return a batch of images as the model's input; for their format see `prepare`."""
        size = self._family.size
        shape = (3, size, size) if self._channels_first else (size, size, 3)
        batch = np.empty((len(images), *shape), self._dtype)
        pixels_left = MAX_BATCH_PIXELS
        for image, target in zip(images, batch, strict=True):
            pixels = _decode(image)
            pixels_left -= pixels.size // 3
            if pixels_left < 0:
                raise InvalidInput(
                    f"the images have more than {MAX_BATCH_PIXELS:,} pixels in total; send fewer "
                    "or smaller ones"
                )
            prepared = self._quantise(prepare(self._family, pixels))
            target[...] = prepared.transpose(2, 0, 1) if self._channels_first else prepared
        return batch

    def _quantise(self, real: Array) -> Array:
        if self._quantisation is None or self._dtype.kind == "f":
            return real
        bounds = np.iinfo(self._dtype)
        steps = np.rint(real / np.float32(self._quantisation.scale))
        stored = steps + self._quantisation.zero_point
        return np.asarray(np.clip(stored, bounds.min, bounds.max))


def _channels_first(preprocess: str, family: Preprocessing, spec: TensorSpec) -> bool:
    """Return whether the input is N x C x H x W rather than N x H x W x C."""
    size = family.size

    def matches(*shape: int) -> bool:
        pairs = zip(spec.shape[1:], shape, strict=True)
        return all(have in (-1, want) for have, want in pairs)

    rank_4 = len(spec.shape) == 4
    first, last = rank_4 and matches(3, size, size), rank_4 and matches(size, size, 3)
    if first == last:
        raise EngineUnusable(
            f"preprocess = {preprocess!r} yields images of {size} x {size} pixels and 3 channels, "
            f"but the model's input {spec.name!r} has the shape {list(spec.shape)}"
        )
    return first


def _decode(image: Pixels | bytes) -> Pixels:
    # Imported lazily: a worker without OpenCV can still describe its models.
    from synergai.models.images import decode

    return decode(image) if isinstance(image, bytes) else image


def _crop_and_resize(family: Preprocessing, pixels: Pixels) -> Pixels:
    from synergai.models.images import resize

    size = family.size
    if not family.centre_crop:
        return resize(pixels, size, size, area=family.use_area)
    height, width, _ = pixels.shape
    short_side = int(size / _CROP_FRACTION)
    # Multiply first and truncate, as the reference does: the result can differ by a pixel.
    if height > width:
        width, height = short_side, int(short_side * height / width)
    else:
        width, height = int(short_side * width / height), short_side
    if max(width, height) > _MAX_RESIZED_SIDE:
        raise InvalidInput(
            f"an image of {pixels.shape[1]:,} x {pixels.shape[0]:,} pixels is too elongated"
        )
    resized = resize(pixels, width, height, area=family.use_area)
    top, left = (height - size) // 2, (width - size) // 2
    return resized[top : top + size, left : left + size]


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
    if not output.size:
        return output.reshape(0, 0)
    return output.reshape(len(output) if output.ndim else 1, -1)


def _background_offset(rows: Array) -> int:
    return 1 if rows.shape[1] == CLASSES_WITH_BACKGROUND else 0
