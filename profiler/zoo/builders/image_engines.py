"""Builders of the zoo's image networks in every format; the samples are views of photographs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.zoo.builders.architectures import ARCHITECTURES, calibrated_weights
from profiler.zoo.builders.onnx_graph import MODEL_FILE, write_model
from profiler.zoo.photographs import all_views
from synergai.models.formats.inspect import describe
from synergai.models.preprocess import FAMILIES, ImageInput, prepare
from synergai.models.samples import write_samples

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.zoo.builders.tensorflow_process import ModelFormat
    from profiler.zoo.recipes import ProgressCallback
    from synergai.models.quantisation import Quantisation

SAVED_MODEL: Final = "saved_model"
TFLITE_FILE: Final = "model.tflite"
CALIBRATION_SHARE: Final = 0.5
"""Share of calibration in the build time of TensorFlow models; TensorFlow reports no progress."""


def build_onnx(
    folder: Path, on_progress: ProgressCallback, *, architecture: str, opset: int
) -> None:
    """Build an architecture of `ARCHITECTURES` as an ONNX file."""
    from profiler.zoo.builders.onnx_models import onnx_model

    network = ARCHITECTURES[architecture]()
    file = folder / MODEL_FILE
    write_model(file, onnx_model(network, calibrated_weights(network, on_progress), opset))
    _write_views(folder, file, architecture)


def build_tensorflow(
    folder: Path, on_progress: ProgressCallback, *, architecture: str, model_format: ModelFormat
) -> None:
    """Build an architecture of `ARCHITECTURES` as a SavedModel or a TFLite file."""
    from profiler.zoo.builders import tensorflow_process

    # Fail before the calibration, which takes long.
    tensorflow_process.check_tensorflow()
    network = ARCHITECTURES[architecture]()
    weights = calibrated_weights(network, lambda share: on_progress(share * CALIBRATION_SHARE))
    on_progress(CALIBRATION_SHARE)
    target = folder / (TFLITE_FILE if model_format.startswith("tflite") else SAVED_MODEL)
    (quantisation,) = tensorflow_process.export_models(
        [
            tensorflow_process.ModelExport(
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
