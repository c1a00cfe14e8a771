"""Engines that no worker has whole, but whose stages workers have."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from synergai.errors import EngineUnusable
from synergai.versions import stage_positions
from synergai.wire.validation import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.domain import Engine, TensorSpec


class EngineInStages(EngineUnusable):
    """The engine runs in stages, for requests and submitted jobs only.

    Attributes:
        stages: the stages in the order of the data flow, from the inputs to the outputs.
    """

    def __init__(self, engine: str, stages: tuple[Engine, ...]) -> None:
        super().__init__(
            f"engine {engine!r} runs in {len(stages)} stages, in requests and in submitted jobs "
            "without variant or a min_accuracy that the stages do not reach; for others, a worker "
            "needs the whole engine"
        )
        self.stages = stages


def matching_stages(stages: Iterable[Engine]) -> list[Engine]:
    """Return stages without those that do not fit the datatype of the tensor at one of their ends.

    There are such if an engine is split again, to send other tensors between its stages. Of two
    datatypes that are both made and expected at a cut, the smaller one counts.
    """
    found = list(stages)
    made: dict[tuple[str, int], set[str]] = defaultdict(set)
    expected: dict[tuple[str, int], set[str]] = defaultdict(set)
    for stage in found:
        first, last = stage_positions(stage.name)
        expected[stage.stage_of, first].update(each.datatype for each in stage.inputs)
        made[stage.stage_of, last].update(each.datatype for each in stage.outputs)
    sent = {
        at: min(both, key=lambda datatype: (ELEMENT_BYTES.get(datatype, 1), datatype))
        for at, datatypes in made.items()
        if (both := datatypes & expected[at])
    }

    def fits(stage: Engine) -> bool:
        first, last = stage_positions(stage.name)
        takes = sent.get((stage.stage_of, first))
        gives = sent.get((stage.stage_of, last))
        return (first == 0 or takes in {each.datatype for each in stage.inputs}) and (
            gives is None or gives in {each.datatype for each in stage.outputs}
        )

    return list(filter(fits, found))


def complete_chain(stages: Iterable[Engine]) -> tuple[Engine, ...]:
    """Return the fewest stages of one model from its inputs to its outputs; empty if some lack."""
    # Imported on demand: most gateways have no stages.
    from synergai.core.routes.ranking import fewest_stages

    models: defaultdict[tuple[str, int], dict[tuple[int, int], Engine]] = defaultdict(dict)
    for stage in stages:
        models[stage.stage_of, stage.stage_end][stage_positions(stage.name)] = stage
    chains = [
        tuple(parts[positions] for positions in chain)
        for (_, end), parts in sorted(models.items())
        for chain in fewest_stages(parts, end)[:1]
    ]
    return min(chains, key=len, default=())


def early_stages(stages: Iterable[Engine]) -> tuple[Engine, ...]:
    """Return the most stages with early exits that follow each other from a model's inputs."""
    found: dict[tuple[str, int], tuple[Engine, ...]] = {}
    for stage in sorted(stages, key=lambda stage: stage_positions(stage.name)):
        model = stage.stage_of, stage.stage_end
        chain = found.get(model, ())
        end = stage_positions(chain[-1].name)[1] if chain else 0
        if stage.exit is not None and stage_positions(stage.name)[0] == end:
            found[model] = (*chain, stage)
    return max(found.values(), key=len, default=())


def tensor_bytes(tensors: Sequence[TensorSpec]) -> int:
    """Return the size of tensors in one query, with dynamic dimensions of 1; at least 1."""
    return max(
        1,
        sum(
            ELEMENT_BYTES.get(each.datatype, 1) * math.prod(max(1, size) for size in each.shape)
            for each in tensors
        ),
    )
