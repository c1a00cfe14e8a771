"""Weights, graphs and training steps, without the long work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engines import catalogue
from engines.builders import mobilenet, neural
from engines.builders.onnx_engines import mobilenet_graph
from synergai.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def zero_weights() -> dict[str, NDArray[np.float32]]:
    weights: dict[str, NDArray[np.float32]] = {}
    for layer in mobilenet.convolutions():
        inputs = 1 if layer.depthwise else layer.inputs
        weights[f"{layer.name}/weights"] = np.zeros(
            (layer.outputs, inputs, layer.kernel, layer.kernel), np.float32
        )
        weights[f"{layer.name}/bias"] = np.zeros(layer.outputs, np.float32)
    weights["Logits/weights"] = np.zeros((mobilenet.CLASSES, 1024, 1, 1), np.float32)
    weights["Logits/bias"] = np.zeros(mobilenet.CLASSES, np.float32)
    return weights


def test_mobilenet_has_the_parameters_of_the_published_network() -> None:
    # 4,231,976 are trained with 1,000 classes. Folding leaves a bias of each of the 10,944 pairs
    # of normalisation's scale and shift, and one class more has 1,025.
    total = sum(array.size for array in zero_weights().values())

    assert total == 4_231_976 - 10_944 + 1_025


def test_mobilenet_graph_is_what_mlperf_names() -> None:
    model = mobilenet_graph(zero_weights())

    assert [entry.version for entry in model.opset_import] == [11]
    assert model.ir_version == 6
    (image,) = model.graph.input
    (answer,) = model.graph.output
    assert image.name == "input:0"
    assert [size.dim_value for size in image.type.tensor_type.shape.dim] == [0, 3, 224, 224]
    assert answer.name == "MobilenetV1/Predictions/Reshape_1:0"
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 1 + 2 * 13 + 1


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(224, 2, (0, 1)), (112, 1, (1, 1)), (7, 1, (1, 1)), (7, 2, (1, 1))],
)
def test_same_padding_puts_the_odd_pixel_after(
    size: int, stride: int, padding: tuple[int, int]
) -> None:
    assert mobilenet.same_padding(size, 3, stride) == padding


def test_gradients_of_a_convolution_are_those_of_finite_differences() -> None:
    generator = np.random.default_rng(0)
    # In double precision, which the layers do not mind, so that differences can be small.
    images: Any = generator.normal(size=(2, 3, 4, 4))
    kernel: Any = generator.normal(size=(5, 3, 3, 3))
    slope: Any = generator.normal(size=(2, 5, 4, 4))

    def loss() -> float:
        return float((neural.convolve(neural.windows(images), kernel) * slope).sum())

    by_kernel, by_images = neural.convolve_gradients(neural.windows(images), kernel, slope)

    for array, gradient in ((kernel, by_kernel), (images, by_images)):
        for place in ((0, 0, 0, 0), (1, 2, 1, 2), (-1, -1, -1, -1)):
            array[place] += 1e-4
            above = loss()
            array[place] -= 2e-4
            below = loss()
            array[place] += 1e-4
            assert gradient[place] == pytest.approx((above - below) / 2e-4, rel=1e-4)


def test_pooling_keeps_the_maximum_and_leads_its_gradient_back() -> None:
    images = np.array([[[[1, 5], [2, 3]]]], np.float32)

    pooled, mask = neural.pool(images)

    assert pooled.tolist() == [[[[5]]]]
    back = neural.pool_gradient(mask, np.full((1, 1, 1, 1), 7, np.float32))
    assert back.tolist() == [[[[0, 7], [0, 0]]]]


def test_adam_walks_down_to_the_minimum() -> None:
    weights = {"w": np.array([3.0, -2.0], np.float32)}
    adam = neural.Adam(weights)

    for _ in range(500):
        adam.step({"w": 2 * weights["w"]}, 0.05)

    assert np.abs(weights["w"]).max() < 0.01


def test_every_recipe_names_a_builder_that_exists() -> None:
    for recipe in catalogue.RECIPES.values():
        assert callable(recipe.load())


def test_unknown_recipe_is_not_found() -> None:
    with pytest.raises(NotFound, match="onnx_digits"):
        catalogue.recipe("onnx_nothing")


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first = catalogue.build("onnx_identity", tmp_path)
    content = {path.name: path.read_bytes() for path in first.file.parent.iterdir()}

    second = catalogue.build("onnx_identity", tmp_path)

    assert {path.name: path.read_bytes() for path in second.file.parent.iterdir()} == content
    assert [path.name for path in tmp_path.iterdir()] == ["onnx_identity"]


def test_damaged_build_is_not_taken_for_built(tmp_path: Path) -> None:
    assert not catalogue.is_built("onnx_identity", tmp_path)
    definition = catalogue.build("onnx_identity", tmp_path)
    assert catalogue.is_built("onnx_identity", tmp_path)

    definition.file.write_bytes(b"damaged")

    assert not catalogue.is_built("onnx_identity", tmp_path)
