"""Weights for an architecture without training it: seeded, and calibrated on images.

Batch normalisation is calibrated layer by layer, as training would have done it, and folded into
the convolutions. Without that, dozens of random layers would map every image to the same point.
A classifier's readout is a ridge regression that tells from which photograph a view is: one class
for each, drawn by lot. So the network decides, and by a margin that eight bits do not blur, as a
trained one does; what its classes are called means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from threadpoolctl import threadpool_limits

from synergai.zoo.builders.layer_builder import (
    POOL,
    Array,
    Convolution,
    Dense,
    Weights,
    same_padding,
)
from synergai.zoo.builders.layer_collector import LayerCollector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.zoo.builders.layer_builder import Buildable
    from synergai.zoo.recipes import ProgressCallback

SEED: Final = 20190912
RELU6_CEILING: Final = 6.0
MARGIN: Final = 16.0
"""Between the logits of the right and the wrong photograph's class."""
OTHERS_DEVIATION: Final = 0.5
"""Of the logits of all other classes, around 0."""
RIDGE: Final = 0.1
"""Of the features' variance: how much is given up so that small changes of them matter little."""
CONSTANT: Final = 0.05
"""A channel that varies by less than this, of its layer's values, is not amplified to vary."""
CHOSEN_SEED: Final = 7
"""The classes are drawn apart from the weights: the same in every architecture."""


def range_name(layer: Dense) -> str:
    """Where a readout's smallest and largest logit on the images are kept: float32 [2]."""
    return f"{layer.name}/range"


def seeded_weights(
    architecture: Buildable,
    images: Array,
    subjects: NDArray[np.int64],
    on_progress: ProgressCallback,
) -> Weights:
    """All weights by name; the same on every call on one kind of machine.

    Args:
        architecture: what to find weights for.
        images: float32 [images, 3, size, size], as the architecture takes them.
        subjects: int64 [images], which photograph each image is of.
        on_progress: called with the completed fraction, 0 to 1.
    """
    collector = LayerCollector()
    architecture.build_layers(collector, None)
    # One thread sums in one order, so that the bytes are the same each time.
    with threadpool_limits(1):
        builder = CalibratingBuilder(subjects, len(collector.layers), on_progress)
        architecture.build_layers(builder, images)
    return builder.weights


