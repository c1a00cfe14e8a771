"""Builders of the zoo's image networks in every format; the samples are views of photographs."""

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

from profiler.zoo.architectures import ARCHITECTURES, calibrated_weights
from profiler.zoo.onnx_graph import MODEL_FILE, write_model
from profiler.zoo.photographs import all_views
from synergai.errors import InternalError, NotFound
from synergai.models.formats.inspect import describe
from synergai.models.processing import FAMILIES, ImageInput, Quantisation, prepare
from synergai.models.samples import write_samples
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiler.zoo.architectures import Architecture
    from profiler.zoo.layer_builder import Array, Weights
    from profiler.zoo.recipes import ProgressCallback


SAVED_MODEL: Final = "saved_model"
TFLITE_FILE: Final = "model.tflite"
CALIBRATION_SHARE: Final = 0.5
"""Share of calibration in the build time of TensorFlow models; TensorFlow reports no progress."""


def build_onnx(
    folder: Path, on_progress: ProgressCallback, *, architecture: str, opset: int
) -> None:
    """Build an architecture of `ARCHITECTURES` as an ONNX file."""
    from profiler.zoo.onnx_models import onnx_model

    network = ARCHITECTURES[architecture]()
    file = folder / MODEL_FILE
    write_model(file, onnx_model(network, calibrated_weights(network, on_progress), opset))
    _write_views(folder, file, architecture)


def build_tensorflow(
    folder: Path, on_progress: ProgressCallback, *, architecture: str, model_format: ModelFormat
) -> None:
    """Build an architecture of `ARCHITECTURES` as a SavedModel or a TFLite file."""
    # Fail before the calibration, which takes long.
    check_tensorflow()
    network = ARCHITECTURES[architecture]()
    weights = calibrated_weights(network, lambda share: on_progress(share * CALIBRATION_SHARE))
    on_progress(CALIBRATION_SHARE)
    target = folder / (TFLITE_FILE if model_format.startswith("tflite") else SAVED_MODEL)
    (quantisation,) = export_models(
        [
            ModelExport(
                architecture=network,
                weights=weights,
                model_format=model_format,
                target=target,
                images=[prepare(FAMILIES[architecture], view) for view in all_views()],
            )
        ]
    )
    _write_views(folder, target, architecture, quantisation)


def _write_views(
    folder: Path, model: Path, family: str, quantisation: Quantisation | None = None
) -> None:
    """Write the views of the photographs as the model's sample set."""
    (spec,) = describe(model).contents.inputs
    images = ImageInput(family, spec, quantisation).to_tensor(all_views())
    write_samples(folder, {spec.name: images})


# TensorFlow takes seconds and half a gigabyte to import, logs to standard error, and numbers its
# objects from the start of the process. A subprocess keeps this one small and quiet, and makes the
# exported bytes reproducible.

ModelFormat: TypeAlias = Literal[
    "saved_model", "fake_quantised_saved_model", "tflite", "tflite_int8"
]

WRITER: Final = "profiler.zoo.tensorflow_writer"
QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
"""The hash seed fixes the order in which TensorFlow iterates over sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExport:
    """A model to export.

    Attributes:
        weights: By name, see `profiler.zoo.layer_builder`.
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
