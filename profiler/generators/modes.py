"""Architecture-aware generator: power modes, with their clocks, core clusters and CPU shares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from profiler.generators.generator import Draft, Pruned

if TYPE_CHECKING:
    from profiler.generators.generator import Generated, Machine
    from synergai.models.directory import EngineDefinition
    from worker_agent.power.controller import PowerMode


class PowerModes:
    """Each power mode that can be switched to, without those that equal another one."""

    def extend(self, draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:  # noqa: ARG002  # modes are the same for all engines
        """Yield the draft in each mode."""
        if not machine.modes:
            yield draft
        seen: dict[tuple[float, ...], str] = {}
        for mode in (*machine.modes, *machine.refused):
            if mode.refused:
                yield Pruned(f"mode {mode.name}", mode.refused)
            elif (same := seen.setdefault(_properties(mode), mode.name)) != mode.name:
                yield Pruned(f"mode {mode.name}", f"has the cores, clocks and budget of {same}")
            else:
                configuration = structs.replace(draft.configuration, power_mode=mode.name)
                yield replace(draft, configuration=configuration)


def _properties(mode: PowerMode) -> tuple[float, ...]:
    # A mode about which nothing is known but its cores may differ in anything.
    known = mode.max_mhz or mode.share < 1 or mode.budget_w
    unique = 0.0 if known else float(hash(mode.name))
    return mode.cores, mode.max_mhz, mode.share, mode.budget_w, mode.memory_mhz, unique
