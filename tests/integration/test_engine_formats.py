"""Results of small networks in the formats that the zoo builds; the acceptance tests have all."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from profiler.zoo.architectures import Architecture, MobileNet, SsdMobileNet, calibrated_weights
from profiler.zoo.image_engines import QUIET, export_model
from profiler.zoo.layer_builder import Weights
from profiler.zoo.onnx_models import onnx_model
from profiler.zoo.photographs import all_views
from synergai.models.processing import FAMILIES, prepare
from tests.tiny_tensorflow import needs_tensorflow
from worker_agent.backends.tflite import TfliteBackend

MOBILENET = MobileNet(size=64, width=0.25)
# TensorFlow is too large, and too fond of warnings, for the process of the tests.
RUN_SAVED_MODEL = """
import sys
from pathlib import Path
import numpy as np
sys.modules["keras"] = None  # nor does an engine host import it
import tensorflow as tf
folder = Path(sys.argv[1])
answer = tf.saved_model.load(folder / "saved_model").signatures["serving_default"]
answers = [answer(tf.constant(image[np.newaxis])) for image in np.load(folder / "images.npy")]
np.save(folder / "answers.npy", np.concatenate([next(iter(each.values())) for each in answers]))
"""


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


def saved_model_answers(folder: Path) -> NDArray[np.float32]:
    np.save(folder / "images.npy", images_of(MOBILENET))
    subprocess.run(
        [sys.executable, "-c", RUN_SAVED_MODEL, str(folder)],
        check=True,
        capture_output=True,
        env=os.environ | QUIET,
    )
    found: NDArray[np.float32] = np.load(folder / "answers.npy")
    return found


def tflite_answers(folder: Path) -> NDArray[np.float32]:
    backend = TfliteBackend(folder / "tflite", threads=1)
    [taken], [given] = backend.inputs, backend.outputs
    images = images_of(MOBILENET)
    answers = [backend.run({taken.name: image[np.newaxis]}, [given.name])[0] for image in images]
    return np.concatenate([np.asarray(each, np.float32) for each in answers])


@needs_tensorflow
def test_mobilenet_gives_the_same_probabilities_in_all_exact_formats(tmp_path: Path) -> None:
    weights = calibrated_weights(MOBILENET, lambda _: None)
    export_model(MOBILENET, weights, "saved_model", tmp_path / "saved_model")
    export_model(MOBILENET, weights, "tflite", tmp_path / "tflite")

    [expected] = onnx_answers(MOBILENET, weights, 11).values()

    assert np.allclose(expected.sum(axis=1), 1, atol=1e-5)
    assert len(set(expected.argmax(axis=1))) > 1
    for answers in (
        *onnx_answers(MOBILENET, weights, 8).values(),
        saved_model_answers(tmp_path),
        tflite_answers(tmp_path),
    ):
        assert np.abs(answers - expected).max() <= 1e-4


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
