"""What to measure, in order: known before the first minute is spent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from synergai.domain import Configuration, EngineName, Session
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.directory import ModelDirectory
from worker_agent.cpu_affinity import check_thread_counts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from worker_agent.power.controller import PowerMode


def sessions(
    models: Path,
    engines: Sequence[str],
    threads: Sequence[int],
    modes: Sequence[PowerMode],
    cores: Sequence[int] = (),
) -> list[Session]:
    """Every engine in every configuration, one power mode after the other.

    Args:
        models: the model directory.
        engines: names of those to measure; none means all usable ones.
        threads: 0 stands for one per core.
        modes: empty on a machine without power modes.
        cores: those that engines are kept to; all if empty.

    Raises:
        NotFound: an engine, or any at all, is not there.
        EngineUnusable: an engine that is named cannot be used.
        InvalidInput: engines are kept to fewer cores than the threads asked for, or all modes
            have fewer.
    """
    names = _engines(models, engines)
    return [
        Session(name, configuration)
        for configuration in configurations(threads, modes, cores)
        for name in names
    ]


def configurations(
    threads: Sequence[int], modes: Sequence[PowerMode], cores: Sequence[int] = ()
) -> list[Configuration]:
    """All that are wanted, each once; a mode has no more threads than cores.

    Raises:
        InvalidInput: nothing is left, or engines are kept to fewer cores than that.
    """
    check_thread_counts(threads, cores)
    if not modes:
        all_cores = len(cores) or len(os.sched_getaffinity(0))
        return list(dict.fromkeys(Configuration(count or all_cores) for count in threads))
    found = dict.fromkeys(
        Configuration(count or min(mode.cores, len(cores) or mode.cores), mode.name)
        for mode in modes
        for count in threads
        if count <= mode.cores
    )
    if not found:
        most = max(mode.cores for mode in modes)
        raise InvalidInput(
            f"no power mode has cores for {min(threads)} threads; the most is {most}"
        )
    return list(found)


def _engines(models: Path, wanted: Sequence[str]) -> list[EngineName]:
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
            f"{models} has no usable engine; 'synergai engines list' says why, and "
            "'synergai engines build' makes some"
        )
    return [EngineName(definition.name) for definition in chosen]
