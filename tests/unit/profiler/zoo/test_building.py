"""Architectures and ONNX models of the zoo, in small sizes."""

from pathlib import Path

import numpy as np
import pytest

from examples.training.digits import load_digits
from profiler.zoo import recipes as zoo
from profiler.zoo.architectures import Architecture, MobileNet, ResNet50, SsdMobileNet
from profiler.zoo.calibration import convolve
from profiler.zoo.layer_builder import Convolution, Layer, LayerCollector, Weights, same_padding
from profiler.zoo.onnx_models import onnx_model
from profiler.zoo.small_engines import load_test_digits
from synergai.errors import NotFound


def layers(architecture: Architecture) -> list[Layer]:
    collector = LayerCollector()
    architecture.build_layers(collector, None)
    return collector.layers


def zero_weights(architecture: Architecture) -> Weights:
    return {
        f"{layer.name}/{kind}": np.zeros(shape, np.float32)
        for layer in layers(architecture)
        for kind, shape in (("weights", layer.shape), ("bias", (layer.outputs,)))
    }


def test_shipped_samples_of_the_digits_are_the_held_out_quarter() -> None:
    shipped, (_, held_out) = load_test_digits(), load_digits()
    np.testing.assert_array_equal(shipped.images, held_out.images)
    np.testing.assert_array_equal(shipped.labels, held_out.labels)
    assert shipped.images.dtype == held_out.images.dtype
    assert shipped.labels.dtype == held_out.labels.dtype


@pytest.mark.parametrize(
    ("architecture", "trained", "normalised", "further_classes"),
    [
        # What is trained with 1,000 classes. Folding leaves a bias of each pair of normalisation's
        # scale and shift, and one class more has a weight per feature and a bias.
        (MobileNet(), 4_231_976, 10_944, 1_025),
        (ResNet50(), 25_557_032, 26_560, 2_049),
    ],
)
def test_classifiers_have_the_parameters_of_the_published_networks(
    architecture: Architecture, trained: int, normalised: int, further_classes: int
) -> None:
    total = sum(array.size for array in zero_weights(architecture).values())

    assert total == trained - normalised + further_classes


def test_ssd_has_the_feature_maps_and_anchors_of_the_published_network() -> None:
    network = SsdMobileNet()
    anchors = network.anchors()

    assert network.grids() == [19, 10, 5, 3, 2, 1]
    assert anchors.shape == (1917, 4)
    # The first cell: a square of a tenth, a flat and a tall box of a fifth's area.
    expected = [[0.1, 0.1], [0.2 / 2**0.5, 0.2 * 2**0.5], [0.2 * 2**0.5, 0.2 / 2**0.5]]
    assert np.allclose(anchors[:3], [[0.5 / 19, 0.5 / 19, *size] for size in expected])
    # The last cell is the whole image.
    assert np.allclose(anchors[-6:, :2], 0.5)
    predictors = [layer for layer in layers(network) if "Predictor" in layer.name]
    assert [layer.outputs for layer in predictors[:4]] == [12, 273, 24, 546]


@pytest.mark.parametrize("opset", [8, 11])
@pytest.mark.parametrize(
    ("architecture", "image", "outputs"),
    [
        (
            MobileNet(size=32, width=0.125),
            ("input:0", [0, 3, 32, 32]),
            ["MobilenetV1/Predictions/Reshape_1:0"],
        ),
        (
            ResNet50(size=32, width=4),
            ("input_tensor:0", [0, 3, 32, 32]),
            ["ArgMax:0", "softmax_tensor:0"],
        ),
        (
            SsdMobileNet(size=64, width=0.125),
            ("image_tensor:0", [1, 64, 64, 3]),
            [
                "num_detections:0",
                "detection_boxes:0",
                "detection_scores:0",
                "detection_classes:0",
            ],
        ),
    ],
)
def test_onnx_models_have_the_opset_and_the_names_of_mlperfs_files(
    architecture: Architecture, image: tuple[str, list[int]], outputs: list[str], opset: int
) -> None:
    model = onnx_model(architecture, zero_weights(architecture), opset)

    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    (taken,) = model.graph.input
    assert (taken.name, [size.dim_value for size in taken.type.tensor_type.shape.dim]) == image
    assert [given.name for given in model.graph.output] == outputs
    suppressed = any(node.op_type == "NonMaxSuppression" for node in model.graph.node)
    assert suppressed == (opset == 11 and isinstance(architecture, SsdMobileNet))


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(224, 2, (0, 1)), (112, 1, (1, 1)), (7, 1, (1, 1)), (7, 2, (1, 1))],
)
def test_same_padding_adds_the_odd_pixel_after(
    size: int, stride: int, padding: tuple[int, int]
) -> None:
    assert same_padding(size, 3, stride) == padding


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Convolution(name="a", inputs=2, outputs=3, kernel=3, stride=2), (3, 2, 2)),
        (Convolution(name="a", inputs=2, outputs=3, kernel=3, stride=2, centred=True), (3, 2, 2)),
        (Convolution(name="a", inputs=2, outputs=2, kernel=3, depthwise=True), (2, 4, 3)),
        (Convolution(name="a", inputs=2, outputs=3, kernel=1, stride=2), (3, 2, 2)),
    ],
)
def test_convolution_matches_its_definition(
    layer: Convolution, shape: tuple[int, int, int]
) -> None:
    generator = np.random.default_rng(0)
    images = generator.normal(size=(2, 2, 4, 3)).astype(np.float32)
    kernel = generator.normal(size=layer.shape).astype(np.float32)

    result = convolve(images, kernel, layer)

    assert result.shape == (2, *shape)
    (top, _), (left, _) = layer.padding(4), layer.padding(3)
    for image, output, y, x in np.ndindex(result.shape):
        total = 0.0
        for channel, row, column in np.ndindex(kernel.shape[1:]):
            source = output if layer.depthwise else channel
            down, right = y * layer.stride + row - top, x * layer.stride + column - left
            if 0 <= down < 4 and 0 <= right < 3:
                total += images[image, source, down, right] * kernel[output, channel, row, column]
        assert result[image, output, y, x] == pytest.approx(total, abs=1e-5)


def test_every_recipe_names_a_builder_that_exists() -> None:
    for recipe in zoo.RECIPES.values():
        assert callable(recipe.load_builder())


def test_unknown_recipe_is_not_found() -> None:
    with pytest.raises(NotFound, match="onnx_digits"):
        zoo.find_recipe("onnx_nothing")


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first = zoo.build("onnx_identity", tmp_path)
    content = {path.name: path.read_bytes() for path in first.file.parent.iterdir()}

    second = zoo.build("onnx_identity", tmp_path)

    assert {path.name: path.read_bytes() for path in second.file.parent.iterdir()} == content
    assert [path.name for path in tmp_path.iterdir()] == ["onnx_identity"]


def test_corrupt_build_does_not_count_as_built(tmp_path: Path) -> None:
    assert not zoo.is_built("onnx_identity", tmp_path)
    definition = zoo.build("onnx_identity", tmp_path)
    assert zoo.is_built("onnx_identity", tmp_path)

    definition.file.write_bytes(b"damaged")

    assert not zoo.is_built("onnx_identity", tmp_path)
