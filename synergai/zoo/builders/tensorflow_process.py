"""Has TensorFlow models written, by a process of its own.

TensorFlow takes seconds and half a gigabyte to import, talks on standard error, and numbers what
it makes from the start of the process: so this one stays small and quiet, and the same order gives
the same bytes each time.
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

from synergai.errors import InternalFault, NotFound
from synergai.models.quantisation import Quantisation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.zoo.builders.architectures import Architecture
    from synergai.zoo.builders.layer_builder import Array, Weights

ModelFormat: TypeAlias = Literal[
    "saved_model", "fake_quantised_saved_model", "tflite", "tflite_int8"
]

WRITER: Final = "synergai.zoo.builders.tensorflow_writer"
QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
"""The seed is for the order in which TensorFlow walks over its sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExport:
    """A model to be written.

    Attributes:
        architecture: of the network.
        weights: by name, see `synergai.zoo.builders.layer_builder`.
        form: of the model.
        target: the SavedModel's folder, or the TFLite file.
        images: float32 [images, size, size, 3] from which int8's ranges are taken; otherwise empty.
    """

    architecture: Architecture
    weights: Weights
    model_format: ModelFormat
    target: Path
    images: Sequence[Array] = ()


def check_tensorflow() -> None:
    """See whether TensorFlow is installed, without importing it.

    Raises:
        NotFound: it is not.
    """
    if find_spec("tensorflow") is None:
        raise NotFound(
            "TensorFlow, which writes this engine, is not installed here; "
            "pip install 'synergai[engines,tensorflow]'"
        )


def export_models(exports: Sequence[ModelExport]) -> list[Quantisation | None]:
    """Write all models; returns what the integers of each one's input stand for, if it has such.

    Raises:
        NotFound: TensorFlow is not installed.
        InternalFault: it failed.
    """
    check_tensorflow()
    with TemporaryDirectory(prefix="synergai-") as folder:
        tasks = [_task(export, Path(folder, str(index))) for index, export in enumerate(exports)]
        done = subprocess.run(
            [sys.executable, "-m", WRITER],
            input=json.dumps(tasks),
            capture_output=True,
            check=False,
            text=True,
            env=os.environ | QUIET,
        )
    if done.returncode != 0:
        raise InternalFault(f"TensorFlow cannot write the model: {_last_line(done.stderr)}")
    answers: list[dict[str, float] | None] = json.loads(done.stdout.splitlines()[-1])
    return [
        Quantisation(scale=answer["scale"], zero_point=int(answer["zero_point"]))
        if answer
        else None
        for answer in answers
    ]


def _task(export: ModelExport, folder: Path) -> dict[str, object]:
    """An order as JSON can hold it; its arrays go into files in `folder`, which is made."""
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
    return lines[-1] if lines else "it said nothing"
