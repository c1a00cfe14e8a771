"""The two photographs that come with scikit-learn, as images to infer on.

``china.jpg`` by danielbuechele and ``flower.jpg`` by vultilion, both CC BY 2.0.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import NotFound
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAMES: Final = ("china", "flower")


@dataclass(frozen=True, slots=True)
class Photograph:
    """A photograph, encoded as a camera would send it."""

    name: str
    jpeg: bytes

    def pixels(self) -> NDArray[np.uint8]:
        """Return the decoded image: uint8 [height, width, 3], RGB."""
        from synergai.models.images import decode

        return decode(self.jpeg)


def load_photographs() -> list[Photograph]:
    """Return the photographs, each 640 x 427 pixels."""
    # Located without importing scikit-learn, which takes a second.
    package: Any = find_spec("sklearn")
    if package is None or package.origin is None:
        raise NotFound(f"the photographs are part of scikit-learn; {pip_install('engines')}")
    folder = Path(package.origin).parent / "datasets" / "images"
    return [Photograph(name, (folder / f"{name}.jpg").read_bytes()) for name in NAMES]


def augmented_views(photograph: Photograph) -> list[NDArray[np.uint8]]:
    """Return ten views: the whole image and four overlapping corners, as is and mirrored.

    Each is uint8 [height, width, 3], RGB.
    """
    pixels = photograph.pixels()
    height, width, _ = pixels.shape
    parts = [pixels]
    parts += [
        pixels[top : top + height * 3 // 5, left : left + width * 3 // 5]
        for top in (0, height * 2 // 5)
        for left in (0, width * 2 // 5)
    ]
    return [view for part in parts for view in (part, part[:, ::-1])]


def all_views() -> list[NDArray[np.uint8]]:
    """Return the `augmented_views` of all photographs, in their order."""
    return [view for photograph in load_photographs() for view in augmented_views(photograph)]


def random_crops(photograph: Photograph, count: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Return seeded random squares: uint8 [side, side, 3], RGB."""
    generator = random.Random(seed)
    pixels = photograph.pixels()
    height, width, _ = pixels.shape
    parts: list[NDArray[np.uint8]] = []
    for _ in range(count):
        side = generator.randint(height * 3 // 8, height)
        top, left = generator.randint(0, height - side), generator.randint(0, width - side)
        parts.append(pixels[top : top + side, left : left + side])
    return parts
