"""Builders of the zoo's small engines: handwritten digits and identity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profiler.zoo.onnx_graph import MODEL_FILE, OnnxGraph, ValueInfo, write_model
from synergai.models.samples import write_samples

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from profiler.zoo.recipes import ProgressCallback


OPSET: Final = 11
IDENTITY_SAMPLES: Final = 16


def build_digits(folder: Path, on_progress: ProgressCallback) -> float | None:
    """Build the trained digits network with its labelled test set; return the accuracy."""
    on_progress(0.0)
    test = load_test_digits()
    model = digits_graph(load_weights())
    _write(folder, model, {"image": test.images, "labels": test.labels})
    return ACCURACY


def build_identity(folder: Path, on_progress: ProgressCallback) -> float | None:
    """Build the identity of one element, whose latency is that of the round trip."""
    on_progress(0.0)
    graph = OnnxGraph("identity", OPSET)
    graph.node("Identity", ["x"], "y")
    values = np.arange(IDENTITY_SAMPLES, dtype=np.float32)
    _write(
        folder,
        graph.model({"x": ValueInfo(shape=["batch"])}, {"y": ValueInfo(shape=["batch"])}),
        {"x": values},
    )
    return None


def digits_graph(weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """Return the digits network: pixels from 0 to 16 in, probabilities of the ten digits out."""
    graph = OnnxGraph("digits", OPSET)
    for name, values in weights.items():
        graph.weight(name, values)
    value = "image"
    for name in ("conv1", "conv2"):
        value = graph.node(
            "Conv",
            [value, name, f"{name}_bias"],
            f"{name}/convolution",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
        )
        value = graph.node("Relu", [value], f"{name}/relu")
        value = graph.node("MaxPool", [value], f"{name}/pool", kernel_shape=[2, 2], strides=[2, 2])
    value = graph.node("Flatten", [value], "flat", axis=1)
    value = graph.node("Gemm", [value, "dense1", "dense1_bias"], "dense1/product")
    value = graph.node("Relu", [value], "dense1/relu")
    value = graph.node("Gemm", [value, "dense2", "dense2_bias"], "dense2/product")
    output = graph.node("Softmax", [value], "probabilities", axis=1)
    return graph.model(
        {"image": ValueInfo(shape=["batch", 1, 8, 8])}, {output: ValueInfo(shape=["batch", 10])}
    )


def _write(folder: Path, model: onnx.ModelProto, samples: dict[str, NDArray[Any]]) -> None:
    write_model(folder / MODEL_FILE, model)
    write_samples(folder, samples)


# The CNN has two convolutions with pooling and two dense layers. ``python -m
# examples.training.digits`` trains it in a few seconds, on three quarters of the images. The others
# are the engine's sample set. The images are of scikit-learn, and come from "Optical Recognition of
# Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, CC BY 4.0).

WEIGHTS: Final = Path(__file__).with_name("digits.npz")
SAMPLES: Final = Path(__file__).with_name("digits_samples.npz")
"""The held-out images and their labels: the zoo's engine needs no scikit-learn."""
ACCURACY: Final = 0.9933
"""Share of right answers on the held-out images."""
BRIGHTEST: Final = 16.0
"""Maximum pixel value."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Labelled images: float32 [count, 1, 8, 8] from 0 to 16, and int64 [count]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load_test_digits() -> Digits:
    """Return the held-out quarter of the images."""
    with np.load(SAMPLES) as stored:
        return Digits(stored["images"].astype(np.float32), stored["labels"].astype(np.int64))


def load_weights() -> dict[str, NDArray[np.float32]]:
    with np.load(WEIGHTS) as stored:
        return dict(stored)
