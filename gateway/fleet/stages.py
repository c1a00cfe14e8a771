"""The stages that workers have of engines, and the chains that they make up."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from synergai.errors import EngineUnusable
from synergai.names import engine_of_stage, stage_positions
from synergai.wire.validation import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from synergai.domain import Engine, EngineName, TensorSpec

MAX_ALTERNATIVES: Final = 8
"""Chains of stages among which the one for a request is chosen."""


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


class StageChains:
    """The stages that workers can run of each engine, and the chains of those in service.

    Args:
        in_service: the engines in service, stages and whole ones, as they are at any time.

    Attributes:
        any: whether a worker has had a stage of any engine.
        retired: stages in which queries do not begin any more.
        preferred: engines that run in stages although workers have them whole, as that pays.
        awaited: engines whose stages are being planned, made or loaded.
        asked: requests in stages that were accepted for each engine.
        degraded: whether an engine lacks workers of its stages, or waits for better ones.
    """

    def __init__(self, in_service: Mapping[EngineName, Engine]) -> None:
        self.any = False
        self.retired: frozenset[EngineName] = frozenset()
        self.preferred: Set[EngineName] = frozenset()
        self.awaited: Set[EngineName] = frozenset()
        self.asked: Counter[EngineName] = Counter()
        self.degraded = False
        self._in_service = in_service
        self._stages: defaultdict[EngineName, set[EngineName]] = defaultdict(set)
        # By engine that was asked for, until one of its stages changes.
        self._fewest: dict[EngineName, tuple[Engine, ...]] = {}
        self._alternatives: dict[EngineName, list[tuple[Engine, ...]]] = {}
        self._early: dict[EngineName, tuple[Engine, ...]] = {}

    def __contains__(self, engine: object) -> bool:
        """Whether a worker has had a stage of an engine."""
        return engine in self._stages

    def add(self, stage: EngineName) -> None:
        self._stages[engine_of_stage(stage)].add(stage)
        self.any = True

    def discard(self, stage: EngineName) -> None:
        """Remove a stage that no worker can run, if it is one."""
        self._stages.get(engine_of_stage(stage), set()).discard(stage)

    def changed(self, name: EngineName) -> None:
        """Forget the chains of an engine which, or a stage of which, has changed."""
        engine = engine_of_stage(name)
        self._fewest.pop(engine, None)
        self._alternatives.pop(engine, None)
        self._early.pop(engine, None)

    def names(self, engine: EngineName) -> list[EngineName]:
        """Return the stages of an engine that workers can run, sorted."""
        return sorted(self._stages.get(engine, ()))

    def fewest(self, engine: EngineName) -> tuple[Engine, ...]:
        """Return the fewest stages in service that make up an engine; empty if some lack."""
        if engine not in self._stages:
            return ()
        if engine not in self._fewest:
            self._fewest[engine] = complete_chain(self._serving_stages(engine))
        return self._fewest[engine]

    def early(self, engine: EngineName) -> tuple[Engine, ...]:
        """Return the first stages of an engine as far as each of them has an early exit."""
        if engine not in self._stages:
            return ()
        if engine not in self._early:
            self._early[engine] = early_stages(self._serving_stages(engine))
        return self._early[engine]

    def alternatives(self, engine: EngineName) -> Sequence[tuple[Engine, ...]]:
        """Return the chains of stages that make up an engine, those with the fewest stages first.

        There are at most `MAX_ALTERNATIVES`; none if some stages are missing.
        """
        found = self._alternatives.get(engine)
        if found is None:
            # Imported on demand: most gateways have no stages.
            from synergai.core.routes.ranking import fewest_stages

            stages = {
                positions: each
                for positions, each in self.candidates(engine).items()
                if each.stage_of
            }
            end = max((each.stage_end for each in stages.values()), default=0)
            chains = fewest_stages(stages, end)[:MAX_ALTERNATIVES] if end else ()
            found = [tuple(stages[positions] for positions in chain) for chain in chains]
            self._alternatives[engine] = found
        return found

    def candidates(self, engine: EngineName) -> dict[tuple[int, int], Engine]:
        """Return all stages of the model of an engine, by the cuts at their ends.

        The whole engine is one of them, if a worker has it. There are none if some are missing,
        unless the whole engine can follow first ones with early exits.
        """
        whole = self._in_service.get(engine)
        chain = self.fewest(engine) or (self.early(engine) if whole is not None else ())
        if not chain:
            return {}
        model, end = chain[0].stage_of, chain[0].stage_end
        found = {
            stage_positions(stage.name): stage
            for stage in self._serving_stages(engine)
            if (stage.stage_of, stage.stage_end) == (model, end)
        }
        reached = {0}  # nothing leads to stages that begin elsewhere
        for first, last in sorted(found):
            if first in reached:
                reached.add(last)
        found = {each: found[each] for each in found if each[0] in reached}
        if whole is not None:
            if whole.digest != model:
                return {}
            found[0, end] = whole
        return found

    def _serving_stages(self, engine: EngineName) -> list[Engine]:
        names = (each for each in self.names(engine) if each not in self.retired)
        serving = map(self._in_service.get, names)
        return [each for each in serving if each is not None]


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
