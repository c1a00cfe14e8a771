"""A small CNN, trained on scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

``python -m examples.training.digits`` writes the weights of the zoo's engine ``onnx_digits``.

It has two convolutions with pooling and two dense layers; training takes a few seconds. A quarter
of the images is held out: the engine's sample set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from sklearn import datasets
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from examples.training import layers
from profiler.zoo.small_engines import BRIGHTEST, WEIGHTS, Digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from examples.training.layers import Array, Weights

SEED: Final = 7
EPOCHS: Final = 30
BATCH: Final = 32
RATE: Final = 2e-3


def load_digits() -> tuple[Digits, Digits]:
    """Return the training set and the held-out quarter."""
    bunch = datasets.load_digits()
    images = bunch.images.astype(np.float32)[:, np.newaxis]
    labels = bunch.target.astype(np.int64)
    parts = train_test_split(
        images, labels, test_size=0.25, random_state=SEED, shuffle=True, stratify=labels
    )
    return Digits(parts[0], parts[2]), Digits(parts[1], parts[3])


def train() -> Weights:
    """Return the trained weights, which are the same on every call.

    By name: ``conv1``, ``conv2`` [out, in, 3, 3], ``dense1``, ``dense2`` [in, out], each with
    ``NAME_bias``. They apply to unscaled pixel values.
    """
    training, _ = load_digits()
    generator = np.random.default_rng(SEED)
    weights = _initial(generator)
    adam = layers.Adam(weights)
    # A single thread sums in a fixed order, which makes the bytes reproducible.
    with threadpool_limits(1):
        for epoch in range(EPOCHS):
            rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
            order = generator.permutation(len(training.labels))
            for chosen in np.split(order, range(BATCH, len(order), BATCH)):
                images = training.images[chosen] / BRIGHTEST
                adam.step(_gradients(weights, images, training.labels[chosen]), float(rate))
        weights["conv1"] /= BRIGHTEST
    return weights


@dataclass(frozen=True, slots=True)
class _Pass:
    """Intermediate values of the forward pass that the backward pass needs."""

    columns1: Array
    pooled1: Array
    mask1: Array
    columns2: Array
    flat: Array
    mask2: Array
    hidden: Array
    logits: Array


def _initial(generator: np.random.Generator) -> Weights:
    shapes = {
        "conv1": (16, 1, 3, 3),
        "conv2": (32, 16, 3, 3),
        "dense1": (128, 64),
        "dense2": (64, 10),
    }
    weights: Weights = {}
    for name, shape in shapes.items():
        convolution = name.startswith("conv")
        fan_in = int(np.prod(shape[1:])) if convolution else shape[0]
        scale = np.sqrt(2 / fan_in)
        weights[name] = (generator.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{name}_bias"] = np.zeros(shape[0 if convolution else 1], np.float32)
    return weights


def _forward(weights: Weights, images: Array) -> _Pass:
    columns1 = layers.windows(images)
    first = layers.convolve(columns1, weights["conv1"]) + weights["conv1_bias"][:, None, None]
    pooled1, mask1 = layers.pool(np.maximum(first, 0))
    columns2 = layers.windows(pooled1)
    second = layers.convolve(columns2, weights["conv2"]) + weights["conv2_bias"][:, None, None]
    pooled2, mask2 = layers.pool(np.maximum(second, 0))
    flat = pooled2.reshape(len(images), -1)
    hidden = np.maximum(flat @ weights["dense1"] + weights["dense1_bias"], 0)
    logits = hidden @ weights["dense2"] + weights["dense2_bias"]
    return _Pass(columns1, pooled1, mask1, columns2, flat, mask2, hidden, logits)


def _gradients(weights: Weights, images: Array, labels: NDArray[np.int64]) -> Weights:
    """Return the gradients of the mean cross entropy."""
    done = _forward(weights, images)
    slope = layers.softmax(done.logits)
    slope[np.arange(len(labels)), labels] -= 1
    slope /= np.float32(len(labels))
    by: Weights = {"dense2": done.hidden.T @ slope, "dense2_bias": slope.sum(axis=0)}
    slope = (slope @ weights["dense2"].T) * (done.hidden > 0)
    by |= {"dense1": done.flat.T @ slope, "dense1_bias": slope.sum(axis=0)}
    slope = slope @ weights["dense1"].T * (done.flat > 0)
    slope = layers.pool_gradient(done.mask2, slope.reshape(len(images), -1, 2, 2))
    by["conv2_bias"] = slope.sum(axis=(0, 2, 3))
    by["conv2"], slope = layers.convolve_gradients(done.columns2, weights["conv2"], slope)
    slope = layers.pool_gradient(done.mask1, slope * (done.pooled1 > 0))
    by["conv1_bias"] = slope.sum(axis=(0, 2, 3))
    by["conv1"], _ = layers.convolve_gradients(done.columns1, weights["conv1"], slope)
    return by


if __name__ == "__main__":
    np.savez_compressed(WEIGHTS, allow_pickle=False, **train())
