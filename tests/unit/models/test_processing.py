"""What is done before and behind a model: pixels to tensors, and tensors to classes or boxes."""

from collections.abc import Sequence

import cv2
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from profiler.zoo.photographs import load_photographs
from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models import processing
from synergai.models.processing import (
    FAMILIES,
    MOBILENET,
    BoxPostprocessor,
    ClassPostprocessor,
    ImageInput,
    Quantisation,
    create_postprocessor,
    prepare,
    top_classes,
)


def spec(*shape: int, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec("image", datatype, shape)


def reference(family: str, image: NDArray[np.uint8]) -> NDArray[np.float32] | NDArray[np.uint8]:
    """Preprocess an image step by step as MLPerf's reference application does."""
    if family == "ssd":
        return np.asarray(cv2.resize(image, (300, 300), interpolation=cv2.INTER_LINEAR), np.uint8)
    height, width, _ = image.shape
    scale = 256 / min(height, width)
    size = (int(256 * width / height), 256) if width >= height else (256, int(256 * height / width))
    assert max(size) == pytest.approx(scale * max(height, width), abs=1)
    how = cv2.INTER_AREA if family == "resnet50" else cv2.INTER_LINEAR
    resized = np.asarray(cv2.resize(image, size, interpolation=how), np.float32)
    top, left = (resized.shape[0] - 224) // 2, (resized.shape[1] - 224) // 2
    crop = resized[top : top + 224, left : left + 224]
    if family == "resnet50":
        return crop - np.array([123.68, 116.78, 103.94], np.float32)
    return (crop / np.float32(255) - np.float32(0.5)) * np.float32(2)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("turned", [False, True])
def test_each_family_matches_the_reference_on_a_photograph(family: str, turned: bool) -> None:
    pixels = load_photographs()[0].pixels()
    if turned:
        pixels = np.ascontiguousarray(pixels.transpose(1, 0, 2))

    assert np.array_equal(prepare(FAMILIES[family], pixels), reference(family, pixels))


def test_channels_are_red_green_blue() -> None:
    image = np.zeros((256, 256, 3), np.uint8)
    image[..., 0] = 255

    red, green, blue = prepare(MOBILENET, image).transpose(2, 0, 1)

    assert (red == 1).all()
    assert (green == -1).all()
    assert (blue == -1).all()


def test_centre_of_the_resized_image_is_kept() -> None:
    image = np.zeros((256, 512, 3), np.uint8)
    image[16:240, 144:368] = np.arange(224, dtype=np.uint8)[:, None, None]

    rows = prepare(MOBILENET, image)[:, :, 0]

    expected = (np.arange(224, dtype=np.float32) / 255 - 0.5) * 2
    assert np.allclose(rows, expected[:, None], atol=1e-6)


def test_encoded_and_decoded_photographs_give_the_same_tensor() -> None:
    first, second = load_photographs()

    assert first.pixels().shape == (427, 640, 3)
    assert (prepare(MOBILENET, first.jpeg) == prepare(MOBILENET, first.pixels())).all()
    assert (prepare(MOBILENET, first.jpeg) != prepare(MOBILENET, second.jpeg)).any()


@pytest.mark.parametrize(
    "image",
    [np.zeros((3, 4), np.uint8), np.zeros((3, 4, 1), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_array_of_another_shape_is_rejected(image: NDArray[np.uint8]) -> None:
    with pytest.raises(InvalidInput, match="an image is uint8"):
        prepare(MOBILENET, image)


def test_elongated_image_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="too elongated"):
        prepare(MOBILENET, np.zeros((1_000_000, 1, 3), np.uint8))


# --- the input of a model -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "takes", "shape"),
    [
        ("mobilenet", spec(-1, 3, 224, 224), (2, 3, 224, 224)),
        ("mobilenet", spec(-1, 224, 224, 3), (2, 224, 224, 3)),
        ("resnet50", spec(-1, -1, 224, 224), (2, 3, 224, 224)),
        ("ssd", spec(1, -1, -1, 3, datatype="UINT8"), (2, 300, 300, 3)),
        ("ssd", spec(-1, -1, -1, 3), (2, 300, 300, 3)),
    ],
)
def test_tensor_has_layout_and_dtype_of_the_models_input(
    family: str, takes: TensorSpec, shape: tuple[int, ...]
) -> None:
    first, second = load_photographs()

    tensor = ImageInput(family, takes).to_tensor([first.jpeg, second.pixels()])

    assert tensor.shape == shape
    assert tensor.dtype == (np.uint8 if takes.datatype == "UINT8" else np.float32)
    assert tensor.flags.c_contiguous
    seen = prepare(FAMILIES[family], second.jpeg)
    assert np.array_equal(tensor[1], seen.transpose(2, 0, 1) if shape[1] == 3 else seen)


def test_too_many_pixels_in_total_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processing, "MAX_BATCH_PIXELS", 640 * 427 + 99)
    takes, photograph = ImageInput("mobilenet", spec(-1, 3, 224, 224)), load_photographs()[0].jpeg

    takes.to_tensor([photograph])
    with pytest.raises(InvalidInput, match="more than 273,379 pixels in total"):
        takes.to_tensor([photograph, np.zeros((10, 10, 3), np.uint8)])


@pytest.mark.parametrize(
    ("datatype", "zero_point", "black", "white"),
    [("UINT8", 128, 0, 255), ("INT8", 0, -128, 127), ("INT8", -10, -128, 118)],
)
def test_images_are_quantised_with_the_inputs_parameters(
    datatype: str, zero_point: int, black: int, white: int
) -> None:
    quantisation = Quantisation(scale=1 / 128, zero_point=zero_point)
    takes = ImageInput("mobilenet", spec(1, 224, 224, 3, datatype=datatype), quantisation)

    both = [np.full((9, 9, 3), value, np.uint8) for value in (0, 255)]
    dark, light = takes.to_tensor(both)

    assert np.unique(dark).tolist() == [black]
    assert np.unique(light).tolist() == [white]


@pytest.mark.parametrize(
    ("family", "takes", "complaint"),
    [
        ("mobilenet", spec(-1, 1000), r"has the shape \[-1, 1000\]"),
        ("mobilenet", spec(-1, 1, 28, 28), "224 x 224 pixels and 3 channels"),
        ("ssd", spec(-1, 224, 224, 3), "300 x 300"),
        ("mobilenet", spec(-1, -1, -1, -1), "has the shape"),
        ("mobilenet", spec(1, 224, 224, 3, datatype="UINT8"), "without quantisation parameters"),
        ("ssd", spec(1, 300, 300, 3, datatype="INT8"), "without quantisation parameters"),
        ("ssd", spec(1, 300, 300, 3, datatype="INT32"), "without quantisation parameters"),
        ("ssd", spec(1, 300, 300, 3, datatype="BYTES"), "without quantisation parameters"),
    ],
)
def test_input_that_does_not_fit_the_family_is_unusable(
    family: str, takes: TensorSpec, complaint: str
) -> None:
    with pytest.raises(EngineUnusable, match=complaint):
        ImageInput(family, takes)


def specs(*names: str) -> list[TensorSpec]:
    return [TensorSpec(name, "FP32", (-1,)) for name in names]


def classes_of(output: ArrayLike) -> list[int]:
    found: list[int] = ClassPostprocessor(specs("p")).derive({"p": np.asarray(output)}).tolist()
    return found


def probabilities(*best: int, values: int = 1001) -> NDArray[np.float32]:
    return np.eye(values, dtype=np.float32)[list(best)]


# --- classes --------------------------------------------------------------------------------


def test_classes_are_counted_from_after_the_background() -> None:
    assert classes_of(probabilities(208, 1, 0)) == [207, 0, -1]


def test_classes_without_a_background_are_counted_from_the_first() -> None:
    assert classes_of(probabilities(208, 0, values=1000)) == [208, 0]


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1)])
def test_output_of_an_arg_max_is_the_class(shape: tuple[int, ...]) -> None:
    assert classes_of(np.array([208, 1, 0], np.int64).reshape(shape)) == [207, 0, -1]
    assert classes_of(np.int64(208)) == [207]


