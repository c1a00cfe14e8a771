"""Division of a machine into workers.

Most machines are one worker. Each place, a part of the cores, may be a worker instead, and each
device that runs alongside the others is one more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.cgroups import usable_cores
from worker_agent.cpu_affinity import split_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Configuration
    from worker_agent.agent_settings import WorkerSettings
    from worker_agent.power.controller import PowerMode
    from worker_agent.providers.choice import Offers, ProviderChoice


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """A worker of a machine.

    Attributes:
        suffix: of its id, such as ``1`` for the first place; empty if it is the whole machine.
        cores: that its engines are restricted to; all if empty.
        usable_cores: whole cores that it may use.
        memory_bytes: budget of its resident sessions.
    """

    id: str
    suffix: str
    cores: tuple[int, ...]
    usable_cores: int
    memory_bytes: int
    configurations: tuple[Configuration, ...]
    providers: tuple[ProviderChoice, ...]


def plan_workers(
    settings: WorkerSettings, cores: int, modes: Sequence[PowerMode], offers: Offers
) -> list[WorkerPlan]:
    """Return the workers of a machine with these usable cores, power modes and providers.

    Raises:
        InvalidInput: the settings exclude one another, or no provider can be used.
    """
    beside = [choice for choice in offers.choices if choice.parallel]
    here = tuple(choice for choice in offers.choices if not choice.parallel)
    if modes and (beside or settings.places):
        what, setting = (beside[0], "parallel") if beside else ("a place", "places")
        raise InvalidInput(
            f"{what} cannot run alongside others on a machine with power modes, since a "
            f'switch would disturb them: remove {setting}, or set power = "none"'
        )
    places: list[tuple[int, ...]] = []
    if settings.places:
        available = settings.cores or tuple(sorted(os.sched_getaffinity(0)))
        places = split_places(settings.places, available)
    configurations = settings.configurations(modes, offers)
    on_cores = len(places) or bool(configurations)
    whole = WorkerPlan(
        id=settings.worker_id,
        suffix="",
        cores=settings.cores,
        usable_cores=cores,
        memory_bytes=settings.memory_bytes // (on_cores + len(beside) or 1),
        configurations=configurations,
        providers=here,
    )
    plans = [
        replace(
            _part(whole, str(number)),
            cores=own,
            usable_cores=usable_cores(own),
            configurations=structs.replace(settings, cores=own).configurations(offers=offers),
        )
        for number, own in enumerate(places, 1)
    ]
    if configurations and not places:
        plans.append(whole)
    plans += [
        replace(
            _part(whole, choice.suffix),
            configurations=tuple(choice.configurations(settings.configurations())),
            providers=(choice,),
        )
        for choice in beside
    ]
    if not plans:
        raise InvalidInput(
            "none of the execution providers can be used: "
            + "; ".join(f"{each.choice}: {each.reason}" for each in offers.refusals)
        )
    return plans


def _part(whole: WorkerPlan, suffix: str) -> WorkerPlan:
    name = validate_name(f"{whole.id}.{suffix}", "worker id")
    return replace(whole, id=name, suffix=suffix)
