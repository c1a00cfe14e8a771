"""Zoo engines, built in full and run by ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from profiler.zoo import recipes as zoo
from profiler.zoo.photographs import load_photographs
from synergai.domain import TensorSpec
from synergai.models.directory import EngineDefinition
from synergai.models.samples import load_samples
from tests.tiny_images import mobilenet_input


def run(
    definition: EngineDefinition, inputs: dict[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        definition.file, options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> EngineDefinition:
    return zoo.build("onnx_digits", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> EngineDefinition:
    return zoo.build("onnx_mobilenet_op11", tmp_path_factory.mktemp("models"))


def test_accuracy_of_digits_is_as_recorded(digits: EngineDefinition) -> None:
    samples = load_samples(digits, [TensorSpec("image", "FP32", (-1, 1, 8, 8))])
    assert samples.labels is not None

    images = np.concatenate([sample["image"] for sample in samples.inputs])
    probabilities = run(digits, {"image": images})

    assert len(samples) == 450
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    accuracy = float((probabilities.argmax(axis=1) == samples.labels).mean())
    assert accuracy >= 0.97
    assert digits.accuracy == pytest.approx(accuracy, abs=0.005)


def test_training_again_gives_the_same_model(digits: EngineDefinition) -> None:
    again = zoo.build("onnx_digits", digits.file.parents[1])

    assert again.sha256 == digits.sha256


def test_mobilenet_distinguishes_the_photographs(mobilenet: EngineDefinition) -> None:
    images = np.concatenate([mobilenet_input(photo.jpeg) for photo in load_photographs()])

    first, second = run(mobilenet, {"input:0": images})

    for answer in (first, second):
        assert answer.shape == (1001,)
        assert answer.sum() == pytest.approx(1, abs=1e-4)
        # Neither undecided nor certain: uniform would be 0.001.
        assert 0.01 < answer.max() < 0.99
    assert first.argmax() != second.argmax()


def test_mobilenet_gives_the_same_result_in_a_batch(mobilenet: EngineDefinition) -> None:
    samples = load_samples(mobilenet, [TensorSpec("input:0", "FP32", (-1, 3, 224, 224))])
    images = [sample["input:0"] for sample in samples.inputs]

    together = run(mobilenet, {"input:0": np.concatenate(images[:2])})

    assert len(images) == 20
    assert np.allclose(run(mobilenet, {"input:0": images[1]})[0], together[1], atol=1e-5)
