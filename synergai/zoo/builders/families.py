"""Builders of engines with variants: a trained network, pruned and fine-tuned, also in int8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnxruntime
from threadpoolctl import threadpool_limits

from synergai.domain import Origin
from synergai.models.formats.model_files import digest
from synergai.models.int8 import quantise
from synergai.models.samples import write_samples
from synergai.models.variants import VariantKeys
from synergai.runtime.allocator import retain_freed_memory
from synergai.zoo.builders.onnx_graph import write_model
from synergai.zoo.builders.strided_cnn import INPUT, Images, Shape, StridedCnn, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.zoo.recipes import ProgressCallback

SEED: Final = 7
_CALIBRATION: Final = 256
_TEST_BATCH: Final = 500
_PRUNING: Final = 0.1
"""Cost of computing importance and accuracy, in epochs, for the progress only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Training data of a family, and the training.

    Attributes:
        load: returns the images for training and for testing.
        shape: the full network.
        training: of the full network.
        tuning: of a pruned network; its epochs are those with all channels but a few.
        most_epochs: epochs of fine-tuning of the smallest networks.
        shares: shares of the channels that are kept, one per pruned variant.
    """

    load: Callable[[], tuple[Images, Images]]
    shape: Shape
    training: Training
    tuning: Training
    most_epochs: float
    shares: tuple[float, ...]

    def tuning_of(self, share: float) -> Training:
        """Return how to fine-tune a network with a share of its channels: longer if it is low."""
        spread = self.most_epochs - self.tuning.epochs
        return replace(self.tuning, epochs=self.tuning.epochs + spread * (1 - share))


def _fashion() -> tuple[Images, Images]:
    from synergai.zoo.builders.fashion_mnist import fashion_mnist

    return fashion_mnist()


def _digits() -> tuple[Images, Images]:
    from synergai.zoo.builders import digits

    return tuple(
        Images((part.images[:, 0] * (255 / digits.BRIGHTEST)).astype(np.uint8), part.labels)
        for part in digits.digits()
    )  # type: ignore[return-value]  # a pair of parts


FAMILIES: Final[Mapping[str, Family]] = {
    "fashion": Family(
        load=_fashion,
        shape=Shape(size=28, channels=(24, 48, 72, 72), strides=(2, 1, 2, 2)),
        training=Training(epochs=2.25, mirrored=True),
        tuning=Training(epochs=0.35, rate=1.5e-3, mirrored=True),
        most_epochs=0.8,
        shares=(0.75, 0.5, 0.35, 0.25, 0.12),
    ),
    "digits": Family(
        load=_digits,
        shape=Shape(size=8, channels=(16, 32, 32), strides=(1, 2, 2)),
        training=Training(epochs=12, seed=SEED),
        tuning=Training(epochs=2, rate=1.5e-3),
        most_epochs=6,
        shares=(0.5, 0.25, 0.12),
    ),
}


def build_family(
    folder: Path, on_progress: ProgressCallback, *, family: str
) -> Sequence[VariantKeys]:
    """Train a family and write all variants with the labelled test set; return the variants."""
    recipe = FAMILIES[family]
    images, test = recipe.load()
    total = recipe.training.epochs + sum(
        recipe.tuning_of(share).epochs + _PRUNING for share in recipe.shares
    )
    retain_freed_memory()
    # A single thread sums in a fixed order, which makes the bytes reproducible.
    with threadpool_limits(1):
        full = StridedCnn.initial(recipe.shape, SEED)
        trained = recipe.training.epochs
        full.train(images, recipe.training, lambda done: on_progress(done * trained / total))
        networks = {"p100": full}
        for pruned in prune(full, family, images, recipe.shares, lambda _: None):
            networks[pruned.name] = pruned.network
            trained += pruned.epochs + _PRUNING
            on_progress(trained / total)
    inputs = test.pixels[:, np.newaxis]
    write_samples(folder, {INPUT: inputs, "labels": test.labels})
    variants: list[VariantKeys] = []
    for name, network in networks.items():
        file = folder / f"{name}.onnx"
        write_model(file, network.to_onnx())
        small = folder / f"{name}-int8.onnx"
        quantise(file, small, [{INPUT: inputs[i : i + 1]} for i in _spread(len(inputs))])
        variants += (_variant(each, inputs, test.labels) for each in (file, small))
    return variants


@dataclass(frozen=True, slots=True)
class Pruned:
    """A pruned and fine-tuned network, and the epochs that this took."""

    name: str
    network: StridedCnn
    epochs: float


def prune(
    full: StridedCnn,
    family: str,
    images: Images,
    shares: Sequence[float],
    on_progress: ProgressCallback,
) -> Iterator[Pruned]:
    """Yield the network with each of some shares of its channels.

    Args:
        full: the trained network.
        family: what it was trained on.
        images: the images for training.
        shares: shares of the channels to keep.
        on_progress: called with the completed share of each.
    """
    for share in shares:
        network = full.pruned(share, images, SEED)
        training = FAMILIES[family].tuning_of(share)
        network.train(images, training, on_progress)
        yield Pruned(f"p{round(share * 100)}", network, training.epochs)


def prune_file(
    file: Path, shares: Sequence[float], on_progress: ProgressCallback, *, family: str
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield name and model of a family's network with each of some shares of its channels.

    Raises:
        InvalidInput: the file is not a network of the family.
    """
    full = StridedCnn.from_onnx(onnx.load(file))
    images, _ = FAMILIES[family].load()
    retain_freed_memory()
    with threadpool_limits(1):
        for pruned in prune(full, family, images, shares, on_progress):
            yield pruned.name, pruned.network.to_onnx()


def _spread(count: int) -> range:
    return range(0, count, max(1, count // _CALIBRATION))


def _variant(file: Path, inputs: NDArray[Any], labels: NDArray[np.int64]) -> VariantKeys:
    session = onnxruntime.InferenceSession(file)
    right = 0
    for start in range(0, len(labels), _TEST_BATCH):
        part = slice(start, start + _TEST_BATCH)
        [answers] = session.run(None, {INPUT: inputs[part]})
        right += int((answers.argmax(axis=1) == labels[part]).sum())
    return VariantKeys(
        name=file.stem,
        file=file.name,
        sha256=digest(file),
        accuracy=round(right / len(labels), 6),
        origin=Origin.MEASURED,
    )
