"""Stages of an engine: engines in the model directory that each compute a part of it."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from profiler.cutting.cuts import Cut, select_cuts
from profiler.cutting.process import StageFile, find_cuts, write_stages
from synergai.errors import InvalidInput
from synergai.models.definition import read_other_keys
from synergai.models.directory import ModelDirectory
from synergai.models.formats.inspect import describe
from synergai.models.installation import link_file, stage_engine, write_definition
from synergai.versions import FIRST_VERSION, is_stage, split_version, stage_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from profiler.cutting.heads import StageHead
    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition
    from synergai.models.installation import Check
    from synergai.versions import EngineName

_FILE: Final = "model.onnx"
_OF_INPUTS: Final = ("preprocess", "warmup")
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
    half: bool = False,
    replace: bool = False,
) -> list[EngineDefinition]:
    """Make the stages of an engine between cuts, and return them; all of them, or none.

    Args:
        models: the model directory that the stages become part of.
        tensors: where to cut, in the order of the data flow; at least one.
        check: called with the directory, the name and the model of each stage; none is installed
            if it raises an error.
        heads: those of early exits, by the tensor at which their stage ends.
        half: let the tensors between the stages be 16-bit floats.
        replace: replace existing stages.
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
        halved = places[1:-1] if half else ()
        write_stages(engine.definition.file, engine.digest, files, halved)
        for (stage, folder), file in zip(staged.items(), files, strict=True):
            description = describe(folder / _FILE)
            _write(engine, folder, file, description.digest)
            check(folder.parents[1 if own else 0], stage, description)
    return [ModelDirectory(models).get(stage) for stage in staged]


def _write(engine: CutEngine, folder: Path, file: StageFile, sha256: str) -> None:
    """Give a stage the settings and inputs of its engine that are about this part."""
    definition = engine.definition
    others = read_other_keys(definition.folder) if definition.folder else {}
    left_out = {"name", "version", "backend", "routes", *_OF_INPUTS, *_OF_OUTPUTS}
    if not file.first:
        left_out.difference_update(_OF_INPUTS)
        for given in (definition.samples, *(each.file for each in definition.warmup.values())):
            if given is not None:
                link_file(given, folder / given.name)
    if not file.last or file.head:
        left_out.difference_update(_OF_OUTPUTS)
    kept = {key: value for key, value in others.items() if key not in left_out}
    stage = {"file": _FILE, "sha256": sha256, "stage_of": engine.digest}
    exits = {"exit": structs.asdict(file.head.exit)} if file.head else {}
    write_definition(folder, kept | stage | {"stage_end": len(engine.cuts) + 1} | exits)
