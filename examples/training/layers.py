"""Layers of a small CNN in NumPy, with their gradients, and Adam.

Images are float32 [batch, channels, height, width].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float32]"
Weights: TypeAlias = "dict[str, Array]"


def windows(images: Array) -> Array:
    """Return all 3 x 3 neighbourhoods, zero-padded: [batch, height, width, channels * 9]."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    batch, channels, height, width = images.shape
    return view.transpose(0, 2, 3, 1, 4, 5).reshape(batch, height, width, channels * 9)


def convolve(columns: Array, kernel: Array) -> Array:
    """Convolve the result of `windows` with a kernel [out, in, 3, 3]."""
    return (columns @ kernel.reshape(len(kernel), -1).T).transpose(0, 3, 1, 2)


def convolve_gradients(columns: Array, kernel: Array, slope: Array) -> tuple[Array, Array]:
    """Return the gradients by kernel and by images, given the gradient by the outputs."""
    flat = slope.transpose(0, 2, 3, 1).reshape(-1, len(kernel))
    by_kernel = (flat.T @ columns.reshape(len(flat), -1)).reshape(kernel.shape)
    turned = kernel.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    return by_kernel, convolve(windows(slope), turned)


def pool(images: Array) -> tuple[Array, Array]:
    """Return the maxima of 2 x 2 squares, and a mask of their positions, shared among ties."""
    batch, channels, height, width = images.shape
    squares = images.reshape(batch, channels, height // 2, 2, width // 2, 2)
    highest = squares.max(axis=(3, 5), keepdims=True)
    mask = (squares == highest).astype(np.float32)
    mask /= mask.sum(axis=(3, 5), keepdims=True)
    return highest[:, :, :, 0, :, 0], mask


def pool_gradient(mask: Array, slope: Array) -> Array:
    """Return the gradient by the images, given the gradient by the maxima."""
    batch, channels, height, _, width, _ = mask.shape
    spread = mask * slope[:, :, :, None, :, None]
    return spread.reshape(batch, channels, height * 2, width * 2)


def softmax(logits: Array) -> Array:
    """Return probabilities for logits [batch, classes]."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


class Adam:
    """The Adam optimiser with the constants of its paper; updates the weights in place."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._mean = {name: np.zeros_like(array) for name, array in weights.items()}
        self._square = {name: np.zeros_like(array) for name, array in weights.items()}
        self._steps = 0

    def step(self, gradients: Weights, rate: float) -> None:
        """Update every weight by its gradient."""
        self._steps += 1
        scale = rate * float(np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps))
        for name, gradient in gradients.items():
            mean, square = self._mean[name], self._square[name]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            self._weights[name] -= scale * mean / (np.sqrt(square) + 1e-8)