class CalibratingBuilder:
    """A canvas on which images flow, in NumPy, and that finds each layer's weights on the way.

    Values are float32 [images, channels, height, width].

    Args:
        subjects: int64 [images], see `seeded_weights`.
        layers: how many will be drawn.
        on_progress: called with the completed fraction, 0 to 1.

    Attributes:
        weights: those found so far.
    """

    def __init__(
        self, subjects: NDArray[np.int64], layers: int, on_progress: ProgressCallback
    ) -> None:
        self.weights: Weights = {}
        self._subjects = subjects
        self._generator = np.random.default_rng(SEED)
        self._layers = layers
        self._drawn = 0
        self._report = on_progress

    def convolution(self, value: Array, layer: Convolution) -> Array:
        """Draw a kernel, and normalise what it gives."""
        self._progress()
        generator = self._generator
        fan_in = layer.kernel**2 * (1 if layer.depthwise else layer.inputs)
        kernel = _normal(generator, layer.shape) * np.float32(fan_in**-0.5)
        raw = convolve(value, kernel, layer)
        mean = raw.mean(axis=(2, 3), dtype=np.float64).mean(axis=0)
        square = np.einsum("bchw,bchw->bc", raw, raw).mean(axis=0, dtype=np.float64)
        square /= raw[0, 0].size
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        gain = generator.uniform(0.8, 1.2, layer.outputs) * layer.deviation
        gain /= deviation + CONSTANT * np.sqrt(square.mean())
        shift = generator.normal(layer.mean, layer.deviation / 2, layer.outputs) - gain * mean
        kernel *= gain.astype(np.float32)[:, None, None, None]
        self.weights[f"{layer.name}/weights"] = kernel
        self.weights[f"{layer.name}/bias"] = shift.astype(np.float32)
        raw *= gain.astype(np.float32)[None, :, None, None]
        raw += shift.astype(np.float32)[None, :, None, None]
        match layer.activation:
            case "relu6":
                np.clip(raw, 0, RELU6_CEILING, out=raw)
            case "relu":
                np.maximum(raw, 0, out=raw)
            case "none":
                pass
        return raw

    def dense(self, value: Array, layer: Dense) -> Array:
        """Fit a readout that tells the photographs apart."""
        self._progress()
        centred = value.astype(np.float64) - value.mean(axis=0, dtype=np.float64)
        kernel = self._generator.standard_normal(layer.shape)
        kernel *= OTHERS_DEVIATION / (centred @ kernel.T).std()
        chosen = np.random.default_rng(CHOSEN_SEED).permutation(np.arange(1, layer.outputs))
        right = np.eye(self._subjects.max() + 1)[self._subjects] * MARGIN
        kernel[chosen[: right.shape[1]]] = _ridge(centred, right)
        # The mean over the images is taken out: what differs between them shall decide.
        bias = -kernel @ value.mean(axis=0, dtype=np.float64)
        self.weights[f"{layer.name}/weights"] = kernel.astype(np.float32)
        self.weights[f"{layer.name}/bias"] = bias.astype(np.float32)
        logits = np.asarray(value @ kernel.T + bias, np.float32)
        self.weights[range_name(layer)] = np.array([logits.min(), logits.max()])
        return logits

    def max_pool(self, value: Array) -> Array:
        """Maxima of all squares; nothing that is padded can be one."""
        pads = [same_padding(size, POOL, 2) for size in value.shape[2:]]
        padded = np.pad(value, ((0, 0), (0, 0), *pads), constant_values=-np.inf)
        squares = np.lib.stride_tricks.sliding_window_view(padded, (POOL, POOL), axis=(2, 3))
        return np.asarray(squares[:, :, ::2, ::2].max(axis=(4, 5)))

    def add_relu(self, name: str, value: Array, shortcut: Array) -> Array:  # noqa: ARG002 - as in LayerBuilder
        """The sum, where positive."""
        return np.asarray(np.maximum(value + shortcut, 0))

    def global_average(self, value: Array) -> Array:
        """The mean."""
        return np.asarray(value.mean(axis=(2, 3)))

    def reshape_cells(self, name: str, value: Array, depth: int) -> Array:  # noqa: ARG002 - as in LayerBuilder
        """Channels last, as all runtimes have them by then."""
        return value.transpose(0, 2, 3, 1).reshape(len(value), -1, depth)

    def concat(self, name: str, values: Sequence[Array]) -> Array:  # noqa: ARG002 - as in LayerBuilder
        """One array."""
        return np.concatenate(values, axis=1)

    def _progress(self) -> None:
        self._report(self._drawn / self._layers)
        self._drawn += 1


def convolve(images: Array, kernel: Array, layer: Convolution) -> Array:
    """The convolution alone: [images, out, height, width]."""
    pads = [layer.padding(size) for size in images.shape[2:]]
    padded = np.pad(images, ((0, 0), (0, 0), *pads)) if layer.kernel > 1 else images
    step = layer.stride
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (layer.kernel, layer.kernel), axis=(2, 3)
    )[:, :, ::step, ::step]
    count, _, height, width = windows.shape[:4]
    result = np.zeros((count, layer.outputs, height, width), np.float32)
    # One image at a time: all their windows at once would need gigabytes.
    for window, output in zip(windows, result, strict=True):
        if layer.depthwise:
            for row, column in np.ndindex(layer.kernel, layer.kernel):
                output += window[..., row, column] * kernel[:, 0, row, column, None, None]
        else:
            columns = window.transpose(0, 3, 4, 1, 2).reshape(kernel[0].size, -1)
            flat = kernel.reshape(layer.outputs, -1)
            np.matmul(flat, columns, out=output.reshape(layer.outputs, -1))
    return result


def _ridge(features: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights [out, in] by which centred features [n, in] give nearly the centred `wanted`."""
    products = features @ features.T
    penalty = RIDGE * np.trace(products) / len(products)
    dual = np.linalg.solve(products + penalty * np.eye(len(products)), wanted - wanted.mean(axis=0))
    return np.asarray(dual.T @ features)


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape, np.float32)
