"""Detections of small networks; the acceptance tests have all engines in all formats."""

from dataclasses import replace

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from profiler.zoo.architectures import Architecture, SsdMobileNet, calibrated_weights
from profiler.zoo.layer_builder import Weights
from profiler.zoo.onnx_models import onnx_model
from profiler.zoo.photographs import all_views
from synergai.models.processing import FAMILIES, prepare


def images_of(network: Architecture) -> NDArray[np.float32 | np.int64]:
    family = replace(FAMILIES[network.family], size=network.size)
    return np.stack([prepare(family, view) for view in all_views()])


def onnx_answers(
    network: Architecture, weights: Weights, opset: int
) -> dict[str, NDArray[np.float32 | np.int64]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = onnx_model(network, weights, opset).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    images = images_of(network)
    [taken] = session.get_inputs()
    if taken.shape[1] == 3:  # channels first
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    answers = [session.run(None, {taken.name: image[np.newaxis]}) for image in images]
    return {
        given.name: np.concatenate(column)
        for given, column in zip(session.get_outputs(), zip(*answers, strict=True), strict=True)
    }


def test_ssd_suppresses_overlapping_boxes_of_a_class() -> None:
    network = SsdMobileNet(size=96, width=0.125)
    answers = onnx_answers(network, calibrated_weights(network, lambda _: None), 8)
    found = {name.removesuffix(":0"): each for name, each in answers.items()}

    assert (np.diff(found["detection_scores"], axis=1) <= 0).all()
    for boxes, classes, scores in zip(
        found["detection_boxes"],
        found["detection_classes"],
        found["detection_scores"],
        strict=True,
    ):
        for first, second in np.argwhere(classes[:, None] == classes[None, :]):
            # Boxes at the border are clipped after they were compared.
            whole = (boxes[[first, second]] > 0).all() and (boxes[[first, second]] < 1).all()
            if first < second and scores[second] and whole:
                assert overlap(boxes[first], boxes[second]) <= 0.6 + 1e-4


def overlap(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    shared = float(np.prod(np.maximum(high - low, 0)))
    areas = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]))
    return shared / (areas - shared)


def test_onnx_detections_are_zero_padded() -> None:
    network = SsdMobileNet(size=96, width=0.125, classes=2)
    weights = calibrated_weights(network, lambda _: None)
    # Nothing is likely enough to be found.
    for name in weights:
        if name.endswith("ClassPredictor/bias"):
            weights[name] = np.full_like(weights[name], -40)
    for opset in (8, 11):
        session = onnxruntime.InferenceSession(
            onnx_model(network, weights, opset).SerializeToString(),
            providers=["CPUExecutionProvider"],
        )
        image = images_of(network)[:1]
        count, boxes, scores, classes = session.run(None, {"image_tensor:0": image})
        assert count.tolist() == [0.0]
        assert not boxes.any()
        assert not scores.any()
        assert not classes.any()
