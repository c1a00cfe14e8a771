"""Export of TensorFlow models in a subprocess.

TensorFlow takes seconds and half a gigabyte to import, logs to standard error, and numbers its
objects from the start of the process. A subprocess keeps this one small and quiet, and makes the
exported bytes reproducible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from synergai.errors import InternalError, NotFound
from synergai.models.quantisation import Quantisation
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiler.zoo.builders.architectures import Architecture
    from profiler.zoo.builders.layer_builder import Array, Weights

ModelFormat: TypeAlias = Literal[
    "saved_model", "fake_quantised_saved_model", "tflite", "tflite_int8"
]

WRITER: Final = "profiler.zoo.builders.tensorflow_writer"
QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
"""The hash seed fixes the order in which TensorFlow iterates over sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExport:
    """A model to export.

    Attributes:
        weights: By name, see `profiler.zoo.builders.layer_builder`.
        images: float32 [images, size, size, 3] for the calibration of int8 ranges; otherwise empty.
    """

    architecture: Architecture
    weights: Weights
    model_format: ModelFormat
    target: Path
    images: Sequence[Array] = ()


def check_tensorflow() -> None:
    """Check that TensorFlow is installed, without importing it."""
    if find_spec("tensorflow") is None:
        raise NotFound(
            "this engine is written by TensorFlow, which is not installed; "
            + pip_install("engines,tensorflow")
        )


def export_models(exports: Sequence[ModelExport]) -> list[Quantisation | None]:
    """Export all models; return the quantisation of each one's input, if it is quantised."""
    check_tensorflow()
    with TemporaryDirectory(prefix="synergai-") as folder:
        tasks = [_to_task(export, Path(folder, str(index))) for index, export in enumerate(exports)]
        done = subprocess.run(
            [sys.executable, "-m", WRITER],
            input=json.dumps(tasks),
            capture_output=True,
            check=False,
            text=True,
            env=os.environ | QUIET,
        )
    if done.returncode != 0:
        raise InternalError(f"TensorFlow cannot write the model: {_last_line(done.stderr)}")
    quantisations: list[dict[str, float] | None] = json.loads(done.stdout.splitlines()[-1])
    return [
        Quantisation(scale=quantisation["scale"], zero_point=int(quantisation["zero_point"]))
        if quantisation
        else None
        for quantisation in quantisations
    ]


def _to_task(export: ModelExport, folder: Path) -> dict[str, object]:
    """Return an export as JSON values; create `folder` and save the arrays there."""
    folder.mkdir()
    _save(folder / "weights.npz", export.weights)
    _save(folder / "images.npz", {str(i): image for i, image in enumerate(export.images)})
    return {
        "family": export.architecture.family,
        "dimensions": asdict(export.architecture),
        "format": export.model_format,
        "weights": str(folder / "weights.npz"),
        "images": str(folder / "images.npz"),
        "target": str(export.target.resolve()),
    }


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