def test_spatial_axes_of_length_one_are_ignored() -> None:
    assert classes_of(probabilities(5).reshape(1, 1, 1, 1001)) == [4]


def test_empty_output_fails_the_request_and_not_the_engine() -> None:
    with pytest.raises(InvalidInput, match="'p' is empty"):
        classes_of(np.zeros((0, 1001), np.float32))


# --- boxes ----------------------------------------------------------------------------------

DETECTIONS = ("num_detections:0", "detection_boxes:0", "detection_scores:0", "detection_classes:0")


def detections(counts: Sequence[float], places: int = 3) -> dict[str, NDArray[np.float32]]:
    images = len(counts)
    boxes = np.arange(images * places * 4, dtype=np.float32).reshape(
        images, places, 4
    ) / np.float32(100)
    return {
        "num_detections:0": np.asarray(counts, np.float32),
        "detection_boxes:0": boxes,
        "detection_scores:0": np.full((images, places), 0.5, np.float32),
        "detection_classes:0": np.full((images, places), 17, np.float32),
    }


def test_objects_of_all_images_are_in_one_table() -> None:
    found = BoxPostprocessor(specs(*DETECTIONS)).derive(detections([2, 0, 1]))

    assert found.dtype == np.float32
    assert np.round(found, 2).tolist() == [
        pytest.approx([0, 0.00, 0.01, 0.02, 0.03, 0.5, 17]),
        pytest.approx([0, 0.04, 0.05, 0.06, 0.07, 0.5, 17]),
        pytest.approx([2, 0.24, 0.25, 0.26, 0.27, 0.5, 17]),
    ]


