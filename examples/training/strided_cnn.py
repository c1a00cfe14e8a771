"""A small convolutional classifier that can be trained, pruned and written as ONNX, in NumPy.

It has 3 x 3 convolutions with strides instead of pooling, each with ReLU, and one dense layer.
Values are float32 [batch, height, width, channels]: columns of neighbourhoods are then copied in
runs of all channels.

Pruning removes whole output channels, so that the network that remains is smaller for any runtime.
The channels to keep are those of largest importance by a first-order Taylor expansion of the loss:
the squared sum of weight times gradient (Molchanov et al., "Importance Estimation for Neural
Network Pruning", CVPR 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto

from examples.training.layers import Adam, softmax
from profiler.zoo.onnx_graph import OnnxGraph, ValueInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from examples.training.layers import Array, Weights

OPSET: Final = 13
"""The first one whose quantised models have a scale per channel."""
INPUT: Final = "image"
OUTPUT: Final = "logits"
BRIGHTEST: Final = 255.0
"""Maximum pixel value."""
_KERNEL: Final = 3
_WARM_UP_STEPS: Final = 50
_IMPORTANCE_BATCHES: Final = 8
_IMPORTANCE_BATCH: Final = 64
_TEST_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Images:
    """Labelled grey images: uint8 [count, size, size], and int64 [count]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Settings of the training.

    Attributes:
        epochs: passes over the training set; may be a fraction.
        rate: highest learning rate of Adam, which falls along a cosine.
        batch: images per step.
        mirrored: whether to mirror half of the images, which keeps their classes.
        seed: of order and mirroring.
    """

    epochs: float
    rate: float = 2e-3
    batch: int = 32
    mirrored: bool = False
    seed: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a network.

    Attributes:
        size: side of the images in pixels.
        channels: output channels of each convolution.
        strides: its strides.
        classes: number of classes.
    """

    size: int
    channels: tuple[int, ...]
    strides: tuple[int, ...]
    classes: int = 10

    @property
    def last_size(self) -> int:
        """Side of the last convolution's output."""
        size = self.size
        for stride in self.strides:
            size = -(-size // stride)
        return size


class StridedCnn:
    """A network and its weights.

    Args:
        shape: the network.
        weights: by name: ``conv0`` and so on [9 * in, out], ``dense`` [height * width * in, out],
            each with ``NAME_bias``.
    """

    def __init__(self, shape: Shape, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self._layers = [f"conv{index}" for index in range(len(shape.channels))]

    @classmethod
    def initial(cls, shape: Shape, seed: int) -> StridedCnn:
        """Return a network with seeded weights (He et al., 2015)."""
        generator = np.random.default_rng(seed)
        weights: Weights = {}
        inputs = 1
        for index, outputs in enumerate(shape.channels):
            weights[f"conv{index}"] = _normal(generator, _KERNEL**2 * inputs, outputs)
            weights[f"conv{index}_bias"] = np.zeros(outputs, np.float32)
            inputs = outputs
        weights["dense"] = _normal(generator, shape.last_size**2 * inputs, shape.classes)
        weights["dense_bias"] = np.zeros(shape.classes, np.float32)
        return cls(shape, weights)

    def train(self, images: Images, training: Training) -> None:
        """Train the weights, which become the same on every call.

        NumPy should compute with a single thread, which sums in a fixed order.
        """
        generator = np.random.default_rng(training.seed)
        adam = Adam(self.weights)
        steps = max(1, int(training.epochs * len(images) / training.batch))
        order: list[NDArray[np.int64]] = []
        for step in range(steps):
            if not order:
                shuffled = generator.permutation(len(images))
                order = np.array_split(shuffled, max(1, len(images) // training.batch))
            chosen = order.pop()
            pixels = images.pixels[chosen]
            if training.mirrored:
                mirrored = generator.random(len(chosen)) < 0.5
                pixels[mirrored] = pixels[mirrored][:, :, ::-1]
            rate = training.rate * min(1.0, (step + 1) / _WARM_UP_STEPS)
            rate *= 0.5 * (1 + np.cos(np.pi * step / steps))
            adam.step(self._gradients(pixels, images.labels[chosen]), float(rate))

    def accuracy(self, images: Images) -> float:
        """Return the share of right answers."""
        right = 0
        for start in range(0, len(images), _TEST_BATCH):
            part = slice(start, start + _TEST_BATCH)
            logits = self._forward(images.pixels[part]).logits
            right += int((logits.argmax(axis=1) == images.labels[part]).sum())
        return right / len(images)

    def pruned(self, share: float, images: Images, seed: int = 7) -> StridedCnn:
        """Return the network with the most important channels of each convolution.

        Args:
            share: share of the channels to keep, above 0 and at most 1.
            images: what the importance is computed on.
            seed: of the images chosen for that.
        """
        kept = {
            name: np.sort(np.argsort(-importance, kind="stable")[: _count(importance, share)])
            for name, importance in self._importance(images, seed).items()
        }
        weights: Weights = {}
        before: NDArray[np.int64] = np.zeros(1, np.int64)
        for name in self._layers:
            kernel = self.weights[name].reshape(_KERNEL**2, -1, self.weights[name].shape[1])
            weights[name] = kernel[:, before][:, :, kept[name]].reshape(-1, len(kept[name]))
            weights[f"{name}_bias"] = self.weights[f"{name}_bias"][kept[name]]
            before = kept[name]
        dense = self.weights["dense"].reshape(self.shape.last_size**2, -1, self.shape.classes)
        weights["dense"] = dense[:, before].reshape(-1, self.shape.classes)
        weights["dense_bias"] = self.weights["dense_bias"].copy()
        channels = tuple(len(kept[name]) for name in self._layers)
        return StridedCnn(replace(self.shape, channels=channels), weights)

    def to_onnx(self) -> onnx.ModelProto:
        """Return the model: pixels uint8 [batch, 1, size, size] in, logits out.

        There is no operator that is not needed: in a network of microseconds each one counts. The
        first convolution also scales the pixels.
        """
        graph = OnnxGraph("strided_cnn", OPSET)
        value = graph.cast(INPUT, TensorProto.FLOAT)
        inputs = 1
        for name, stride in zip(self._layers, self.shape.strides, strict=True):
            kernel = self.weights[name].reshape(_KERNEL, _KERNEL, inputs, -1)
            scale = np.float32(1 / BRIGHTEST if name == self._layers[0] else 1)
            graph.weight(name, kernel.transpose(3, 2, 0, 1) * scale)
            graph.weight(f"{name}_bias", self.weights[f"{name}_bias"])
            value = graph.node(
                "Conv",
                [value, name, f"{name}_bias"],
                f"{name}/convolution",
                kernel_shape=[_KERNEL, _KERNEL],
                strides=[stride, stride],
                pads=[1, 1, 1, 1],
            )
            value = graph.node("Relu", [value], f"{name}/relu")
            inputs = kernel.shape[3]
        value = graph.node("Flatten", [value], "flat", axis=1)
        size = self.shape.last_size
        dense = self.weights["dense"].reshape(size, size, inputs, -1)  # Flatten has channels first
        graph.weight("dense", dense.transpose(2, 0, 1, 3).reshape(-1, self.shape.classes))
        graph.weight("dense_bias", self.weights["dense_bias"])
        graph.node("Gemm", [value, "dense", "dense_bias"], OUTPUT)
        image = ValueInfo(
            shape=["batch", 1, self.shape.size, self.shape.size], element=TensorProto.UINT8
        )
        return graph.model({INPUT: image}, {OUTPUT: ValueInfo(shape=["batch", self.shape.classes])})

    # --- internals ------------------------------------------------------------------------------

    def _forward(self, pixels: NDArray[np.uint8]) -> _Pass:
        value: Array = pixels[..., np.newaxis].astype(np.float32)
        value *= np.float32(1 / BRIGHTEST)
        columns: list[Array] = []
        images = [value]
        for name, stride in zip(self._layers, self.shape.strides, strict=True):
            columns.append(_columns(value, stride))
            value = columns[-1] @ self.weights[name]
            value += self.weights[f"{name}_bias"]
            np.maximum(value, 0, out=value)
            images.append(value)
        flat = value.reshape(len(value), -1)
        return _Pass(columns, images, flat @ self.weights["dense"] + self.weights["dense_bias"])

    def _gradients(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Weights:
        """Return the gradients of the mean cross entropy."""
        done = self._forward(pixels)
        slope = softmax(done.logits)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= np.float32(len(labels))
        last = done.images[-1]
        by: Weights = {
            "dense": last.reshape(len(last), -1).T @ slope,
            "dense_bias": slope.sum(axis=0),
        }
        slope = (slope @ self.weights["dense"].T).reshape(last.shape)
        for index in reversed(range(len(self._layers))):
            name, columns = self._layers[index], done.columns[index]
            slope *= done.images[index + 1] > 0
            rows = slope.reshape(-1, self.shape.channels[index])
            by[name] = columns.reshape(len(rows), -1).T @ rows
            by[f"{name}_bias"] = rows.sum(axis=0)
            if index:
                size = done.images[index].shape[1]
                slope = _sum_columns(slope @ self.weights[name].T, self.shape.strides[index], size)
        return by

    def _importance(self, images: Images, seed: int) -> Weights:
        """Return the importance of each convolution's channels."""
        generator = np.random.default_rng(seed)
        total: Weights = {
            name: np.zeros(self.weights[name].shape[1], np.float32) for name in self._layers
        }
        for _ in range(_IMPORTANCE_BATCHES):
            chosen = generator.choice(len(images), min(_IMPORTANCE_BATCH, len(images)), False)
            gradients = self._gradients(images.pixels[chosen], images.labels[chosen])
            for name in self._layers:
                total[name] += (gradients[name] * self.weights[name]).sum(axis=0) ** 2
        return total


@dataclass(frozen=True, slots=True)
class _Pass:
    """Values of the forward pass that the backward pass needs.

    Attributes:
        columns: neighbourhoods that each convolution multiplies by its weights.
        images: input of each convolution, and the output of the last one.
        logits: result [batch, classes].
    """

    columns: list[Array]
    images: list[Array]
    logits: Array


def _columns(images: Array, stride: int) -> Array:
    """Return the zero-padded neighbourhoods: [batch, height, width, 9 * channels]."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (_KERNEL, _KERNEL), axis=(1, 2))
    view = view[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
    batch, height, width = view.shape[:3]
    return view.reshape(batch, height, width, -1)


def _sum_columns(columns: Array, stride: int, size: int) -> Array:
    """Return the images of which `_columns` are given, where neighbourhoods overlap their sum."""
    batch, height, width, _ = columns.shape
    parts = columns.reshape(batch, height, width, _KERNEL, _KERNEL, -1)
    padded = np.zeros((batch, size + 2, size + 2, parts.shape[-1]), np.float32)
    for row, column in np.ndindex(_KERNEL, _KERNEL):
        rows = slice(row, row + stride * height, stride)
        padded[:, rows, column : column + stride * width : stride] += parts[:, :, :, row, column]
    return np.asarray(padded[:, 1:-1, 1:-1])


def _count(importance: Array, share: float) -> int:
    return max(1, round(share * len(importance)))


def _normal(generator: np.random.Generator, inputs: int, outputs: int) -> Array:
    values = generator.standard_normal((inputs, outputs), np.float32)
    return values * np.float32((2 / inputs) ** 0.5)
