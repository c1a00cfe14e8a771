"""Engines with variants: a network is trained, pruned, fine-tuned and quantised.

``python -m examples.training.families fashion`` adds ``onnx_fashion`` to ``models``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime
from threadpoolctl import threadpool_limits

from examples.training.strided_cnn import INPUT, OPSET, Images, Shape, StridedCnn, Training
from profiler.installation import stage_engine, write_definition
from profiler.zoo.onnx_graph import write_model
from profiler.zoo.variants import quantise
from synergai.domain import EngineName, Origin
from synergai.models.definition import VariantKeys
from synergai.models.formats.model_files import digest
from synergai.models.samples import write_samples
from synergai.runtime.resources import retain_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


SEED: Final = 7
_CALIBRATION: Final = 256
_TEST_BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Training data of a family, and the training.

    Attributes:
        title: what the images show.
        load: returns the images for training and for testing.
        shape: the full network.
        training: of the full network.
        tuning: of a pruned network; its epochs are those with all channels but a few.
        most_epochs: epochs of fine-tuning of the smallest networks.
        shares: shares of the channels that are kept, one per pruned variant.
    """

    title: str
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
    from examples.training.fashion_mnist import fashion_mnist

    return fashion_mnist()


def _digits() -> tuple[Images, Images]:
    from examples.training.digits import load_digits
    from profiler.zoo.small_engines import BRIGHTEST

    return tuple(
        Images((part.images[:, 0] * (255 / BRIGHTEST)).astype(np.uint8), part.labels)
        for part in load_digits()
    )  # type: ignore[return-value]  # a pair of parts


FAMILIES: Final[Mapping[str, Family]] = {
    "fashion": Family(
        title="clothes in ten classes",
        load=_fashion,
        shape=Shape(size=28, channels=(24, 48, 72, 72), strides=(2, 1, 2, 2)),
        training=Training(epochs=2.25, mirrored=True),
        tuning=Training(epochs=0.35, rate=1.5e-3, mirrored=True),
        most_epochs=0.8,
        shares=(0.75, 0.5, 0.35, 0.25, 0.12),
    ),
    "digits_family": Family(
        title="handwritten digits",
        load=_digits,
        shape=Shape(size=8, channels=(16, 32, 32), strides=(1, 2, 2)),
        training=Training(epochs=12, seed=SEED),
        tuning=Training(epochs=2, rate=1.5e-3),
        most_epochs=6,
        shares=(0.5, 0.25, 0.12),
    ),
}


def engine_name(family: str) -> EngineName:
    """Return the engine of a family."""
    return EngineName(f"onnx_{family}")


def build(family: str, models: Path) -> None:
    """Add a family to a model directory, replacing an older one.

    Raises:
        NotFound: its images are not there and cannot be downloaded.
        InvalidInput: the directory is not writable.
    """
    recipe = FAMILIES[family]
    with stage_engine(models, engine_name(family), replace=True) as folder:
        variants = [variant.to_table() for variant in _build(folder, recipe)]
        title = f"{recipe.title}, pruned and quantised variants of a CNN, opset {OPSET}"
        write_definition(folder, {"title": title, "source": "trained here", "variants": variants})


def _build(folder: Path, recipe: Family) -> Sequence[VariantKeys]:
    """Train a family and write all variants with the labelled test set; return the variants."""
    images, test = recipe.load()
    retain_freed_memory()
    # A single thread sums in a fixed order, which makes the bytes reproducible.
    with threadpool_limits(1):
        full = StridedCnn.initial(recipe.shape, SEED)
        full.train(images, recipe.training)
        networks = {"p100": full}
        for share in recipe.shares:
            pruned = networks[f"p{round(share * 100)}"] = full.pruned(share, images, SEED)
            pruned.train(images, recipe.tuning_of(share))
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


if __name__ == "__main__":
    build(sys.argv[1], Path("models"))
