"""Image decoding that checks untrusted data before unpacking it.

A few hundred bytes can unpack to gigabytes of pixels, and OpenCV decodes many obscure formats.
Therefore only JPEG and PNG are accepted, and their size is read from the header first.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

import cv2
import numpy as np

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels: TypeAlias = NDArray[np.uint8]

MAX_ENCODED_BYTES: Final = 32 << 20
MAX_PIXELS: Final = 32_000_000
"""Per image: 96 MB unpacked."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE: Final = struct.Struct(">4x4sII")
_JPEG: Final = b"\xff\xd8"
_JPEG_FRAME: Final = struct.Struct(">HxHH")
_FRAME_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's start-of-frame markers: C0 to CF without the tables' markers."""
_STANDALONE_MARKERS: Final = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length field."""


def decode(encoded: bytes) -> Pixels:
    """Decode a JPEG or PNG file to uint8 [height, width, 3], RGB.

    The EXIF orientation of a JPEG is applied; transparency is dropped.
    """
    if len(encoded) > MAX_ENCODED_BYTES:
        raise InvalidInput(
            f"an encoded image has {len(encoded):,} bytes; the limit is {MAX_ENCODED_BYTES:,}"
        )
    width, height = dimensions(encoded)
    if width * height > MAX_PIXELS:
        raise InvalidInput(
            f"an image has {width:,} x {height:,} pixels; the limit is {MAX_PIXELS:,} in all"
        )
    try:
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise InvalidInput("an image is corrupt: OpenCV cannot decode it")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def dimensions(encoded: bytes) -> tuple[int, int]:
    """Return width and height of a JPEG or PNG file, read from its header."""
    try:
        if encoded.startswith(_PNG):
            kind, width, height = _PNG_SIZE.unpack_from(encoded, len(_PNG))
            known = kind == b"IHDR"
        elif encoded.startswith(_JPEG):
            height, width = _read_jpeg_frame(encoded)
            known = True
        else:
            known = False
    except (struct.error, IndexError):
        known = False
    if not known or not width or not height:
        raise InvalidInput("the data is not an image: only JPEG and PNG files are accepted")
    return width, height


def resize(pixels: Pixels, width: int, height: int, *, area: bool) -> Pixels:
    """Resample an image.

    Args:
        pixels: uint8 [any, any, 3].
        area: Average over areas instead of interpolating bilinearly.
    """
    how = cv2.INTER_AREA if area else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=how), np.uint8)


def set_threads(threads: int) -> None:
    """Limit OpenCV to `threads` threads in this process; the default is one per core."""
    cv2.setNumThreads(threads)


def _read_jpeg_frame(encoded: bytes) -> tuple[int, int]:
    """Return height and width from the frame header, skipping the segments before it."""
    position = len(_JPEG)
    while True:
        # A marker is FF and another byte; skip garbage before it, as decoders do.
        position = encoded.find(b"\xff", position)
        if position < 0:
            raise IndexError
        while encoded[position] == 0xFF:
            position += 1
        marker = encoded[position]
        position += 1
        if marker in _FRAME_MARKERS:
            _, height, width = _JPEG_FRAME.unpack_from(encoded, position)
            return height, width
        if marker not in _STANDALONE_MARKERS and marker:
            position += struct.unpack_from(">H", encoded, position)[0]
