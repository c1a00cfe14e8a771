"""Agreement of a small network's results across all formats."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from profiler.zoo.builders.architectures import Architecture, calibrated_weights
from profiler.zoo.builders.image_engines import QUIET, ModelExport, ModelFormat, export_models
from profiler.zoo.builders.mobilenet import MobileNet
from profiler.zoo.builders.onnx_models import onnx_model
from profiler.zoo.builders.resnet50 import ResNet50
from profiler.zoo.builders.ssd import SsdMobileNet
from profiler.zoo.photographs import all_views
from synergai.models.preprocess import FAMILIES, prepare
from synergai.models.quantisation import Quantisation
from worker_agent.backends.tflite import TfliteBackend

Answers: TypeAlias = Mapping[str, NDArray[np.float32 | np.int64]]

NETWORKS: dict[str, Architecture] = {
    "resnet50": ResNet50(size=32, width=8),
    "mobilenet": MobileNet(size=64, width=0.25),
    "ssd": SsdMobileNet(size=96, width=0.125),
}
SAVED_MODELS = ("resnet50", "mobilenet", "mobilenet_q", "ssd")
# TensorFlow is too large, and too fond of warnings, for the process of the tests.
RUN_SAVED_MODELS = """
import sys
from pathlib import Path
import numpy as np
sys.modules["keras"] = None  # nor does an engine host import it
import tensorflow as tf
folder = Path(sys.argv[1])
for name in sys.argv[2:]:
    model = tf.saved_model.load(folder / name)
    answer = model.signatures["serving_default"]
    images = np.load(folder / f"{name.removesuffix('_q')}.npy")
    answers = [answer(tf.constant(image[np.newaxis])) for image in images]
    merged = {key: np.concatenate([each[key] for each in answers]) for key in answers[0]}
    np.savez(folder / f"{name}.npz", **{key.replace("/", "|"): merged[key] for key in merged})
"""


def images_of(network: Architecture) -> NDArray[np.float32 | np.int64]:
    family = replace(FAMILIES[network.family], size=network.size)
    return np.stack([prepare(family, view) for view in all_views()])


class Formats:
    """The networks in all formats, and their outputs for the views of the photographs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._images = {name: images_of(network) for name, network in NETWORKS.items()}
        self._weights = {
            name: calibrated_weights(network, lambda _: None) for name, network in NETWORKS.items()
        }
        exports = [
            *(self._export(name, "saved_model", name) for name in NETWORKS),
            self._export("mobilenet", "fake_quantised_saved_model", "mobilenet_q"),
            self._export("mobilenet", "tflite", "mobilenet.tflite"),
            self._export("mobilenet", "tflite_int8", "mobilenet_q.tflite"),
        ]
        *_, self._quantisation = export_models(exports)
        for name, images in self._images.items():
            np.save(folder / f"{name}.npy", images)
        subprocess.run(
            [sys.executable, "-c", RUN_SAVED_MODELS, str(folder), *SAVED_MODELS],
            check=True,
            capture_output=True,
            env=os.environ | QUIET,
        )

    def _export(self, name: str, model_format: ModelFormat, target: str) -> ModelExport:
        return ModelExport(
            architecture=NETWORKS[name],
            weights=self._weights[name],
            model_format=model_format,
            target=self._folder / target,
            images=list(self._images[name]) if model_format == "tflite_int8" else (),
        )

    def onnx(self, name: str, opset: int) -> Answers:
        model = onnx_model(NETWORKS[name], self._weights[name], opset)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        images = self._images[name]
        if name != "ssd":
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        taken, given = session.get_inputs()[0].name, [each.name for each in session.get_outputs()]
        answers = [session.run(None, {taken: image[np.newaxis]}) for image in images]
        return {
            key.removesuffix(":0"): np.concatenate(column)
            for key, column in zip(given, zip(*answers, strict=True), strict=True)
        }

    def saved_model(self, name: str) -> Answers:
        with np.load(self._folder / f"{name}.npz") as archive:
            return {key.replace("|", "/"): archive[key] for key in archive.files}

    def tflite(self, name: str) -> NDArray[np.float32]:
        backend = TfliteBackend(self._folder / name, threads=1)
        (taken,), (given,) = backend.inputs, backend.outputs
        answers: list[NDArray[np.float32]] = []
        for image in self._images["mobilenet"]:
            stored = image[np.newaxis]
            if taken.datatype == "INT8":
                assert self._quantisation == backend.quantisations[taken.name]
                stored = quantised(stored, backend.quantisations[taken.name])
            (answer,) = backend.run({taken.name: stored}, [given.name])
            answers.append(np.asarray(answer, np.float32))
        return np.concatenate(answers)


def quantised(real: NDArray[np.float32], by: Quantisation) -> NDArray[np.int8]:
    stored = np.rint(real / by.scale) + by.zero_point
    return np.asarray(np.clip(stored, -128, 127), np.int8)


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Formats:
    return Formats(tmp_path_factory.mktemp("formats"))


MOBILENET_OUTPUT = "MobilenetV1/Predictions/Reshape_1"


def test_mobilenet_gives_the_same_probabilities_in_all_exact_formats(formats: Formats) -> None:
    expected = formats.onnx("mobilenet", 11)[MOBILENET_OUTPUT]

    assert np.allclose(expected.sum(axis=1), 1, atol=1e-5)
    assert len(set(expected.argmax(axis=1))) > 1
    for answers in (
        formats.onnx("mobilenet", 8)[MOBILENET_OUTPUT],
        formats.saved_model("mobilenet")[MOBILENET_OUTPUT],
        formats.tflite("mobilenet.tflite"),
    ):
        assert np.abs(answers - expected).max() <= 1e-4


def test_quantised_mobilenet_predicts_the_same_classes(formats: Formats) -> None:
    expected = formats.onnx("mobilenet", 11)[MOBILENET_OUTPUT].argmax(axis=1)

    for answers in (
        formats.tflite("mobilenet_q.tflite"),
        formats.saved_model("mobilenet_q")[MOBILENET_OUTPUT],
    ):
        assert (answers.argmax(axis=1) == expected).mean() >= 0.9


def test_resnet50_gives_the_same_results_in_all_formats(formats: Formats) -> None:
    expected = formats.onnx("resnet50", 11)

    assert (expected["ArgMax"] == expected["softmax_tensor"].argmax(axis=1)).all()
    for answers in (formats.onnx("resnet50", 8), formats.saved_model("resnet50")):
        assert (answers["ArgMax"] == expected["ArgMax"]).all()
        assert np.abs(answers["softmax_tensor"] - expected["softmax_tensor"]).max() <= 1e-4


def test_ssd_finds_the_same_objects_in_all_formats(
    formats: Formats, assert_same_detections: Callable[[Answers, Answers], None]
) -> None:
    expected = formats.onnx("ssd", 11)

    assert_same_detections(formats.onnx("ssd", 8), expected)
    assert_same_detections(formats.saved_model("ssd"), expected)


def test_ssd_suppresses_overlapping_boxes_of_a_class(formats: Formats) -> None:
    found = formats.onnx("ssd", 8)

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
