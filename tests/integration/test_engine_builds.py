"""A zoo engine, built in full and run by ONNX Runtime; the acceptance tests build all of them."""

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from profiler.zoo import recipes as zoo
from synergai.domain import TensorSpec
from synergai.models.directory import EngineDefinition
from synergai.models.samples import load_samples


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