@pytest.mark.parametrize("count", [0, -1, np.nan])
def test_image_without_objects_gives_an_empty_table(count: int) -> None:
    assert BoxPostprocessor(specs(*DETECTIONS)).derive(detections([count])).shape == (0, 7)


def test_count_is_limited_to_the_number_of_places() -> None:
    assert BoxPostprocessor(specs(*DETECTIONS)).derive(detections([100])).shape == (3, 7)


@pytest.mark.parametrize(
    "damage",
    [
        {"detection_boxes:0": np.zeros((1, 3), np.float32)},
        {"detection_scores:0": np.zeros((1, 2), np.float32)},
        {"num_detections:0": np.zeros(0, np.float32)},
    ],
)
def test_inconsistent_outputs_fail_the_request(
    damage: dict[str, NDArray[np.float32]],
) -> None:
    with pytest.raises(InvalidInput, match="detections"):
        BoxPostprocessor(specs(*DETECTIONS)).derive({**detections([1]), **damage})


def test_model_without_detection_outputs_is_unusable() -> None:
    with pytest.raises(EngineUnusable, match="the model lacks num_detections, detection_classes"):
        create_postprocessor("boxes", specs("detection_boxes", "detection_scores"))


def test_output_names_of_saved_models_have_no_index() -> None:
    names = tuple(name.removesuffix(":0") for name in DETECTIONS)

    assert create_postprocessor("boxes", specs(*names)).required_outputs == names


def test_name_collision_with_the_derived_output_is_unusable() -> None:
    with pytest.raises(EngineUnusable, match="but the model has one"):
        create_postprocessor("classes", specs("p", "classes"))


# --- the classification extension -----------------------------------------------------------


def test_top_classes_are_sorted_by_value() -> None:
    output = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.5]], np.float32)

    assert top_classes(output, 2).tolist() == [
        [b"0.700000:1", b"0.200000:2"],
        [b"0.500000:0", b"0.500000:2"],
    ]


def test_top_classes_are_limited_to_those_available() -> None:
    assert top_classes(np.array([[1, 2]]), 1000).tolist() == [[b"2.000000:1", b"1.000000:0"]]


def test_output_without_a_batch_gives_one_row() -> None:
    assert top_classes(np.array([3, 9, 4], np.uint8), 1).tolist() == [b"9.000000:1"]


def test_top_classes_can_be_numbered_as_imagenet() -> None:
    best = top_classes(probabilities(208), 1, as_imagenet=True)

    assert best.tolist() == [[b"1.000000:207"]]


def test_top_classes_of_strings_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="strings"):
        top_classes(np.array([b"text"], object), 1)
