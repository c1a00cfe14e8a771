"""Variants of engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:
    from profiler.generators.generator import Draft, Generated, Machine
    from synergai.models.directory import EngineDefinition


class VariantGenerator:
    """Each variant of the engine that the machine has; the engine itself if it has none."""

    def extend(self, draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:  # noqa: ARG002  # the model directory is the machine's
        """Yield the draft with each variant."""
        for variant in engine.variants:
            configuration = structs.replace(draft.configuration, variant=variant.name)
            yield replace(draft, configuration=configuration)
        if not engine.variants:
            yield draft
