"""scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, and a small CNN trained on them.

The CNN has two convolutions with pooling and two dense layers. ``python -m
examples.training.digits`` trains it in a few seconds, on three quarters of the images. The others
are the engine's sample set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from sklearn import datasets
from sklearn.model_selection import train_test_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHTS: Final = Path(__file__).with_suffix(".npz")
ACCURACY: Final = 0.9933
"""Share of right answers on the held-out images."""
BRIGHTEST: Final = 16.0
"""Maximum pixel value."""
_SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Digits:
    """Labelled images: float32 [count, 1, 8, 8] from 0 to 16, and int64 [count]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load_digits() -> tuple[Digits, Digits]:
    """Return the training set and the held-out quarter."""
    bunch = datasets.load_digits()
    images = bunch.images.astype(np.float32)[:, np.newaxis]
    labels = bunch.target.astype(np.int64)
    parts = train_test_split(
        images, labels, test_size=0.25, random_state=_SEED, shuffle=True, stratify=labels
    )
    return Digits(parts[0], parts[2]), Digits(parts[1], parts[3])


def load_weights() -> dict[str, NDArray[np.float32]]:
    """Return the trained weights by name."""
    with np.load(WEIGHTS) as stored:
        return dict(stored)
