"""From a photograph to a tensor, as MLPerf's reference application does it, with OpenCV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cv2
import numpy as np

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE: Final = 224
SHORT_SIDE: Final = 256
"""The centre crop keeps 87.5 % of the resized short side: 224 of 256."""


def decode(jpeg: bytes) -> NDArray[np.uint8]:
    """Pixels of a JPEG or PNG file: uint8 [height, width, 3], RGB.

    Raises:
        InvalidInput: it is not an image.
    """
    pixels = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR) if jpeg else None
    if pixels is None:
        raise InvalidInput("the bytes are not an image that OpenCV can decode")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def preprocess_mobilenet(image: NDArray[np.uint8] | bytes) -> NDArray[np.float32]:
    """Prepare an image for MobileNet v1: float32 [1, 3, 224, 224] from -1 to 1.

    The short side is resized to 256 with bilinear interpolation and the centre cropped.

    Args:
        image: uint8 [height, width, 3] in RGB order, or the bytes of a JPEG file.

    Raises:
        InvalidInput: it is not an image.
    """
    pixels = decode(image) if isinstance(image, bytes) else image
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise InvalidInput(
            f"an image is uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}"
        )
    cropped = _centre(_resized(pixels), SIZE)
    scaled = (cropped.astype(np.float32) / 255.0 - 0.5) * 2.0
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[np.newaxis], np.float32)


def _resized(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Resized so that the short side is SHORT_SIDE, with the aspect ratio kept."""
    height, width, _ = pixels.shape
    # Multiplied before it is divided and cut off, as the reference does: a pixel depends on it.
    if height > width:
        target = (SHORT_SIDE, int(SHORT_SIDE * height / width))
    else:
        target = (int(SHORT_SIDE * width / height), SHORT_SIDE)
    return np.asarray(cv2.resize(pixels, target, interpolation=cv2.INTER_LINEAR), np.uint8)


def _centre(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    height, width, _ = pixels.shape
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[top : top + size, left : left + size]
