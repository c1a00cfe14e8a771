"""Pre- and post-processing with a fake model."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput
from synergai.models.processing import Quantisation
from synergai.oip.inference_pb2 import ModelInferRequest
from tests.engines import new_engine
from tests.tiny_images import picture
from worker_agent.host.processing import Processing

Array: TypeAlias = NDArray[np.generic]


class Model:
    """A quantised model with MobileNet's inputs."""

    inputs = (TensorSpec("image", "UINT8", (-1, 224, 224, 3)),)
    outputs = (TensorSpec("p", "FP32", (-1, 1001)), TensorSpec("more", "FP32", (-1,)))
    quantisations: Mapping[str, Quantisation] = {
        "image": Quantisation(scale=1 / 128, zero_point=128)
    }

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        raise NotImplementedError


def engine(model: Model, preprocess: str = "mobilenet", postprocess: str = "classes") -> Engine:
    return new_engine(
        "e", model.inputs, model.outputs, preprocess=preprocess, postprocess=postprocess
    )


@pytest.fixture
def threads() -> Iterator[int]:
    before = cv2.getNumThreads()
    yield 1
    cv2.setNumThreads(before)


@pytest.fixture
def processing(threads: int) -> Processing:
    return Processing(engine(Model()), Model(), threads)


def asking(*names: str) -> ModelInferRequest:
    request = ModelInferRequest()
    for name in names:
        request.outputs.add(name=name)
    return request


def images(*colours: str) -> dict[str, Array]:
    return {"image": np.array([picture(colour) for colour in colours], object)}


def test_images_are_quantised_for_a_quantised_model(processing: Processing) -> None:
    tensor = processing.preprocess(images("red", "blue"))["image"]

    assert tensor.shape == (2, 224, 224, 3)
    assert tensor.dtype == np.uint8
    assert np.abs(tensor[0, 100, 100].astype(int) - [200, 20, 20]).max() <= 5


def test_decoder_uses_the_configurations_threads(processing: Processing) -> None:
    cv2.setNumThreads(2)

    processing.preprocess(images("red"))

    assert cv2.getNumThreads() == 1


def test_tensors_are_not_preprocessed(processing: Processing) -> None:
    inputs = {"image": np.zeros((1, 224, 224, 3), np.uint8)}

    assert processing.preprocess(inputs) is inputs


def test_worker_without_opencv_refuses_the_request_and_keeps_the_engine(
    processing: Processing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "synergai.models.images", None)

    with pytest.raises(InvalidInput, match=r"without OpenCV; pip install 'WHEEL\[images\]'"):
        processing.preprocess(images("red"))


def test_only_required_outputs_are_computed(processing: Processing) -> None:
    assert processing.outputs_to_compute(asking()) == ["p", "more"]
    assert processing.outputs_to_compute(asking("more")) == ["more"]
    assert processing.outputs_to_compute(asking("classes")) == ["p"]
    assert processing.outputs_to_compute(asking("p", "classes", "more")) == ["p", "more"]


def test_response_has_the_requested_outputs_in_order(processing: Processing) -> None:
    computed = {"p": np.eye(1001, dtype=np.float32)[[3]], "more": np.zeros(1, np.float32)}

    outputs = processing.requested_outputs(asking("more", "classes"), computed)

    assert list(outputs) == ["more", "classes"]
    assert outputs["classes"].tolist() == [2]
    assert processing.requested_outputs(asking(), computed) is computed


def test_engine_without_processing_returns_the_model_outputs(threads: int) -> None:
    processing = Processing(engine(Model(), preprocess="", postprocess=""), Model(), threads)

    assert processing.predicted_class([np.array([[0.1, 0.9]])]) == 1
    assert processing.outputs_to_compute(asking()) == ["p", "more"]
