"""Image decoding, and rejection of images before they are unpacked."""

import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.zoo.photographs import load_photographs
from synergai.errors import InvalidInput
from synergai.models.images import MAX_ENCODED_BYTES, decode, dimensions


def encoded(suffix: str, height: int = 3, width: int = 5, value: int = 200) -> bytes:
    image = np.full((height, width, 3), value, np.uint8)
    return bytes(cv2.imencode(suffix, image)[1])


def png_of(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes whose header claims the given size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    )


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_jpeg_and_png_are_decoded_to_rgb(suffix: str) -> None:
    image = np.zeros((32, 16, 3), np.uint8)
    image[..., 2] = 255  # red, as OpenCV orders channels

    pixels = decode(bytes(cv2.imencode(suffix, image)[1]))

    assert pixels.shape == (32, 16, 3)
    assert pixels[..., 0].min() > 250
    assert pixels[..., 1:].max() < 5


def test_dimensions_are_read_from_the_header() -> None:
    assert dimensions(encoded(".png", height=3, width=5)) == (5, 3)
    assert dimensions(encoded(".jpg", height=3, width=5)) == (5, 3)
    assert {dimensions(photograph.jpeg) for photograph in load_photographs()} == {(640, 427)}


def test_progressive_jpeg_with_fill_bytes_is_read() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    jpeg = bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1])

    assert dimensions(jpeg) == (30, 20)
    assert dimensions(jpeg[:2] + b"\x00junk\xff\xff" + jpeg[2:]) == (30, 20)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an image",
        b"\xff\xd8",
        b"\xff\xd8" + b"\xff" * 100,
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        png_of(0, 5),
        encoded(".bmp"),
        encoded(".tiff"),
    ],
)
def test_other_data_than_jpeg_and_png_is_rejected(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="not an image: only JPEG and PNG"):
        decode(content)


@pytest.mark.parametrize("size", [(100_000, 100_000), (1, 2**31 - 1), (8_000, 4_001)])
def test_oversized_png_is_rejected_before_unpacking(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match=r"the limit is 32,000,000 in all"):
        decode(png_of(*size))


def test_oversized_jpeg_is_rejected_before_unpacking() -> None:
    jpeg = bytearray(encoded(".jpg"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"

    with pytest.raises(InvalidInput, match="65,535 x 65,535 pixels"):
        decode(bytes(jpeg))


def test_oversized_file_is_rejected_before_parsing() -> None:
    with pytest.raises(InvalidInput, match="the limit is 33,554,432"):
        decode(encoded(".png") + bytes(MAX_ENCODED_BYTES))


def test_corrupt_image_is_reported() -> None:
    with pytest.raises(InvalidInput, match="corrupt"):
        decode(png_of(30, 3_000)[:60])


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"]))
def test_arbitrary_bytes_have_dimensions_or_are_rejected(content: bytes, beginning: bytes) -> None:
    try:
        width, height = dimensions(beginning + content)
    except InvalidInput:
        return
    assert width > 0
    assert height > 0
