"""Execution providers that run the engine's backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from profiler.generators.generator import Draft, Pruned

if TYPE_CHECKING:
    from profiler.generators.generator import Generated, Machine
    from synergai.models.directory import EngineDefinition


class ExecutionProviders:
    """The CPU, and each execution provider that the machine offers for the engine's backend."""

    def extend(self, draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:
        """Yield the draft with each provider."""
        offers = machine.offers
        if offers is None or offers.cpu:
            yield draft
        if offers is None:
            return
        # Devices of one provider are alike; the first one stands for all.
        for choice in {each.name: each for each in reversed(offers.choices)}.values():
            if engine.backend not in choice.details.backends:
                yield Pruned(
                    f"{engine.name} with {choice.name}", f"does not run {engine.backend} engines"
                )
                continue
            if not choice.uses_threads and draft.configuration.threads > 1:
                yield Pruned(
                    f"{choice.name} with several threads", "it computes without threads of the CPU"
                )
                continue
            for configuration in choice.configurations([draft.configuration]):
                yield replace(draft, configuration=configuration)
