"""Builders of the zoo's image networks in every format; the samples are views of photographs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from profiler.model_description import describe
from profiler.zoo.architectures import ARCHITECTURES, calibrated_weights
from profiler.zoo.onnx_graph import MODEL_FILE, write_model
from profiler.zoo.photographs import all_views
from synergai.domain import TensorSpec
from synergai.errors import InternalError, NotFound
from synergai.models.processing import FAMILIES, ImageInput, Quantisation, prepare
from synergai.models.samples import write_samples
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from profiler.zoo.architectures import Architecture
    from profiler.zoo.layer_builder import Array, Weights
    from profiler.zoo.recipes import ProgressCallback


SAVED_MODEL: Final = "saved_model"
TFLITE_FILE: Final = "model.tflite"
TFLITE_NAMES: Final = ("input", "MobilenetV1/Predictions/Reshape_1")
"""Names of input and output in MLPerf's file."""
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
    (spec,) = describe(file).contents.inputs
    _write_views(folder, spec, architecture)


def build_tensorflow(
    folder: Path, on_progress: ProgressCallback, *, architecture: str, model_format: ModelFormat
) -> None:
    """Build an architecture of `ARCHITECTURES` as a SavedModel or a TFLite file."""
    # Fail before the calibration, which takes long.
    check_tensorflow()
    network = ARCHITECTURES[architecture]()
    weights = calibrated_weights(network, lambda share: on_progress(share * CALIBRATION_SHARE))
    on_progress(CALIBRATION_SHARE)
    is_tflite = model_format.startswith("tflite")
    target = folder / (TFLITE_FILE if is_tflite else SAVED_MODEL)
    images = [prepare(FAMILIES[architecture], view) for view in all_views()]
    quantisation = export_model(network, weights, model_format, target, images)
    if is_tflite:
        datatype = "FP32" if quantisation is None else "INT8"
        spec = TensorSpec(TFLITE_NAMES[0], datatype, (1, network.size, network.size, 3))
    else:
        (spec,) = describe(target).contents.inputs
    _write_views(folder, spec, architecture, quantisation)


def _write_views(
    folder: Path, spec: TensorSpec, family: str, quantisation: Quantisation | None = None
) -> None:
    """Write the views of the photographs as the sample set of a model with this input."""
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


def check_tensorflow() -> None:
    """Check that TensorFlow is installed, without importing it."""
    if find_spec("tensorflow") is None:
        raise NotFound(
            "this engine is written by TensorFlow, which is not installed; "
            + pip_install("engines,tensorflow")
        )


def export_model(
    architecture: Architecture,
    weights: Weights,
    model_format: ModelFormat,
    target: Path,
    images: Sequence[Array] = (),
) -> Quantisation | None:
    """Export a model; return the quantisation of its input, if it is quantised.

    Args:
        weights: By name, see `profiler.zoo.layer_builder`.
        images: float32 [images, size, size, 3] for the calibration of int8 ranges; otherwise empty.
    """
    check_tensorflow()
    with TemporaryDirectory(prefix="synergai-") as folder:
        arrays = {"weights": weights, "images": {str(i): each for i, each in enumerate(images)}}
        files = {name: f"{folder}/{name}.npz" for name in arrays}
        for name, of_name in arrays.items():
            np.savez(files[name], allow_pickle=False, **of_name)
        task = {
            "family": architecture.family,
            "dimensions": asdict(architecture),
            "format": model_format,
            "target": str(target.resolve()),
            **files,
        }
        done = subprocess.run(
            [sys.executable, "-m", WRITER],
            input=json.dumps(task),
            capture_output=True,
            check=False,
            text=True,
            env=os.environ | QUIET,
        )
    if done.returncode != 0:
        raise InternalError(f"TensorFlow cannot write the model: {_last_line(done.stderr)}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Quantisation(**found) if found else None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
