"""Sizes of dynamic batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.generators.generator import Draft, Generated, Machine
    from synergai.models.directory import EngineDefinition


class BatchSizes:
    """Batches of 2, 4, 8, … queries, up to the engine's ``max_batch``."""

    def extend(self, draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:  # noqa: ARG002  # batches are the same on all machines
        """Yield the draft with the engine's largest batch."""
        yield replace(draft, max_batch=engine.max_batch)
