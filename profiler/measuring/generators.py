"""Configurations to measure.

The thesis has two (chapter 4): a performance-aware one for threads, and an architecture-aware one
for power modes. A generator extends a draft of a configuration by one dimension, and leaves out
what is known to be bad, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from synergai.domain import Configuration
from synergai.errors import EngineUnusable, NotFound
from synergai.models.directory import ModelDirectory
from synergai.runtime.resources import usable_cores
from worker_agent.cpu_affinity import powers_of_two
from worker_agent.providers import CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from synergai.models.directory import EngineDefinition
    from worker_agent.power.controller import PowerMode
    from worker_agent.providers import ProviderChoice


@dataclass(frozen=True)
class Machine:
    """The configurations that a machine offers.

    Attributes:
        modes: its power modes; empty if it has none.
        providers: its execution providers; the CPU alone if empty.
        pinned: cores that engines are restricted to; empty for all.
        top_mhz: highest clock of its cores; 0 if not known.
        refused: modes that cannot be switched to, with the reason.
    """

    modes: Sequence[PowerMode] = ()
    providers: Sequence[ProviderChoice] = ()
    pinned: Sequence[int] = ()
    top_mhz: float = 0.0
    refused: Sequence[PowerMode] = ()

    def cores(self, mode: str) -> int:
        """Return the number of cores that an engine can use in a mode."""
        found = self.mode(mode)
        if found is None:
            return usable_cores(self.pinned)
        return min(found.cores, len(self.pinned) or found.cores)

    def mode(self, name: str) -> PowerMode | None:
        """Return a mode; None on a machine without any."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, PowerMode]:
        return {mode.name: mode for mode in self.modes}


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration that an engine may be measured in.

    Attributes:
        max_batch: largest batch to measure; 1 for none.
    """

    configuration: Configuration
    max_batch: int = 1


@dataclass(frozen=True, slots=True)
class Pruned:
    """Configurations that are not measured.

    Attributes:
        what: the configurations, for people.
        reason: why they are known to be bad.
    """

    what: str
    reason: str


Generated: TypeAlias = "Iterable[Draft | Pruned]"


def thread_levels(draft: Draft, machine: Machine, levels: Sequence[int]) -> Generated:
    """Yield the draft with 1, 2, 4, … threads up to the cores of the mode, and one for each core.

    Args:
        levels: the levels instead; 0 for one thread per core.
    """
    mode = draft.configuration.power_mode
    cores = machine.cores(mode)
    for level in levels or powers_of_two(cores):
        if level > cores:
            where = f" in {mode}" if mode else ""
            yield Pruned(
                f"{level} threads{where}",
                f"more threads than cores ({cores}) wait for each other",
            )
        else:
            configuration = structs.replace(draft.configuration, threads=level or cores)
            yield replace(draft, configuration=configuration)


def power_modes(draft: Draft, machine: Machine) -> Generated:
    """Yield the draft in each mode that can be switched to; of equal modes, in the first."""
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


def execution_providers(draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:
    """Yield the draft with the CPU, and with each provider that runs the engine's backend."""
    if not machine.providers:
        yield draft
    for choice in machine.providers:
        backend = engine.of_variant(draft.configuration.variant).backend
        if choice.name != CPU and backend not in choice.details.backends:
            yield Pruned(f"{engine.name} with {choice.name}", f"does not run {backend} engines")
            continue
        for configuration in choice.configurations([draft.configuration]):
            yield replace(draft, configuration=configuration)


def variants(draft: Draft, engine: EngineDefinition) -> Generated:
    """Yield the draft with each variant of the engine that the machine has, if it has any."""
    for variant in engine.variants:
        configuration = structs.replace(draft.configuration, variant=variant.name)
        yield replace(draft, configuration=configuration)
    if not engine.variants:
        yield draft


def generate(
    engine: EngineDefinition, machine: Machine, levels: Sequence[int] = ()
) -> tuple[list[Draft], list[Pruned]]:
    """Return the distinct drafts of an engine, and what was left out.

    Args:
        levels: threads instead of powers of two.
    """
    dimensions: tuple[Callable[[Draft], Generated], ...] = (
        lambda draft: power_modes(draft, machine),
        lambda draft: thread_levels(draft, machine, levels),
        lambda draft: variants(draft, engine),
        lambda draft: execution_providers(draft, engine, machine),
    )
    drafts = [Draft(Configuration(), engine.max_batch)]
    pruned: dict[Pruned, None] = {}
    for extend in dimensions:
        extended: dict[Configuration, Draft] = {}
        for draft in drafts:
            for each in extend(draft):
                if isinstance(each, Pruned):
                    pruned[each] = None
                else:
                    extended.setdefault(each.configuration, each)
        drafts = list(extended.values())
    return drafts, list(pruned)


def find_engines(models: Path, wanted: Sequence[str]) -> list[EngineDefinition]:
    directory = ModelDirectory(models)
    if wanted:
        chosen = [directory.get(name) for name in dict.fromkeys(wanted)]
        for definition in chosen:
            if definition.fault:
                raise EngineUnusable(f"engine {definition.name!r}: {definition.fault}")
    else:
        chosen = [definition for definition in directory.engines() if not definition.fault]
    if not chosen:
        raise NotFound(
            f"{models} has no usable engine; see 'synergai engines list', or create engines with "
            "'synergai engines build'"
        )
    return chosen
