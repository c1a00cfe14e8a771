"""The zoo's architectures, their input images, and their seeded weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from profiler.zoo.builders.calibration import seeded_weights
from profiler.zoo.builders.mobilenet import MobileNet
from profiler.zoo.builders.resnet50 import ResNet50
from profiler.zoo.builders.ssd import SsdMobileNet, from_pixels
from profiler.zoo.photographs import augmented_views, load_photographs, random_crops
from synergai.models.preprocess import FAMILIES, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.zoo.builders.layer_builder import Array, Weights
    from profiler.zoo.recipes import ProgressCallback
    from synergai.models.images import Pixels

Classifier: TypeAlias = MobileNet | ResNet50
Architecture: TypeAlias = Classifier | SsdMobileNet

ARCHITECTURES: Final[dict[str, Callable[..., Architecture]]] = {
    each.family: each for each in (MobileNet, ResNet50, SsdMobileNet)
}
"""By the name of their family, see `synergai.models.preprocess`."""
RANDOM_CROPS: Final = 10
"""Per photograph, in addition to its views."""


def calibrated_weights(architecture: Architecture, on_progress: ProgressCallback) -> Weights:
    """Return seeded weights, calibrated on views and random crops of the photographs."""
    seen = [
        (*augmented_views(photograph), *random_crops(photograph, RANDOM_CROPS))
        for photograph in load_photographs()
    ]
    images = [network_input(architecture, pixels) for parts in seen for pixels in parts]
    labels = [index for index, parts in enumerate(seen) for _ in parts]
    return seeded_weights(architecture, np.concatenate(images), np.array(labels), on_progress)


def network_input(architecture: Architecture, pixels: Pixels) -> Array:
    """Return the first layer's input for an image: float32 [1, 3, size, size]."""
    family = replace(FAMILIES[architecture.family], size=architecture.size)
    prepared = prepare(family, pixels).transpose(2, 0, 1)[np.newaxis].astype(np.float32)
    return from_pixels(prepared) if isinstance(architecture, SsdMobileNet) else prepared
