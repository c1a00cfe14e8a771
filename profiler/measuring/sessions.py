"""The sessions to measure, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from synergai.domain import Configuration, EngineName, Session
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.directory import ModelDirectory
from synergai.runtime.cgroups import usable_cores
from worker_agent.cpu_affinity import check_thread_counts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.models.directory import EngineDefinition
    from worker_agent.power.controller import PowerMode
    from worker_agent.providers.choice import Offers


def sessions_to_measure(
    models: Path,
    engines: Sequence[str],
    threads: Sequence[int],
    modes: Sequence[PowerMode],
    cores: Sequence[int] = (),
    offers: Offers | None = None,
) -> list[Session]:
    """Return every engine in every configuration that its backend has, ordered by power mode.

    Each variant of an engine is measured in each of them.

    Args:
        engines: names of the engines; empty for all usable ones.
        threads: thread counts; 0 stands for one per core.
        modes: power modes; empty on a machine without any.
        cores: cores to pin engines to; empty for all.
        offers: the execution providers; None for the CPU alone.
    """
    chosen = find_engines(models, engines)
    backends = {"": frozenset(backend for each in chosen for _, backend in _models(each))}
    on_cpu = configurations(threads, modes, cores)
    found: list[Configuration] = []
    if offers is None or offers.cpu:
        found += on_cpu
    for choice in () if offers is None else offers.choices:
        found += choice.configurations(on_cpu)
        backends[choice.name] = choice.details.backends
    # Stable: within a mode, in the order above.
    order = list(dict.fromkeys(each.power_mode for each in on_cpu))
    unique = list(dict.fromkeys(found))
    unique.sort(key=lambda each: order.index(each.power_mode))
    sessions = [
        Session(EngineName(definition.name), replace(configuration, variant=name))
        for configuration in unique
        for definition in chosen
        for name, backend in _models(definition)
        if backend in backends[configuration.execution_provider]
    ]
    if not sessions:
        raise NotFound("none of the execution providers runs any of the engines' backends")
    return sessions


def _models(definition: EngineDefinition) -> list[tuple[str, str]]:
    """Return names and backends of an engine's variants; without any, that of its model."""
    variants = [(variant.name, variant.backend) for variant in definition.variants]
    return variants or [("", definition.backend)]


def configurations(
    threads: Sequence[int], modes: Sequence[PowerMode], cores: Sequence[int] = ()
) -> list[Configuration]:
    """Return the distinct configurations; thread counts beyond a mode's cores are skipped."""
    check_thread_counts(threads, cores)
    if not modes:
        all_cores = usable_cores(cores)
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
            f"no power mode has {min(threads)} cores or more for the threads; the largest has "
            f"{most}"
        )
    return list(found)


def find_engines(models: Path, wanted: Sequence[str]) -> list[EngineDefinition]:
    """Return the definitions of engines."""
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
