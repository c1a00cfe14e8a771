"""MobileNet v1 1.0 224: the architecture, and seeded weights for it.

The weights are not trained, so the answers mean nothing, but size, cost and the spread of the
activations are the real network's: batch normalisation is calibrated on photographs, as training
would have done it, and folded into the convolutions. Without that, 27 random layers would map
every image to the same point.

Weights are a plain dict of arrays that knows no runtime:
``NAME/weights`` float32 [out, in, height, width] (a depthwise one has in = 1), ``NAME/bias`` [out].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from threadpoolctl import threadpool_limits

from engines.photographs import photographs
from engines.preprocess import preprocess_mobilenet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from engines.catalogue import Report

CLASSES: Final = 1001
"""ImageNet's thousand, and the background that TensorFlow puts before them."""
STEM: Final = 32
BLOCKS: Final = (
    *((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512)),
    *(((1, 512),) * 5),
    *((2, 1024), (1, 1024)),
)
"""Stride and output channels of the 13 depthwise separable blocks."""
SEED: Final = 20190912
CALIBRATE_EVERY: Final = 4
"""Of the sample images, every fourth is enough to calibrate on."""
LOGIT_SPREAD: Final = 2.5
"""Standard deviation of the logits: a trained network is neither undecided nor certain."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution followed by batch normalisation (folded) and ReLU6.

    Attributes:
        kernel: 3, or 1 for a pointwise one.
        depthwise: one filter per channel; `outputs` is then the number of its inputs.
    """

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    depthwise: bool = False


def convolutions() -> Iterator[Convolution]:
    """All but the classifier, in order."""
    yield Convolution("Conv2d_0", 3, STEM, 3, stride=2)
    channels = STEM
    for index, (stride, outputs) in enumerate(BLOCKS, start=1):
        yield Convolution(
            f"Conv2d_{index}_depthwise", channels, channels, 3, stride, depthwise=True
        )
        yield Convolution(f"Conv2d_{index}_pointwise", channels, outputs, 1)
        channels = outputs


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding before and after: the odd pixel goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def seeded_weights(report: Report) -> dict[str, NDArray[np.float32]]:
    """All weights by name; the same on every call."""
    # One thread sums in one order, so that the bytes are the same each time.
    with threadpool_limits(1):
        return _calibrated(np.random.default_rng(SEED), report)


def _calibrated(generator: np.random.Generator, report: Report) -> dict[str, NDArray[np.float32]]:
    weights: dict[str, NDArray[np.float32]] = {}
    activations = sample_images()[::CALIBRATE_EVERY]
    layers = list(convolutions())
    for done, layer in enumerate(layers):
        report(done / len(layers))
        fan_in = layer.kernel**2 * (1 if layer.depthwise else layer.inputs)
        kernel = _normal(
            generator,
            (layer.outputs, 1 if layer.depthwise else layer.inputs, layer.kernel, layer.kernel),
            fan_in**-0.5,
        )
        raw = _convolve(activations, kernel, layer)
        gain = generator.uniform(0.8, 1.2, layer.outputs) / (raw.std(axis=(0, 2, 3)) + 1e-3)
        shift = generator.normal(0.5, 0.5, layer.outputs) - gain * raw.mean(axis=(0, 2, 3))
        weights[f"{layer.name}/weights"] = (kernel * gain[:, None, None, None]).astype(np.float32)
        weights[f"{layer.name}/bias"] = shift.astype(np.float32)
        normalised = raw * gain[None, :, None, None] + shift[None, :, None, None]
        activations = np.clip(normalised, 0, 6).astype(np.float32)
    features = activations.mean(axis=(2, 3))
    kernel = _normal(generator, (CLASSES, features.shape[1]), 1.0)
    logits = features @ kernel.T
    # The mean over the photographs is taken out: what differs between images shall decide.
    gain = LOGIT_SPREAD / (logits - logits.mean(axis=0)).std()
    weights["Logits/weights"] = (kernel * gain).astype(np.float32)[:, :, None, None]
    weights["Logits/bias"] = (-gain * logits.mean(axis=0)).astype(np.float32)
    return weights


def _normal(
    generator: np.random.Generator, shape: tuple[int, ...], scale: float
) -> NDArray[np.float32]:
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def _convolve(
    images: NDArray[np.float32], kernel: NDArray[np.float32], layer: Convolution
) -> NDArray[np.float32]:
    """Plain NumPy, for calibration only: images [batch, in, height, width]."""
    if layer.kernel == 1:
        return np.asarray(np.einsum("oi,bihw->bohw", kernel[:, :, 0, 0], images, optimize=True))
    pads = [same_padding(size, layer.kernel, layer.stride) for size in images.shape[2:]]
    padded = np.pad(images, ((0, 0), (0, 0), *pads))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (layer.kernel, layer.kernel), axis=(2, 3)
    )[:, :, :: layer.stride, :: layer.stride]
    equation = "bchwij,cij->bchw" if layer.depthwise else "bihwkl,oikl->bohw"
    filters = kernel[:, 0] if layer.depthwise else kernel
    return np.asarray(np.einsum(equation, windows, filters, optimize=True))


def sample_images() -> NDArray[np.float32]:
    """Views of the photographs, ready to be fed: float32 [samples, 3, 224, 224]."""
    views: list[NDArray[np.float32]] = []
    for photograph in photographs():
        pixels = photograph.pixels()
        height, width, _ = pixels.shape
        crops = [pixels]
        crops += [
            pixels[top : top + height * 3 // 5, left : left + width * 3 // 5]
            for top in (0, height * 2 // 5)
            for left in (0, width * 2 // 5)
        ]
        for crop in crops:
            views += [preprocess_mobilenet(crop), preprocess_mobilenet(crop[:, ::-1])]
    return np.concatenate(views)
