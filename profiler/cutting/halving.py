"""What 16-bit floats between the stages of an engine change in its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from profiler.cutting.cuts import select_cuts
from profiler.cutting.process import StageFile, write_stages
from profiler.installation import link_file, staging_folder
from synergai.names import split_version

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from profiler.cutting.exits import Outputs, RunSamples
    from profiler.cutting.stages import CutEngine


class HalvingLoss(NamedTuple):
    """Differences of the answers to the samples of an engine.

    Attributes:
        largest: largest difference of a value.
        changed: samples in whose first output another value is the largest.
    """

    largest: float
    changed: int
    samples: int


def measure_halving(
    engine: CutEngine, models: Path, tensors: Sequence[str], run_samples: RunSamples
) -> HalvingLoss | None:
    """Compare an engine with itself with halved tensors at some cuts; None without samples."""
    if engine.definition.samples is None:
        return None
    positions = [cut.position for cut in select_cuts(engine.definition.name, engine.cuts, tensors)]
    whole, halved = (_run(engine, models, each, run_samples) for each in ((), positions))
    first = engine.outputs[0].name
    likeliest = [
        each[first].reshape(len(each[first]), -1).argmax(axis=1) for each in (whole, halved)
    ]
    return HalvingLoss(
        max(float(np.abs(halved[name] - whole[name]).max()) for name in whole),
        int((likeliest[0] != likeliest[1]).sum()),
        len(likeliest[0]),
    )


def _run(
    engine: CutEngine, models: Path, halved: Sequence[int], run_samples: RunSamples
) -> Outputs:
    definition = engine.definition
    name = split_version(definition.name)[0]
    with staging_folder(models, name) as folder:
        (staged := folder / name).mkdir()
        file = StageFile(0, 0, str(staged / "model.onnx"))
        write_stages(definition.file, engine.digest, [file], halved)
        if definition.samples is not None:
            link_file(definition.samples, staged / definition.samples.name)
        return run_samples(folder, name)[0]
