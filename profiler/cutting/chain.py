"""The chain of an engine: its cuts as planners of routes see them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from profiler.cutting.process import ModelCuts, read_cuts
from profiler.model_description import describe
from synergai.core.routes.problem import Chain
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import size_bytes
from synergai.names import is_stage
from synergai.wire.arrays import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from profiler.cutting.cuts import Cut
    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition

MAX_CUTS: Final = 48
"""Cuts of a chain. The time of planning grows with their square."""


def planned_cuts(cuts: Sequence[Cut]) -> list[Cut]:
    """Return the cuts to plan with: the seams, or all cuts if there are none.

    Of more than `MAX_CUTS`, each equal share of the work keeps the one with the smallest tensor.
    """
    chosen = [cut for cut in cuts if cut.seam] or list(cuts)
    if len(chosen) <= MAX_CUTS:
        return chosen
    best: dict[int, Cut] = {}
    for cut in chosen:
        share = min(int(cut.work * MAX_CUTS), MAX_CUTS - 1)
        if share not in best or cut.size_bytes < best[share].size_bytes:
            best[share] = cut
    return list(best.values())


def read_model(model: EngineDefinition) -> ModelCuts:
    """Return what the file of an engine says about its cuts; it has none if it runs whole only."""
    if is_stage(model.name):
        raise InvalidInput(f"{model.name!r} is a stage; plan the engine that it is a part of")
    if model.file.suffix == ".onnx":
        found = read_cuts(model.file)
        if not found.outputs:
            raise InvalidInput(f"engine {model.name!r}: {model.file.name}: {found.refusal}")
        return found
    contents = describe(model.file).contents
    return ModelCuts(contents.inputs, contents.outputs, refusal="only ONNX models can be cut")


def make_chain(model: EngineDefinition, found: ModelCuts, cuts: Sequence[Cut]) -> Chain:
    """Return an engine as a chain with some of its cuts; without any, it can only run whole.

    Tensors of an unknown datatype have no size.
    """
    # A weight that is needed on both sides of every cut would be counted twice.
    total = min(
        (cut.weights_before + cut.weights_after for cut in cuts), default=size_bytes(model.file)
    )
    return Chain(
        engine=model.name,
        sizes=(
            _size_bytes(found.inputs),
            *(cut.size_bytes for cut in cuts),
            _size_bytes(found.outputs),
        ),
        weights_before=(0, *(cut.weights_before for cut in cuts), total),
        weights_after=(total, *(cut.weights_after for cut in cuts), 0),
    )


def _size_bytes(tensors: Iterable[TensorSpec]) -> int:
    """Return the size of tensors in one query, with dynamic dimensions of 1."""
    return sum(
        math.prod(map(abs, tensor.shape)) * DTYPES[tensor.datatype].itemsize
        for tensor in tensors
        if tensor.datatype in DTYPES
    )
