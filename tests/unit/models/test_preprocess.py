"""Image preprocessing against MLPerf's reference application."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from profiler.zoo.photographs import load_photographs
from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models import processing
from synergai.models.processing import FAMILIES, MOBILENET, ImageInput, Quantisation, prepare


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
