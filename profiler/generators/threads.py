"""Performance-aware generator: levels of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from profiler.generators.generator import Draft, Pruned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.generators.generator import Generated, Machine
    from synergai.models.directory import EngineDefinition


class ThreadLevels:
    """1, 2, 4, … threads up to the cores of the mode, and one for each of them.

    Args:
        levels: the levels instead, separated by spaces; 0 for one per core.
    """

    def __init__(self, levels: str = "") -> None:
        self._levels: Sequence[int] = tuple(map(int, levels.split()))

    def extend(self, draft: Draft, engine: EngineDefinition, machine: Machine) -> Generated:  # noqa: ARG002  # levels are the same for all engines
        """Yield the draft with each level."""
        mode = draft.configuration.power_mode
        cores = machine.cores(mode)
        for level in self._levels or powers_of_two(cores):
            if level > cores:
                where = f" in {mode}" if mode else ""
                yield Pruned(
                    f"{level} threads{where}",
                    f"more threads than cores ({cores}) wait for each other",
                )
            else:
                configuration = structs.replace(draft.configuration, threads=level or cores)
                yield replace(draft, configuration=configuration)


def powers_of_two(cores: int) -> list[int]:
    """Return 1, 2, 4, … up to `cores`, which is the last one."""
    levels = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*levels, cores]
