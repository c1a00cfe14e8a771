"""Interface of the generators, and their registry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from synergai.domain import Configuration
from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.models.directory import EngineDefinition
    from worker_agent.power.controller import PowerMode
    from worker_agent.providers.choice import Offers


@dataclass(frozen=True)
class Machine:
    """The configurations that a machine offers.

    Attributes:
        modes: its power modes; empty if it has none.
        offers: its execution providers; None for the CPU alone.
        pinned: cores that engines are restricted to; empty for all.
        top_mhz: highest clock of its cores; 0 if not known.
        refused: modes that cannot be switched to, with the reason.
    """

    modes: Sequence[PowerMode] = ()
    offers: Offers | None = None
    pinned: Sequence[int] = ()
    top_mhz: float = 0.0
    refused: Sequence[PowerMode] = ()

    def cores(self, mode: str) -> int:
        """Return the number of cores that an engine can use in a mode."""
        found = self.mode(mode)
        if found is None:
            return len(self.pinned) or len(os.sched_getaffinity(0))
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
        configuration: its configuration.
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


class Generator(Protocol):
    """One dimension of the configurations."""

    def extend(self, draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:
        """Yield the drafts that take the place of `draft`, and what was left out."""


GENERATORS: Final = Registry[Generator](
    "synergai.generators",
    {
        "batches": "profiler.generators.batches:BatchSizes",
        "modes": "profiler.generators.modes:PowerModes",
        "providers": "profiler.generators.providers:ExecutionProviders",
        "threads": "profiler.generators.threads:ThreadLevels",
        "variants": "profiler.generators.variants:VariantGenerator",
    },
)
"""Third parties add theirs under the entry point group ``synergai.generators``."""


def generate(
    generators: Sequence[Generator], engine: EngineDefinition, machine: Machine
) -> tuple[list[Draft], list[Pruned]]:
    """Return the distinct drafts of an engine, and what was left out."""
    drafts = [Draft(Configuration())]
    pruned: dict[Pruned, None] = {}
    for generator in generators:
        extended: dict[Configuration, Draft] = {}
        for draft in drafts:
            for each in generator.extend(draft, engine, machine):
                if isinstance(each, Pruned):
                    pruned[each] = None
                else:
                    extended.setdefault(each.configuration, each)
        drafts = list(extended.values())
    return drafts, list(pruned)
