"""Real photographs to infer on: the two that scikit-learn ships.

``china.jpg`` by danielbuechele and ``flower.jpg`` by vultilion, both CC BY 2.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import NotFound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAMES: Final = ("china", "flower")


@dataclass(frozen=True, slots=True)
class Photograph:
    """A photograph as a camera would send it."""

    name: str
    jpeg: bytes

    def pixels(self) -> NDArray[np.uint8]:
        """Decoded: uint8 [height, width, 3], RGB."""
        from engines.images import decode

        return decode(self.jpeg)


@dataclass(frozen=True, slots=True)
class View:
    """A part of a photograph, perhaps mirrored.

    Attributes:
        name: of the part; its mirror image has the same.
        pixels: uint8 [height, width, 3], RGB.
    """

    name: str
    pixels: NDArray[np.uint8]


def photographs() -> list[Photograph]:
    """The photographs, each 640 x 427 pixels.

    Raises:
        NotFound: scikit-learn is not installed.
    """
    # Found without being imported: the files are wanted, not a second of import time.
    package: Any = find_spec("sklearn")
    if package is None or package.origin is None:
        raise NotFound("the photographs come with scikit-learn; install 'synergai[engines]'")
    folder = Path(package.origin).parent / "datasets" / "images"
    return [Photograph(name, (folder / f"{name}.jpg").read_bytes()) for name in NAMES]


def views(photograph: Photograph) -> list[View]:
    """Ten views: the whole and four overlapping corners, each as it is and mirrored."""
    pixels = photograph.pixels()
    height, width, _ = pixels.shape
    parts = {"whole": pixels}
    for row, top in (("upper", 0), ("lower", height * 2 // 5)):
        for column, left in (("left", 0), ("right", width * 2 // 5)):
            corner = pixels[top : top + height * 3 // 5, left : left + width * 3 // 5]
            parts[f"{row} {column}"] = corner
    return [
        View(f"{photograph.name}, {name}", each)
        for name, part in parts.items()
        for each in (part, part[:, ::-1])
    ]
