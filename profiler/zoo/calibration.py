"""Weights without training: seeded, and calibrated on images.

Batch normalisation is calibrated layer by layer, with the statistics that training would have
found, and folded into the convolutions. Without it, dozens of random layers would map all images
to the same point. A classifier's readout is a ridge regression that predicts from which photograph
a view was taken, with one randomly chosen class per photograph. Its decisions therefore have a
margin that survives 8-bit quantisation, as in a trained network; the class labels mean nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from threadpoolctl import threadpool_limits

from profiler.zoo.layer_builder import (
    POOL,
    Array,
    Convolution,
    Dense,
    LayerCollector,
    Weights,
    same_padding,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from profiler.zoo.layer_builder import Buildable
    from profiler.zoo.recipes import ProgressCallback

SEED: Final = 20190912
RELU6_CEILING: Final = 6.0
MARGIN: Final = 16.0
"""Difference between the logits of the right and the wrong photograph's class."""
OTHER_LOGITS_DEVIATION: Final = 0.5
"""Standard deviation, around 0, of the logits of all other classes."""
RIDGE: Final = 0.1
"""Regularisation, relative to the features' variance."""
MIN_RELATIVE_DEVIATION: Final = 0.05
"""Channels that vary by less than this share of their layer's values are not amplified."""
CLASS_SEED: Final = 7
"""Seed of the chosen classes, which are the same in every architecture."""


def range_name(layer: Dense) -> str:
    """Return the name of a readout's smallest and largest logit on the images: float32 [2]."""
    return f"{layer.name}/range"


def seeded_weights(
    architecture: Buildable,
    images: Array,
    labels: NDArray[np.int64],
    on_progress: ProgressCallback,
) -> Weights:
    """Return all weights by name; they are reproducible on the same kind of machine.

    Args:
        images: float32 [images, 3, size, size], the network's input.
        labels: int64 [images], the index of each image's photograph.
    """
    collector = LayerCollector()
    architecture.build_layers(collector, None)
    # A single thread sums in a fixed order, which makes the bytes reproducible.
    with threadpool_limits(1):
        builder = CalibratingBuilder(labels, len(collector.layers), on_progress)
        architecture.build_layers(builder, images)
    return builder.weights


class CalibratingBuilder:
    """Computes the layers on images in NumPy, and determines their weights along the way.

    Values are float32 [images, channels, height, width].

    Args:
        labels: int64 [images], see `seeded_weights`.
    """

    def __init__(
        self, labels: NDArray[np.int64], layers: int, on_progress: ProgressCallback
    ) -> None:
        self.weights: Weights = {}
        self._subjects = labels
        self._generator = np.random.default_rng(SEED)
        self._layers = layers
        self._built = 0
        self._report = on_progress

    def convolution(self, value: Array, layer: Convolution) -> Array:
        """Draw a random kernel and normalise its output."""
        self._report_progress()
        generator = self._generator
        fan_in = layer.kernel**2 * (1 if layer.depthwise else layer.inputs)
        kernel = _normal(generator, layer.shape) * np.float32(fan_in**-0.5)
        raw = convolve(value, kernel, layer)
        mean = raw.mean(axis=(2, 3), dtype=np.float64).mean(axis=0)
        square = np.einsum("bchw,bchw->bc", raw, raw).mean(axis=0, dtype=np.float64)
        square /= raw[0, 0].size
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        gain = generator.uniform(0.8, 1.2, layer.outputs) * layer.deviation
        gain /= deviation + MIN_RELATIVE_DEVIATION * np.sqrt(square.mean())
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
        """Fit a readout that distinguishes the photographs."""
        self._report_progress()
        centred = value.astype(np.float64) - value.mean(axis=0, dtype=np.float64)
        kernel = self._generator.standard_normal(layer.shape)
        kernel *= OTHER_LOGITS_DEVIATION / (centred @ kernel.T).std()
        classes = np.random.default_rng(CLASS_SEED).permutation(np.arange(1, layer.outputs))
        right = np.eye(self._subjects.max() + 1)[self._subjects] * MARGIN
        kernel[classes[: right.shape[1]]] = _ridge(centred, right)
        # Subtract the mean over the images, so that their differences decide.
        bias = -kernel @ value.mean(axis=0, dtype=np.float64)
        self.weights[f"{layer.name}/weights"] = kernel.astype(np.float32)
        self.weights[f"{layer.name}/bias"] = bias.astype(np.float32)
        logits = np.asarray(value @ kernel.T + bias, np.float32)
        self.weights[range_name(layer)] = np.array([logits.min(), logits.max()])
        return logits

    def max_pool(self, value: Array) -> Array:
        """Maxima of the windows; padding is never a maximum."""
        pads = [same_padding(size, POOL, 2) for size in value.shape[2:]]
        padded = np.pad(value, ((0, 0), (0, 0), *pads), constant_values=-np.inf)
        squares = np.lib.stride_tricks.sliding_window_view(padded, (POOL, POOL), axis=(2, 3))
        return np.asarray(squares[:, :, ::2, ::2].max(axis=(4, 5)))

    def add_relu(self, name: str, value: Array, shortcut: Array) -> Array:  # noqa: ARG002 - as in LayerBuilder
        return np.asarray(np.maximum(value + shortcut, 0))

    def global_average(self, value: Array) -> Array:
        return np.asarray(value.mean(axis=(2, 3)))

    def reshape_cells(self, name: str, value: Array, depth: int) -> Array:  # noqa: ARG002 - as in LayerBuilder
        """Reshape, channels last as in all runtimes."""
        return value.transpose(0, 2, 3, 1).reshape(len(value), -1, depth)

    def concat(self, name: str, values: Sequence[Array]) -> Array:  # noqa: ARG002 - as in LayerBuilder
        return np.concatenate(values, axis=1)

    def _report_progress(self) -> None:
        self._report(self._built / self._layers)
        self._built += 1


def convolve(images: Array, kernel: Array, layer: Convolution) -> Array:
    """Convolve without bias and activation: [images, out, height, width]."""
    pads = [layer.padding(size) for size in images.shape[2:]]
    padded = np.pad(images, ((0, 0), (0, 0), *pads)) if layer.kernel > 1 else images
    step = layer.stride
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (layer.kernel, layer.kernel), axis=(2, 3)
    )[:, :, ::step, ::step]
    count, _, height, width = windows.shape[:4]
    result = np.zeros((count, layer.outputs, height, width), np.float32)
    # One image at a time: the windows of all images would need gigabytes.
    for window, output in zip(windows, result, strict=True):
        if layer.depthwise:
            for row, column in np.ndindex(layer.kernel, layer.kernel):
                output += window[..., row, column] * kernel[:, 0, row, column, None, None]
        else:
            columns = window.transpose(0, 3, 4, 1, 2).reshape(kernel[0].size, -1)
            flat = kernel.reshape(layer.outputs, -1)
            np.matmul(flat, columns, out=output.reshape(layer.outputs, -1))
    return result


def _ridge(features: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights [out, in] of the ridge regression of `targets` on centred features [n, in]."""
    products = features @ features.T
    penalty = RIDGE * np.trace(products) / len(products)
    dual = np.linalg.solve(
        products + penalty * np.eye(len(products)), targets - targets.mean(axis=0)
    )
    return np.asarray(dual.T @ features)


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape, np.float32)
