"""Stages of an engine: engines in the model directory that each compute a part of it."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs, to_builtins

from profiler.cutting.cuts import Cut, select_cuts
from profiler.cutting.heads import StageHead, calibrate, check_labels, train_head
from profiler.cutting.process import StageFile, feature_name, find_cuts, write_stages
from profiler.installation import (
    link_file,
    read_other_keys,
    stage_engine,
    staging_folder,
    write_definition,
)
from profiler.model_description import describe
from synergai.domain import Exit
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.processing import CLASSES, CLASSES_WITH_BACKGROUND
from synergai.names import FIRST_VERSION, is_stage, split_version, stage_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from profiler.cutting.heads import Floats
    from profiler.installation import Check
    from profiler.model_description import ModelDescription
    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition
    from synergai.names import EngineName

    Outputs: TypeAlias = Mapping[str, NDArray[np.float32]]
    RunSamples: TypeAlias = Callable[[Path, str], tuple[Outputs, NDArray[np.int64] | None]]
    """Runs an engine of a model directory over all of its samples, and returns each output,
    [samples, …], and the labels."""


_FILE: Final = "model.onnx"
_OF_INPUTS: Final = ("preprocess",)
_OF_OUTPUTS: Final = ("postprocess",)


class CutEngine(NamedTuple):
    """An engine with its cuts.

    Attributes:
        digest: SHA-256 of its model.
    """

    definition: EngineDefinition
    digest: str
    cuts: tuple[Cut, ...]
    outputs: tuple[TensorSpec, ...]


def cut_engine(models: Path, name: str) -> CutEngine:
    """Return all cuts of an engine of a model directory; of its first variant, if it has any."""
    definition = ModelDirectory(models).get(name)
    if is_stage(definition.name):
        raise InvalidInput(f"{name!r} is a stage; cut the engine that it is a part of")
    model = definition.of_variant("")
    digest = model.verified_digest()
    try:
        found = find_cuts(model.file)
    except InvalidInput as error:
        raise InvalidInput(f"engine {name!r}: {error}") from None
    return CutEngine(model, digest, found.cuts, found.outputs)


def split_engine(
    engine: CutEngine,
    models: Path,
    tensors: Sequence[str],
    check: Check,
    *,
    heads: Mapping[str, StageHead] | None = None,
    replace: bool = False,
    declare: bool = False,
) -> list[EngineDefinition]:
    """Make the stages of an engine between cuts, and return them; all of them, or none.

    Args:
        models: the model directory that the stages become part of.
        tensors: where to cut, in the order of the data flow; at least one.
        check: called with the directory, the name and the model of each stage; none is installed
            if it raises an error.
        heads: those of early exits, by the tensor at which their stage ends.
        replace: replace existing stages.
        declare: let the stages declare their tensors, so that agents do not load them to find out.
    """
    if not tensors:
        raise InvalidInput("name at least one tensor to cut the engine at")
    chosen = select_cuts(engine.definition.name, engine.cuts, tensors)
    end = len(engine.cuts) + 1
    places = [0, *(cut.position for cut in chosen), end]
    at_end = {cut.position: (heads or {}).get(cut.tensor) for cut in chosen}
    version = split_version(engine.definition.name)[1]
    own = "" if version == FIRST_VERSION else version
    staged: dict[EngineName, Path] = {}
    files = []
    with ExitStack() as staging:
        for first, last in pairwise(places):
            stage = stage_name(engine.definition.name, first, last)
            staged[stage] = staging.enter_context(
                stage_engine(models, split_version(stage)[0], version=own, replace=replace)
            )
            path = str(staged[stage] / _FILE)
            files.append(StageFile(first, last % end, path, at_end.get(last)))
        write_stages(engine.definition.file, engine.digest, files)
        for (stage, folder), file in zip(staged.items(), files, strict=True):
            description = describe(folder / _FILE)
            _write(engine, folder, file, description, declare=declare)
            check(folder.parents[1 if own else 0], stage, description)
    return [ModelDirectory(models).get(stage) for stage in staged]


def _write(
    engine: CutEngine,
    folder: Path,
    file: StageFile,
    description: ModelDescription,
    *,
    declare: bool,
) -> None:
    """Give a stage the settings and inputs of its engine that are about this part."""
    definition = engine.definition
    others = read_other_keys(definition.folder) if definition.folder else {}
    left_out = {"backend", "routes", *_OF_INPUTS, *_OF_OUTPUTS}
    if not file.first:
        left_out.difference_update(_OF_INPUTS)
        if definition.samples is not None:
            link_file(definition.samples, folder / definition.samples.name)
    if not file.last or file.head:
        left_out.difference_update(_OF_OUTPUTS)
    kept = {key: value for key, value in others.items() if key not in left_out}
    stage = {"file": _FILE, "sha256": description.digest, "stage_of": engine.digest}
    if declare and not file.head:
        contents = description.contents
        ends = {"inputs": contents.inputs, "outputs": contents.outputs}
        stage |= {"tensors": to_builtins(ends)}
    exits = {"exit": structs.asdict(file.head.exit)} if file.head else {}
    write_definition(folder, kept | stage | {"stage_end": len(engine.cuts) + 1} | exits)


# The engine runs once over its labelled samples, with the pooled tensors of the cuts as additional
# outputs. Every other sample trains the heads, the rest calibrates the thresholds. A head becomes
# part of the stage that ends at its cut, so that nothing but the stage is needed to serve it.

LEAST_SAMPLES: Final = 100


class MadeExit(NamedTuple):
    """An exit, and what it did with the samples that calibrated it.

    Attributes:
        alone: share of right answers of its head to all of them.
        reach: share that got there.
    """

    cut: Cut
    exit: Exit
    alone: float
    reach: float


def make_exits(
    engine: CutEngine,
    models: Path,
    tensors: Sequence[str],
    run_samples: RunSamples,
    check: Check,
    *,
    loss: float,
    replace: bool = False,
) -> tuple[list[EngineDefinition], list[MadeExit]]:
    """Make the stages of an engine between cuts, with an early exit at each cut.

    Args:
        tensors: where to cut, in the order of the data flow.
        loss: by how much the share of right answers to the samples that leave at an exit may be
            lower than the whole engine's.
        check: as of `split_engine`, like `replace`.
    """
    definition = engine.definition
    cuts = select_cuts(engine.definition.name, engine.cuts, tensors)
    output = _answer_of(engine)
    for cut in cuts:
        if cut.datatype != "FP32" or len(cut.shape) not in (2, 4):
            raise InvalidInput(
                f"{cut.tensor!r} is {cut.datatype} {list(cut.shape)}; a head needs 32-bit floats, "
                "[rows, features] or [rows, channels, height, width]"
            )
    if definition.samples is None:
        raise InvalidInput(f"engine {definition.name!r} has no samples.npz to train heads on")
    name = split_version(definition.name)[0]
    with staging_folder(models, name) as folder:
        (staged := folder / name).mkdir()
        positions = tuple(cut.position for cut in cuts)
        file = StageFile(0, 0, str(staged / "model.onnx"), features=positions)
        write_stages(definition.file, engine.digest, [file])
        link_file(definition.samples, staged / definition.samples.name)
        outputs, labels = run_samples(folder, name)
    if labels is None or len(labels) < LEAST_SAMPLES:
        raise InvalidInput(
            f"the samples of engine {definition.name!r} need labels, and at least "
            f"{LEAST_SAMPLES} of them"
        )
    classes = output.shape[-1]
    offset = int(definition.postprocess == CLASSES and classes == CLASSES_WITH_BACKGROUND)
    labels = labels + offset
    check_labels(labels.tolist(), classes)
    features = [outputs[feature_name(cut.position)].astype(np.float64) for cut in cuts]
    whole_right = outputs[output.name].argmax(axis=1) == labels
    found, heads = _train(cuts, features, labels, whole_right, output, loss)
    stages = split_engine(engine, models, tensors, check, heads=heads, replace=replace)
    return stages, found


def _answer_of(engine: CutEngine) -> TensorSpec:
    """Return the output of an engine if it is a classifier."""
    [output, *others] = engine.outputs
    if others or output.datatype != "FP32" or len(output.shape) != 2 or output.shape[1] < 2:
        raise InvalidInput(
            f"engine {engine.definition.name!r} is not a classifier with a single output of "
            "32-bit floats, [rows, classes]: it can have no early exits"
        )
    return output


def _train(
    cuts: Sequence[Cut],
    features: Sequence[Floats],
    labels: NDArray[np.int64],
    whole_right: NDArray[np.bool_],
    output: TensorSpec,
    loss: float,
) -> tuple[list[MadeExit], dict[str, StageHead]]:
    """Train a head for each cut on every other sample, and calibrate them on the rest, in order."""
    whole_right, calibrating = whole_right[1::2], labels[1::2]
    left = np.zeros(len(calibrating), np.bool_)
    right = whole_right.copy()
    found: list[MadeExit] = []
    heads: dict[str, StageHead] = {}
    for cut, of_cut in zip(cuts, features, strict=True):
        head = train_head(of_cut[::2], labels[::2], output.shape[1])
        probabilities = head.probabilities(of_cut[1::2])
        here = probabilities.argmax(axis=1) == calibrating
        likeliest, stayed = probabilities.max(axis=1), ~left
        calibration = calibrate(likeliest[stayed], here[stayed], whole_right[stayed], loss)
        if calibration is None:
            raise InvalidInput(
                f"with no threshold, the exit at {cut.tensor!r} surely loses less than {loss:.2%} "
                "of the right answers: cut later, provide more samples, or allow a larger --loss"
            )
        leaving = np.flatnonzero(stayed)[calibration.leaves]
        right[leaving] = here[leaving]
        exit_ = Exit(
            output=output.name,
            threshold=calibration.threshold,
            rate=float(calibration.leaves.mean()),
            accuracy=float(right.mean()),
            whole_accuracy=float(whole_right.mean()),
        )
        found.append(MadeExit(cut, exit_, float(here.mean()), float(stayed.mean())))
        heads[cut.tensor] = StageHead.of(head, exit_)
        left[leaving] = True
    return found, heads
