"""Writes the catalogue's engines as ONNX files, with their sample sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engines.builders.onnx_graph import OnnxGraph
from engines.model_files import SAMPLES_FILE

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    from numpy.typing import NDArray

    from engines.catalogue import Report

MODEL_FILE: Final = "model.onnx"
OPSET: Final = 11
IDENTITY_SAMPLES: Final = 16


def build_mobilenet(folder: Path, report: Report) -> float | None:
    """MobileNet v1 1.0 224 with seeded weights, and views of two photographs."""
    from engines.builders import mobilenet

    graph = mobilenet_graph(mobilenet.seeded_weights(report))
    _write(folder, graph, {"input:0": mobilenet.sample_images()})
    return None


def build_digits(folder: Path, report: Report) -> float | None:
    """The trained digits network, and its test set with labels; returns the accuracy."""
    from engines.builders import digits

    trained = digits.train(report)
    test = trained.test
    _write(folder, digits_graph(trained.weights), {"image": test.images, "labels": test.labels})
    return round(trained.accuracy, 4)


def build_identity(folder: Path, report: Report) -> float | None:
    """One element in, the same out: what remains is the way there and back."""
    report(0.0)
    graph = OnnxGraph("identity", OPSET)
    graph.node("Identity", ["x"], "y")
    values = np.arange(IDENTITY_SAMPLES, dtype=np.float32)
    _write(folder, graph.model({"x": ["batch"]}, {"y": ["batch"]}), {"x": values})
    return None


def mobilenet_graph(weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """MobileNet as MLPerf's file has it: its names, NCHW, softmax over 1,001 classes."""
    from engines.builders.mobilenet import CLASSES, convolutions, same_padding
    from engines.preprocess import SIZE

    graph = OnnxGraph("mobilenet_v1_1.0_224", OPSET)
    for name, values in weights.items():
        graph.weight(name, values)
    graph.weight("zero", np.array(0, np.float32))
    graph.weight("six", np.array(6, np.float32))
    value, size = "input:0", SIZE
    for layer in convolutions():
        before, after = same_padding(size, layer.kernel, layer.stride)
        value = graph.node(
            "Conv",
            [value, f"{layer.name}/weights", f"{layer.name}/bias"],
            f"{layer.name}/convolution",
            kernel_shape=[layer.kernel, layer.kernel],
            strides=[layer.stride, layer.stride],
            pads=[before, before, after, after],
            group=layer.inputs if layer.depthwise else 1,
        )
        value = graph.node("Clip", [value, "zero", "six"], f"{layer.name}/Relu6")
        size = -(-size // layer.stride)
    value = graph.node("GlobalAveragePool", [value], "AvgPool")
    value = graph.node("Conv", [value, "Logits/weights", "Logits/bias"], "Logits")
    value = graph.node("Flatten", [value], "SpatialSqueeze", axis=1)
    output = graph.node("Softmax", [value], "MobilenetV1/Predictions/Reshape_1:0", axis=1)
    return graph.model({"input:0": ["batch", 3, SIZE, SIZE]}, {output: ["batch", CLASSES]})


def digits_graph(weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """The digits network: pixels from 0 to 16 in, probabilities of the ten digits out."""
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
    return graph.model({"image": ["batch", 1, 8, 8]}, {output: ["batch", 10]})


def _write(folder: Path, model: onnx.ModelProto, samples: dict[str, NDArray[Any]]) -> None:
    (folder / MODEL_FILE).write_bytes(model.SerializeToString(deterministic=True))
    with (folder / SAMPLES_FILE).open("wb") as file:
        np.savez(file, allow_pickle=False, **samples)
