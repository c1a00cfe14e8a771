from __future__ import annotations

import numpy as np
import pytest

from engines.photographs import photographs
from engines.preprocess import decode, preprocess_mobilenet
from synergai.errors import InvalidInput


@pytest.mark.parametrize("shape", [(427, 640, 3), (640, 427, 3), (224, 224, 3), (1, 1, 3)])
def test_any_image_becomes_a_tensor_of_one_shape(shape: tuple[int, int, int]) -> None:
    tensor = preprocess_mobilenet(np.full(shape, 255, np.uint8))

    assert tensor.shape == (1, 3, 224, 224)
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    assert (tensor == 1.0).all()


def test_black_is_minus_one() -> None:
    assert (preprocess_mobilenet(np.zeros((300, 300, 3), np.uint8)) == -1.0).all()


def test_channels_are_red_green_blue() -> None:
    image = np.zeros((256, 256, 3), np.uint8)
    image[..., 0] = 255

    red, green, blue = preprocess_mobilenet(image)[0]

    assert (red == 1).all()
    assert (green == -1).all()
    assert (blue == -1).all()


def test_centre_of_the_resized_image_is_kept() -> None:
    image = np.zeros((256, 512, 3), np.uint8)
    image[16:240, 144:368] = np.arange(224, dtype=np.uint8)[:, None, None]

    rows = preprocess_mobilenet(image)[0, 0]

    expected = (np.arange(224, dtype=np.float32) / 255 - 0.5) * 2
    assert np.allclose(rows, expected[:, None], atol=1e-6)


def test_bytes_and_pixels_of_a_photograph_give_the_same_tensor() -> None:
    first, second = photographs()

    assert first.pixels().shape == (427, 640, 3)
    assert (preprocess_mobilenet(first.jpeg) == preprocess_mobilenet(first.pixels())).all()
    assert (preprocess_mobilenet(first.jpeg) != preprocess_mobilenet(second.jpeg)).any()


def test_sky_of_the_first_photograph_is_bluer_than_red() -> None:
    sky = photographs()[0].pixels()[:40].reshape(-1, 3).mean(axis=0)

    assert sky[2] > sky[0]


@pytest.mark.parametrize("content", [b"", b"not an image"])
def test_bytes_that_are_no_image_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="not an image"):
        decode(content)


@pytest.mark.parametrize(
    "image",
    [np.zeros((3, 4), np.uint8), np.zeros((3, 4, 1), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_array_that_is_no_image_is_refused(
    image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> None:
    with pytest.raises(InvalidInput, match="an image is uint8"):
        preprocess_mobilenet(image)
